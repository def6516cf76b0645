package jetstream_test

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/apbus/apbus/internal/natstest"
	durable "github.com/apbus/apbus/jetstream"
	"github.com/apbus/apbus/module"
)

func TestOpenCreatesAndFindsTheStream(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		s := natstest.New(t, natstest.Options{})
		defer s.Close()
		js := s.JetStream()
		defer js.Conn().Close()
		for _, ns := range []string{"", "default", "team_a-1"} {
			for range 2 {
				store, err := durable.Open(t.Context(), durable.Options{JS: js, Namespace: ns, MaxBytes: 1 << 20, Logger: quiet()})
				if err != nil {
					t.Fatalf("Open of %q: %v", ns, err)
				}
				if d := store.Drift(); len(d) > 0 {
					t.Errorf("drift of a stream of our own: %v", d)
				}
				if store.Durability() != durable.PowerSafe {
					t.Errorf("durability = %s", store.Durability())
				}
			}
		}
		names := slices.Sorted(namesOf(js, t))
		if want := []string{"APBUS_TASKS", "APBUS_TASKS_team_a-1"}; !slices.Equal(names, want) {
			t.Errorf("streams = %q, want %q", names, want)
		}
		info, err := js.Stream(t.Context(), "APBUS_TASKS")
		if err != nil {
			t.Fatal(err)
		}
		for _, subject := range info.CachedInfo().Config.Subjects {
			if strings.Contains(subject, ".rpc") || strings.HasSuffix(subject, "default.>") {
				t.Errorf("the stream captures %s, where the writer is asked", subject)
			}
		}
	})
}

func namesOf(js jetstream.JetStream, t *testing.T) func(yield func(string) bool) {
	list := js.StreamNames(t.Context())
	return func(yield func(string) bool) {
		for name := range list.Name() {
			if !yield(name) {
				return
			}
		}
	}
}

// A stream that exists is reported and left as it is.
func TestDrift(t *testing.T) {
	good := func() jetstream.StreamConfig {
		return jetstream.StreamConfig{
			Name: "APBUS_TASKS", Storage: jetstream.FileStorage, MaxMsgsPerSubject: 1,
			Subjects: []string{
				"apbus.v1.task.default.task.>", "apbus.v1.task.default.result.>", "apbus.v1.task.default.schedule.>",
				"apbus.v1.task.default.queue.>", "apbus.v1.task.default.lead",
			},
			Discard: jetstream.DiscardNew, AllowDirect: true, AllowMsgTTL: true, AllowAtomicPublish: true,
			DenyDelete: true, DenyPurge: true,
		}
	}
	tests := []struct {
		name   string
		change func(c *jetstream.StreamConfig)
		fatal  bool
		drift  string // the settings that differ
	}{
		{name: "ours", change: func(*jetstream.StreamConfig) {}},
		{name: "memory", change: func(c *jetstream.StreamConfig) { c.Storage = jetstream.MemoryStorage }, fatal: true, drift: "storage"},
		{name: "age", change: func(c *jetstream.StreamConfig) { c.MaxAge = time.Hour }, fatal: true, drift: "max_age"},
		{name: "no ttl", change: func(c *jetstream.StreamConfig) { c.AllowMsgTTL = false }, fatal: true, drift: "allow_msg_ttl"},
		{name: "no batches", change: func(c *jetstream.StreamConfig) { c.AllowAtomicPublish = false }, fatal: true, drift: "allow_atomic"},
		{name: "no direct get", change: func(c *jetstream.StreamConfig) { c.AllowDirect = false }, fatal: true, drift: "allow_direct"},
		{name: "history", change: func(c *jetstream.StreamConfig) { c.MaxMsgsPerSubject = 5 }, fatal: true, drift: "max_msgs_per_subject"},
		{name: "work queue", change: func(c *jetstream.StreamConfig) { c.Retention = jetstream.WorkQueuePolicy }, fatal: true, drift: "retention"},
		{name: "no acks", change: func(c *jetstream.StreamConfig) { c.NoAck = true }, fatal: true, drift: "no_ack"},
		{name: "drops the oldest", change: func(c *jetstream.StreamConfig) { c.Discard, c.MaxMsgs = jetstream.DiscardOld, 1000 }, fatal: true, drift: "discard max_msgs"},
		{name: "would drop the oldest if it had a limit", change: func(c *jetstream.StreamConfig) { c.Discard = jetstream.DiscardOld }, drift: "discard"},
		{name: "lacks a subject", change: func(c *jetstream.StreamConfig) { c.Subjects = c.Subjects[1:] }, fatal: true, drift: "subjects"},
		{name: "has a subject more", change: func(c *jetstream.StreamConfig) { c.Subjects = append(c.Subjects, "other.>") }, drift: "subjects"},
		{name: "limited", change: func(c *jetstream.StreamConfig) { c.MaxBytes = 1 << 20 }, drift: "max_bytes"},
		{name: "may be purged", change: func(c *jetstream.StreamConfig) { c.DenyPurge, c.DenyDelete = false, false }, drift: "deny_delete deny_purge"},
	}
	natstest.Bubble(t, func(t *testing.T) {
		s := natstest.New(t, natstest.Options{})
		defer s.Close()
		js := s.JetStream()
		defer js.Conn().Close()
		for _, tt := range tests {
			cfg := good()
			tt.change(&cfg)
			made, err := js.CreateStream(t.Context(), cfg)
			if err != nil {
				t.Fatalf("%s: create: %v", tt.name, err)
			}
			before := made.CachedInfo().Config
			store, err := durable.Open(t.Context(), durable.Options{JS: js, Logger: quiet()})
			switch {
			case tt.fatal:
				if module.CodeOf(err) != module.CodeConfigInvalid {
					t.Errorf("%s: Open = %v, want %s", tt.name, err, module.CodeConfigInvalid)
				}
				for setting := range strings.FieldsSeq(tt.drift) {
					if fatal := setting != "max_msgs"; fatal && (err == nil || !strings.Contains(err.Error(), setting+" is ")) {
						t.Errorf("%s: %v does not name %s", tt.name, err, setting)
					}
				}
			case err != nil:
				t.Errorf("%s: Open: %v", tt.name, err)
			default:
				var settings []string
				for _, d := range store.Drift() {
					settings = append(settings, d.Setting)
				}
				if got := strings.Join(settings, " "); got != tt.drift {
					t.Errorf("%s: drift in %q, want %q", tt.name, got, tt.drift)
				}
			}
			after, err := js.Stream(t.Context(), cfg.Name)
			if err != nil {
				t.Fatal(err)
			}
			if got, want := after.CachedInfo().Config, before; got.Storage != want.Storage || got.MaxAge != want.MaxAge ||
				got.MaxMsgs != want.MaxMsgs || got.AllowMsgTTL != want.AllowMsgTTL || !slices.Equal(got.Subjects, want.Subjects) {
				t.Errorf("%s: the stream was changed", tt.name)
			}
			if err := js.DeleteStream(t.Context(), cfg.Name); err != nil {
				t.Fatal(err)
			}
			// The server answers before it has removed the files and the directories that
			// they leave empty, under whoever makes the next stream.
			synctest.Wait()
		}
	})
}

func TestOpenRefuses(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		s := natstest.New(t, natstest.Options{})
		defer s.Close()
		js := s.JetStream()
		defer js.Conn().Close()
		for _, o := range []durable.Options{
			{},
			{JS: js, Namespace: "Not good"},
			{JS: js, Prefix: "a..b"},
			{JS: js, Prefix: "a.>"},
			{JS: js, Durability: "memory"},
			{JS: js, LeaseTTL: time.Millisecond},
		} {
			o.Logger = quiet()
			if _, err := durable.Open(t.Context(), o); module.CodeOf(err) != module.CodeConfigInvalid {
				t.Errorf("Open(%+v) = %v", o, err)
			}
		}
		s.Stop()
		ctx, stop := contextFor(t, time.Second)
		defer stop()
		if _, err := durable.Open(ctx, durable.Options{JS: js, Logger: quiet()}); module.CodeOf(err) != module.CodeTaskStoreUnavailable {
			t.Errorf("Open without a server = %v", err)
		}
	})
}
