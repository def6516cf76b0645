package jetstream_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/apbus/apbus/internal/natstest"
	durable "github.com/apbus/apbus/jetstream"
	"github.com/apbus/apbus/module"
	"github.com/apbus/apbus/task"
)

// messages counts what passes on a subject while f runs.
func messages(t *testing.T, nc *nats.Conn, subject string, f func()) int64 {
	t.Helper()
	var n atomic.Int64
	sub, err := nc.Subscribe(subject, func(*nats.Msg) { n.Add(1) })
	if err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	f()
	synctest.Wait()
	if err := sub.Unsubscribe(); err != nil {
		t.Fatal(err)
	}
	return n.Load()
}

// TestRequestsShareMessages has many submit and report at once: each gets its own
// answer, also where others in the same message are refused, over few messages.
func TestRequestsShareMessages(t *testing.T) {
	inModes(t, func(t *testing.T, s *natstest.Server, o durable.Options) {
		const n = 200
		r := runRouter(t, s, o, func(wo *task.WriterOptions) {
			d := module.Descriptor{ID: "math.add", Annotations: module.Annotations{Idempotent: true}}
			wo.Describe = func(string) (task.Described, bool) { return task.Described{Descriptor: d, Hosts: 1}, true }
		})
		defer r.stop()
		// A message that only the watcher hears would have no answer.
		if _, err := r.client.Queues(t.Context()); err != nil {
			t.Fatal(err)
		}
		watch := s.Connect()
		defer watch.Close()
		ids := make([]string, n)
		sent := messages(t, watch, "apbus.v1.task.default.rpc.submit", func() {
			var wg sync.WaitGroup
			for i := range n {
				wg.Go(func() {
					s := task.Submission{ModuleID: "math.add", Inputs: json.RawMessage(fmt.Sprintf(`{"i":%d}`, i)), IdempotencyKey: fmt.Sprint("k", i%100)}
					if i >= 100 {
						s.IdempotencyKey = ""
					}
					switch i % 10 {
					case 7:
						s.ModuleID = "not an ID"
					case 8:
						s.Inputs = json.RawMessage(`{"i":`)
					case 9:
						s.IdempotencyKey = strings.Repeat("k", 1000)
					}
					a, err := r.client.Submit(t.Context(), task.SubmitRequest{Tasks: []task.Submission{s}})
					code := module.CodeOf(err)
					if err == nil {
						code = a.Receipts[0].Error.Code()
					}
					want := map[int]module.Code{7: module.CodeInvalidModuleID, 8: module.CodeInvalidInput, 9: module.CodeInvalidInput}[i%10]
					if code != want {
						t.Errorf("submit %d: %q, want %q", i, code, want)
					}
					if code == "" {
						ids[i] = a.Receipts[0].TaskID
					}
				})
			}
			wg.Wait()
		})
		if sent > n/4 {
			t.Errorf("%d submits took %d messages", n, sent)
		}
		inputs := map[string]string{}
		for i, id := range ids {
			if id == "" {
				continue
			}
			if other, again := inputs[id]; again {
				t.Errorf("submit %d has the task of %s", i, other)
			}
			inputs[id] = fmt.Sprintf(`{"i":%d}`, i)
		}
		claimed, err := r.client.Claim(t.Context(), task.ClaimRequest{Node: "n1", Boot: "b", Modules: []string{"math.add"}, Slots: n})
		if err != nil || len(claimed.Grants) != len(inputs) {
			t.Fatalf("%d grants of %d tasks, %v", len(claimed.Grants), len(inputs), err)
		}
		sent = messages(t, watch, "apbus.v1.task.default.rpc.finish-all", func() {
			var wg sync.WaitGroup
			for i, g := range claimed.Grants {
				wg.Go(func() {
					if got := inputs[g.TaskID]; got != string(g.Inputs) {
						t.Errorf("task %s was granted with %s, submitted with %s", g.TaskID, g.Inputs, got)
					}
					ref, want := g.LeaseRef, module.Code("")
					if i%5 == 0 {
						ref.Epoch++
						want = module.CodeTaskLeaseLost
					}
					a, err := r.client.Finish(t.Context(), task.FinishReport{LeaseRef: ref, Node: "n1", Outcome: task.OutcomeCompleted, Result: g.Inputs})
					if code := module.CodeOf(err); code != want || code == "" && a.Status != task.Completed {
						t.Errorf("finish: %q, %+v; want %q", code, a, want)
					}
					if e := module.AsError(err); e != nil && !e.Remote {
						t.Errorf("%v is not from the writer", err)
					}
				})
			}
			wg.Wait()
		})
		if sent > n/4 {
			t.Errorf("%d reports took %d messages", len(claimed.Grants), sent)
		}
		for i, g := range claimed.Grants {
			res, err := r.client.Result(t.Context(), task.ResultRequest{TaskID: g.TaskID})
			if i%5 != 0 && (err != nil || string(res.Output) != inputs[g.TaskID]) {
				t.Errorf("result of %s = %s, %v; want %s", g.TaskID, res.Output, err, inputs[g.TaskID])
			}
			if i%5 == 0 && res.Status.Terminal() {
				t.Errorf("a stale report ended task %s", g.TaskID)
			}
		}
	})
}

// TestLeavingASharedMessage has a caller leave while nobody answers: it gets its own
// reason, and the others their answers once a writer is there.
func TestLeavingASharedMessage(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		s := natstest.New(t, natstest.Options{})
		defer s.Close()
		js := s.JetStream()
		defer js.Conn().Close()
		client, err := durable.NewTaskClient(durable.ClientOptions{Options: durable.Options{JS: js, Logger: quiet()}})
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		mine := errors.New("mine")
		ctx, leave := context.WithCancelCause(t.Context())
		var wg sync.WaitGroup
		submit := func(ctx context.Context, n int) error {
			a, err := client.Submit(ctx, task.SubmitRequest{Tasks: []task.Submission{{ModuleID: "math.add", IdempotencyKey: fmt.Sprint(n)}}})
			if err == nil {
				err = a.Receipts[0].Error.Err()
			}
			return err
		}
		for i := range 20 {
			wg.Go(func() {
				if err := submit(ctx, i); !errors.Is(err, mine) {
					t.Errorf("left with %v", err)
				}
			})
			if i%2 == 1 {
				wg.Go(func() {
					if err := submit(t.Context(), 100+i); err != nil {
						t.Errorf("stayed with %v", err)
					}
				})
			}
		}
		time.Sleep(time.Second) //archtest:real-time not real: every use is inside a bubble
		leave(mine)
		time.Sleep(time.Second) //archtest:real-time not real: every use is inside a bubble
		r := runRouter(t, s, durable.Options{Logger: quiet()})
		defer r.stop()
		wg.Wait()
	})
}
