package jetstream_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	natsjs "github.com/nats-io/nats.go/jetstream"

	"github.com/apbus/apbus/executor/approval"
	"github.com/apbus/apbus/executor/approval/approvaltest"
	"github.com/apbus/apbus/internal/natstest"
	durable "github.com/apbus/apbus/jetstream"
	"github.com/apbus/apbus/module"
)

// approvals opens the store on a connection of its own. Connections are closed
// before the bubble ends, in which cleanups come too late.
type approvals struct {
	t      *testing.T
	server *natstest.Server
	log    bytes.Buffer
	undo   []func()
}

func newApprovals(t *testing.T) *approvals {
	t.Helper()
	return &approvals{t: t, server: natstest.New(t, natstest.Options{})}
}

func (a *approvals) js() natsjs.JetStream {
	a.t.Helper()
	nc := a.server.Connect()
	a.undo = append(a.undo, nc.Close)
	js, err := natsjs.New(nc)
	if err != nil {
		a.t.Fatal(err)
	}
	return js
}

func (a *approvals) open(o durable.ApprovalOptions) *durable.ApprovalStore {
	a.t.Helper()
	o.Logger = slog.New(slog.NewTextHandler(&a.log, nil))
	s, err := durable.OpenApprovals(a.t.Context(), a.js(), o)
	if err != nil {
		a.t.Fatal(err)
	}
	return s
}

func (a *approvals) close() {
	for _, f := range a.undo {
		f()
	}
	a.server.Close()
}

// onApprovals runs a test in a bubble with a server of its own.
func onApprovals(t *testing.T, f func(a *approvals)) {
	t.Helper()
	natstest.Bubble(t, func(t *testing.T) {
		a := newApprovals(t)
		defer a.close()
		f(a)
	})
}

func TestApprovalStore(t *testing.T) {
	var a *approvals // of the case that runs; they take turns
	approvaltest.TestStore(t,
		func(t *testing.T, f func(t *testing.T)) {
			onApprovals(t, func(here *approvals) {
				a = here
				f(here.t)
			})
		},
		func(*testing.T) (approval.Store, func(*testing.T) approval.Store) {
			return a.open(durable.ApprovalOptions{}), func(*testing.T) approval.Store { return a.open(durable.ApprovalOptions{}) }
		})
}

func record(id string) approval.Record {
	now := time.Now().UTC()
	return approval.Record{
		ID: id, State: approval.StatePending, CreatedAt: now, ExpiresAt: now.Add(time.Hour),
		Binding: approval.Binding{ModuleID: "payments.refund", Digest: "d"},
	}
}

// What was stored and decided is there when the server comes back, and a call
// that waits meanwhile hears of the decision.
func TestApprovalsOutliveTheServer(t *testing.T) {
	onApprovals(t, func(a *approvals) {
		node := approval.NewDurable(a.open(durable.ApprovalOptions{}), approval.Options{Wait: time.Hour, Logger: slog.New(slog.DiscardHandler)})
		router := approval.NewDurable(a.open(durable.ApprovalOptions{}), approval.Options{Logger: slog.New(slog.DiscardHandler)})
		call := &approval.Request{ModuleID: "payments.refund", Version: "1", Context: module.NewContext(module.ContextOptions{})}
		type end struct {
			res *approval.Result
			err error
		}
		done := make(chan end, 1)
		go func() {
			res, err := node.RequestApproval(a.t.Context(), call)
			done <- end{res, err}
		}()
		pass(5 * time.Second)
		a.server.Stop()
		pass(25 * time.Second)
		a.server.Start()
		var page approval.Page
		for range 60 {
			var err error
			if page, err = router.List(a.t.Context(), approval.Filter{}); err == nil {
				break
			}
			if code := module.CodeOf(err); code != module.CodeTaskStoreUnavailable {
				a.t.Fatalf("list: %v", err)
			}
			pass(time.Second)
		}
		if len(page.Records) != 1 || page.Records[0].State != approval.StatePending {
			a.t.Fatalf("after the restart: %+v", page)
		}
		by := module.NewIdentity("bob", "user", nil, nil)
		if _, err := router.Decide(a.t.Context(), page.Records[0].ID, approval.Decision{Approve: true, By: by, Reason: "r"}); err != nil {
			a.t.Fatal(err)
		}
		began := time.Now()
		got := <-done
		if got.err != nil || got.res.Status != approval.Approved {
			a.t.Errorf("the waiting call: %+v, %v", got.res, got.err)
		}
		if waited := time.Since(began); waited > 11*time.Second {
			a.t.Errorf("the decision woke the call after %v", waited)
		}
		a.server.Restart()
		for range 60 {
			rec, err := router.Get(a.t.Context(), page.Records[0].ID)
			if err == nil {
				if rec.State != approval.StateClaimed || rec.DecidedBy != "bob" {
					a.t.Errorf("after another restart: %+v", rec)
				}
				return
			}
			pass(time.Second)
		}
		a.t.Error("the store does not come back")
	})
}

// Namespaces share the bucket and do not see each other.
func TestApprovalNamespaces(t *testing.T) {
	onApprovals(t, func(a *approvals) {
		red, blue := a.open(durable.ApprovalOptions{Namespace: "red"}), a.open(durable.ApprovalOptions{Namespace: "blue"})
		if _, err := red.Create(a.t.Context(), record("r1")); err != nil {
			a.t.Fatal(err)
		}
		if _, err := blue.Get(a.t.Context(), "r1"); !errors.Is(err, approval.ErrNotFound) {
			a.t.Errorf("get from the other namespace: %v", err)
		}
		if page, err := blue.List(a.t.Context(), approval.Filter{}); err != nil || len(page.Records) != 0 {
			a.t.Errorf("list of the other namespace: %+v, %v", page, err)
		}
		ctx, stop := context.WithTimeout(a.t.Context(), time.Second)
		defer stop()
		for e, err := range blue.Watch(ctx, "", 0) {
			a.t.Errorf("watch of the other namespace: %+v, %v", e, err)
		}
		if _, err := durable.OpenApprovals(a.t.Context(), a.js(), durable.ApprovalOptions{Namespace: "a.b"}); module.CodeOf(err) != module.CodeConfigInvalid {
			a.t.Errorf("a namespace of two tokens: %v", err)
		}
	})
}

// A record goes when its retention is over, which is the server's part: here the
// bucket is asked for it. The server's clock for ages is not that of a bubble.
func TestApprovalRetention(t *testing.T) {
	onApprovals(t, func(a *approvals) {
		a.open(durable.ApprovalOptions{Retention: time.Hour})
		kv, err := a.js().KeyValue(a.t.Context(), durable.ApprovalBucket)
		if err != nil {
			a.t.Fatal(err)
		}
		status, err := kv.Status(a.t.Context())
		if err != nil || status.TTL() != time.Hour || status.History() != 1 || status.Config().Storage != natsjs.FileStorage {
			a.t.Errorf("bucket %+v, %v", status.Config(), err)
		}
	})
}

// What cannot be read is set aside, said once, and stops nothing else.
func TestUnreadableApprovals(t *testing.T) {
	onApprovals(t, func(a *approvals) {
		s := a.open(durable.ApprovalOptions{})
		for _, id := range []string{"r1", "r2"} {
			if _, err := s.Create(a.t.Context(), record(id)); err != nil {
				a.t.Fatal(err)
			}
		}
		kv, err := a.js().KeyValue(a.t.Context(), durable.ApprovalBucket)
		if err != nil {
			a.t.Fatal(err)
		}
		for key, value := range map[string]string{
			"default.b1": "not JSON", "default.b2": `{"v":2,"id":"b2"}`, "default.b3": `{"v":1,"id":"b3","state":"nonsense"}`, "default.b4": `{}`, "default.b5": "",
		} {
			if _, err := kv.PutString(a.t.Context(), key, value); err != nil {
				a.t.Fatal(err)
			}
		}
		for range 2 {
			page, err := s.List(a.t.Context(), approval.Filter{})
			if err != nil || len(page.Records) != 2 {
				a.t.Errorf("list: %+v, %v", page, err)
			}
		}
		if n := strings.Count(a.log.String(), "cannot be read"); n != 5 {
			a.t.Errorf("%d complaints about 5 records:\n%s", n, a.log.String())
		}
		for _, id := range []string{"b1", "b2", "b3", "b4", "b5"} {
			if _, err := s.Get(a.t.Context(), id); module.CodeOf(err) != module.CodeTaskStoreUnavailable {
				a.t.Errorf("get %s: %v", id, err)
			}
		}
		desk := approval.NewDurable(s, approval.Options{Logger: slog.New(slog.DiscardHandler)})
		if _, err := desk.CheckApproval(a.t.Context(), "b2", &approval.Request{ModuleID: "m"}); !errors.Is(err, approval.ErrNewer) {
			a.t.Errorf("a token of a newer version: %v", err)
		}
	})
}

// A bucket that somebody else made is used as it is, if it can be trusted.
func TestApprovalBucketDiffers(t *testing.T) {
	onApprovals(t, func(a *approvals) {
		a.open(durable.ApprovalOptions{Retention: time.Hour})
		if a.log.Len() != 0 {
			a.t.Errorf("a bucket of our own differs:\n%s", a.log.String())
		}
		a.open(durable.ApprovalOptions{Retention: 2 * time.Hour})
		if log := a.log.String(); !strings.Contains(log, "setting=retention have=1h0m0s want=2h0m0s") {
			a.t.Errorf("log:\n%s", log)
		}
	})
	onApprovals(t, func(a *approvals) {
		js := a.js()
		if _, err := js.CreateKeyValue(a.t.Context(), natsjs.KeyValueConfig{Bucket: durable.ApprovalBucket, Storage: natsjs.MemoryStorage}); err != nil {
			a.t.Fatal(err)
		}
		if _, err := durable.OpenApprovals(a.t.Context(), js, durable.ApprovalOptions{}); module.CodeOf(err) != module.CodeConfigInvalid {
			a.t.Errorf("a bucket in memory: %v", err)
		}
	})
}

// Too much is refused with a code, and what is there stays.
func TestApprovalLimits(t *testing.T) {
	onApprovals(t, func(a *approvals) {
		s := a.open(durable.ApprovalOptions{MaxBytes: 64 << 10})
		big := record("big")
		big.Description = strings.Repeat("x", 2<<20)
		_, err := s.Create(a.t.Context(), big)
		if e := module.AsError(err); e == nil || e.Code != module.CodeBusPayloadTooLarge || e.Details["size"] == nil {
			a.t.Errorf("over the largest message: %v", err)
		}
		full := record("r0")
		full.Description = strings.Repeat("x", 20<<10)
		for i := range 10 {
			full.ID = "r" + string(rune('0'+i))
			if _, err = s.Create(a.t.Context(), full); err != nil {
				break
			}
		}
		if module.CodeOf(err) != module.CodeTaskLimitExceeded {
			a.t.Errorf("a full bucket: %v", err)
		}
		if _, err := s.Get(a.t.Context(), "r0"); err != nil {
			a.t.Errorf("the first of a full bucket: %v", err)
		}
	})
}

// A server that is away is a coded error, retryable, and a context that ends is
// its cause.
func TestApprovalStoreAway(t *testing.T) {
	onApprovals(t, func(a *approvals) {
		s := a.open(durable.ApprovalOptions{})
		rev, err := s.Create(a.t.Context(), record("r1"))
		if err != nil {
			a.t.Fatal(err)
		}
		a.server.Stop()
		ops := map[string]func(ctx context.Context) error{
			"get":    func(ctx context.Context) error { _, err := s.Get(ctx, "r1"); return err },
			"create": func(ctx context.Context) error { _, err := s.Create(ctx, record("r2")); return err },
			"update": func(ctx context.Context) error { _, err := s.Update(ctx, record("r1"), rev); return err },
			"list":   func(ctx context.Context) error { _, err := s.List(ctx, approval.Filter{}); return err },
			"watch": func(ctx context.Context) error {
				for _, err := range s.Watch(ctx, "", 0) {
					return err
				}
				return nil
			},
		}
		for name, op := range ops {
			err := op(a.t.Context())
			if e := module.AsError(err); e == nil || e.Code != module.CodeTaskStoreUnavailable || e.Details["operation"] != name || e.Details["reason"] == "" {
				a.t.Errorf("%s: %v", name, err)
			}
			if name == "watch" {
				continue // ends silently
			}
			gone := errors.New("gone")
			ctx, stop := context.WithCancelCause(a.t.Context())
			stop(gone)
			if err := op(ctx); !errors.Is(err, gone) {
				a.t.Errorf("%s under an ended context: %v", name, err)
			}
		}
	})
}

// A replicated bucket says that a race was lost under another code.
func TestApprovalsOnACluster(t *testing.T) {
	c := natstest.NewCluster(t)
	js := []natsjs.JetStream{c.JetStream(), c.JetStream()}
	stores := make([]*durable.ApprovalStore, len(js))
	for i := range js {
		var err error
		stores[i], err = durable.OpenApprovals(t.Context(), js[i], durable.ApprovalOptions{Replicas: 3, Logger: quiet()})
		if err != nil {
			t.Fatal(err)
		}
	}
	for round := range 5 {
		id := fmt.Sprintf("r%d", round)
		rev, err := stores[0].Create(t.Context(), record(id))
		if err != nil {
			t.Fatal(err)
		}
		errs := make([]error, 16)
		var wg sync.WaitGroup
		for i := range errs {
			wg.Go(func() { _, errs[i] = stores[i%2].Update(t.Context(), record(id), rev) })
		}
		wg.Wait()
		won := 0
		for _, err := range errs {
			if err == nil {
				won++
			} else if !errors.Is(err, approval.ErrConflict) {
				t.Errorf("a loser got %v", err)
			}
		}
		if won != 1 {
			t.Errorf("%d updates of one revision won", won)
		}
		if _, err := stores[1].Create(t.Context(), record(id)); !errors.Is(err, approval.ErrExists) {
			t.Errorf("create again: %v", err)
		}
	}
}
