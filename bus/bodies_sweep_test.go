package bus_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/apbus/apbus/bus"
	"github.com/apbus/apbus/cancel"
	"github.com/apbus/apbus/module"
)

// dies cuts a process off as a kill does: nothing of it is heard again.
func dies(conns *bus.Conns) { conns.Close() }

func TestSweepDeletesTheBodiesOfTheDead(t *testing.T) {
	onMesh(t, func(m *mesh) {
		started, ended := make(chan string, 1), make(chan error, 1)
		m.node("n1", newStubHost().add("mod.wait", module.Annotations{}, untilDone(started, ended)))
		js := m.jetStream()
		doomed := m.conns()
		c := m.clientOn(doomed)
		m.wait(c, "mod.wait")
		go func() { _, _ = c.Call(m.t.Context(), "mod.wait", map[string]any{"text": letters(2 << 20)}) }()
		<-started
		if state, _ := m.stored(js); state.Msgs == 0 {
			m.t.Fatal("the body is not stored")
		}
		dies(doomed)
		if got := cancel.ReasonOf(<-ended); got != cancel.CallerGone {
			m.t.Errorf("cancelled for %q", got)
		}
		m.wantNothingStored(js, 30*time.Second)
	})
}

func TestSweep(t *testing.T) {
	onMesh(t, func(m *mesh) {
		js := m.jetStream()
		living, nc := m.connect(), m.connect()
		// A foreign caller that answers probes and waits for one call.
		if _, err := living.Subscribe("_INBOX.living.probe", func(r *nats.Msg) {
			body := `{}`
			if bytes.Contains(r.Data, []byte("callofnobody1234/1")) {
				body = `{"unknown":["callofnobody1234/1"]}`
			}
			_ = r.RespondMsg(&nats.Msg{Header: nats.Header{"apbus-frame": {"result"}, "content-type": {"application/json"}}, Data: []byte(body)})
		}); err != nil {
			m.t.Fatal(err)
		}
		store, err := js.CreateObjectStore(m.t.Context(), jetstream.ObjectStoreConfig{Bucket: "APBUS_BLOBS"})
		if err != nil {
			m.t.Fatal(err)
		}
		for _, name := range []string{
			"_INBOX.living.callinflight1234-in", "_INBOX.living.callinflight1234-1", "_INBOX.living.callofnobody1234-1",
			"_INBOX.dead.callofthedead123-in", "_INBOX.dead.callofthedead123-2", "_INBOX.dead.x", "no-owner",
		} {
			m.putObject(js, name, []byte("body of "+name))
		}
		// What a killed process had half uploaded: chunks that no record names.
		half := "$O.APBUS_BLOBS.C." + b64("_INBOX.dead.callhalfdone1234-in")
		if err := nc.Publish(half, []byte("half")); err != nil {
			m.t.Fatal(err)
		}
		c, err := bus.NewClient(m.conns(), bus.ClientOptions{Logger: quiet(), Sweep: true})
		if err != nil {
			m.t.Fatal(err)
		}
		defer c.Close()
		left := func() string {
			pass(0)
			var names []string
			list, err := store.List(m.t.Context())
			if err != nil && !errors.Is(err, jetstream.ErrNoObjectsFound) {
				m.t.Fatal(err)
			}
			for _, o := range list {
				names = append(names, strings.TrimPrefix(o.Name, "_INBOX."))
			}
			return strings.Join(names, " ")
		}
		pass(3 * time.Second) // one sweep at least; the dead may only be reconnecting
		if got, want := left(), "living.callinflight1234-in living.callinflight1234-1 dead.callofthedead123-in dead.callofthedead123-2 dead.x no-owner"; got != want {
			m.t.Errorf("after one sweep: %s\nwant %s", got, want)
		}
		pass(7 * time.Second)
		if got, want := left(), "living.callinflight1234-in living.callinflight1234-1 no-owner"; got != want {
			m.t.Errorf("in the end: %s\nwant %s", got, want)
		}
		stream, err := js.Stream(m.t.Context(), "OBJ_APBUS_BLOBS")
		if err != nil {
			m.t.Fatal(err)
		}
		if _, err := stream.GetLastMsgForSubject(m.t.Context(), half); !errors.Is(err, jetstream.ErrMsgNotFound) {
			m.t.Errorf("half a body of the dead is still there: %v", err)
		}
		for _, name := range []string{"_INBOX.living.callinflight1234-in", "no-owner"} {
			if body, err := store.GetBytes(m.t.Context(), name); err != nil || string(body) != "body of "+name {
				m.t.Errorf("%s: %q, %v", name, body, err)
			}
		}
	})
}

func b64(name string) string { return base64.RawURLEncoding.EncodeToString([]byte(name)) }

// putObject writes an object as another NATS client would, with a name for its
// chunks that tells nothing and chunks of the usual size.
func (m *mesh) putObject(js jetstream.JetStream, name string, body []byte) {
	m.t.Helper()
	nuid := "foreign" + hex.EncodeToString([]byte(name))
	send := func(subject string, header nats.Header, data []byte) {
		m.t.Helper()
		if _, err := js.PublishMsg(m.t.Context(), &nats.Msg{Subject: subject, Header: header, Data: data}); err != nil {
			m.t.Fatal(err)
		}
	}
	chunks := 0
	for chunk := range slices.Chunk(body, 128<<10) {
		send("$O.APBUS_BLOBS.C."+nuid, nil, chunk)
		chunks++
	}
	sum := sha256.Sum256(body)
	record, err := json.Marshal(map[string]any{
		"name": name, "bucket": "APBUS_BLOBS", "nuid": nuid, "size": len(body), "chunks": chunks,
		"mtime": "0001-01-01T00:00:00Z", "digest": "SHA-256=" + base64.URLEncoding.EncodeToString(sum[:]),
	})
	if err != nil {
		m.t.Fatal(err)
	}
	send("$O.APBUS_BLOBS.M."+base64.URLEncoding.EncodeToString([]byte(name)), nats.Header{"Nats-Rollup": {"sub"}}, record)
}
