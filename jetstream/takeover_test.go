package jetstream_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/apbus/apbus/internal/natstest"
	durable "github.com/apbus/apbus/jetstream"
	"github.com/apbus/apbus/module"
	"github.com/apbus/apbus/task"
)

// Many submits of one key over two routers make one task.
func TestOneTaskForOneKey(t *testing.T) {
	inModes(t, func(t *testing.T, s *natstest.Server, o durable.Options) {
		routers := []*router{runRouter(t, s, o), runRouter(t, s, o)}
		defer routers[0].stop()
		defer routers[1].stop()
		routers[0].submit("math.add", "warm", `{}`) // somebody leads
		var (
			wg    sync.WaitGroup
			mu    sync.Mutex
			ids   = map[string]int{}
			fresh int
		)
		for i := range 50 {
			wg.Go(func() {
				r := routers[i%2].submit("math.add", "the key", `{"a":1}`)
				mu.Lock()
				defer mu.Unlock()
				ids[r.TaskID]++
				if !r.Deduplicated {
					fresh++
				}
			})
		}
		wg.Wait()
		if len(ids) != 1 || fresh != 1 {
			t.Errorf("%d tasks, %d receipts of a new one; want 1 and 1", len(ids), fresh)
		}
	})
}

// The writer is killed after it has committed and before it has answered: the client
// asks the next one and gets the task that is there.
func TestWriterDiesBetweenCommitAndAnswer(t *testing.T) {
	inModes(t, func(t *testing.T, s *natstest.Server, o durable.Options) {
		calls := newIce(s)
		first := runRouterOver(t, s, calls, o)
		defer first.stop()
		first.submit("math.add", "warm", `{}`) // it leads
		second := runRouter(t, s, o)
		defer second.stop()
		pass(time.Second)

		calls.silence()
		receipt := make(chan *task.Receipt, 1)
		go func() { receipt <- second.submit("math.add", "k", `{"a":1}`) }()
		noKey := make(chan error, 1)
		go func() {
			_, err := second.client.Submit(t.Context(), task.SubmitRequest{Tasks: []task.Submission{{ModuleID: "math.add"}}})
			noKey <- err
		}()
		pass(500 * time.Millisecond)
		if len(receipt) != 0 {
			t.Fatal("an answer came through")
		}
		killed := time.Now()
		first.kill()
		got := <-receipt
		if took := time.Since(killed); took > 3*time.Second {
			t.Errorf("the takeover took %v", took)
		}
		if !got.Deduplicated {
			t.Error("the task was stored a second time")
		}
		// What may have been stored and cannot be told apart is not repeated.
		e := module.AsError(<-noKey)
		if e == nil || e.Code != module.CodeTaskStoreUnavailable || e.Details["outcome"] != "unknown" {
			t.Errorf("a submit without a key = %v", e)
		}
		page, err := second.client.List(t.Context(), task.ListRequest{})
		if err != nil || len(page.Tasks) != 3 {
			t.Errorf("%d tasks, %v; want 3", len(page.Tasks), err)
		}
	})
}

// Reports that meet no writer are repeated and count once.
func TestReportsOutliveTheWriter(t *testing.T) {
	inModes(t, func(t *testing.T, s *natstest.Server, o durable.Options) {
		first := runRouter(t, s, o)
		defer first.stop()
		js := s.JetStream()
		defer js.Conn().Close()
		client, err := durable.NewTaskClient(durable.ClientOptions{Options: durable.Options{JS: js, Logger: quiet()}})
		if err != nil {
			t.Fatal(err)
		}
		worker := &router{t: t, client: client}
		defer client.Close()
		ids := make([]string, 8)
		for i := range ids {
			ids[i] = worker.submit("math.add", fmt.Sprint(i), `{}`).TaskID
		}
		grants := worker.claim(8, "math.add")
		refs := make([]task.LeaseRef, len(grants))
		for i, g := range grants {
			refs[i] = g.LeaseRef
		}
		if _, err := client.Start(t.Context(), task.StartRequest{Node: "n1", Refs: refs}); err != nil {
			t.Fatal(err)
		}
		first.kill()
		var wg sync.WaitGroup
		for _, g := range grants {
			wg.Go(func() {
				a, err := client.Finish(t.Context(), task.FinishReport{
					LeaseRef: g.LeaseRef, Node: "n1", Outcome: task.OutcomeCompleted, Result: json.RawMessage(`{"ok":true}`),
				})
				if err != nil || a.Status != task.Completed {
					t.Errorf("Finish over a takeover = %+v, %v", a, err)
				}
			})
		}
		pass(2 * time.Second)
		second := runRouter(t, s, o)
		defer second.stop()
		wg.Wait()
		for _, id := range ids {
			if res := second.result(id); res.Status != task.Completed || string(res.Output) != `{"ok":true}` {
				t.Errorf("result = %+v", res)
			}
		}
	})
}

// A claim that is given up leaves nothing behind: what was granted at that moment is
// there for the next one.
func TestClaimGivenUp(t *testing.T) {
	inModes(t, func(t *testing.T, s *natstest.Server, o durable.Options) {
		r := runRouter(t, s, o)
		defer r.stop()
		r.submit("other.module", "", `{}`)
		for i := range 20 {
			ctx, stop := contextFor(t, time.Duration(i)*50*time.Microsecond+time.Millisecond)
			id := make(chan string, 1)
			go func() { id <- r.submit("math.add", "", `{}`).TaskID }()
			a, err := r.client.Claim(ctx, task.ClaimRequest{Node: "n1", Modules: []string{"math.add"}, Slots: 1, WaitMS: 60_000})
			stop()
			want := <-id
			if err == nil && len(a.Grants) == 1 && a.Grants[0].TaskID == want {
				r.run(a.Grants[0], `{}`)
				continue
			}
			began := time.Now()
			if g := r.claim(1, "math.add"); len(g) != 1 || g[0].TaskID != want {
				t.Fatalf("claim %d after one that was given up (%v) = %+v", i, err, g)
			} else {
				r.run(g[0], `{}`)
			}
			if took := time.Since(began); took > 5*time.Second {
				t.Errorf("the task came back after %v, by the end of its lease", took)
			}
		}
		// Nobody waits for ever.
		ctx, stop := contextFor(t, time.Second)
		defer stop()
		began := time.Now()
		_, err := r.client.Claim(ctx, task.ClaimRequest{Node: "n1", Modules: []string{"none.such"}, Slots: 1, WaitMS: 600_000})
		if err == nil || time.Since(began) > 2*time.Second {
			t.Errorf("Claim = %v after %v", err, time.Since(began))
		}
	})
}

// Without any writer a request ends with its context, and says that nothing was done.
func TestNoWriter(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		s := natstest.New(t, natstest.Options{})
		defer s.Close()
		js := s.JetStream()
		defer js.Conn().Close()
		c, err := durable.NewTaskClient(durable.ClientOptions{Options: durable.Options{JS: js, Logger: quiet()}})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		for _, limit := range []time.Duration{0, time.Second, time.Minute} {
			ctx, want := t.Context(), 15*time.Second
			if limit > 0 {
				var stop func()
				ctx, stop = contextFor(t, limit)
				defer stop()
				want = limit
			}
			began := time.Now()
			_, err := c.Submit(ctx, task.SubmitRequest{Tasks: []task.Submission{{ModuleID: "math.add"}}})
			e := module.AsError(err)
			if e == nil || e.Code != module.CodeTaskStoreUnavailable || e.Details["outcome"] != nil {
				t.Errorf("Submit = %v", err)
			}
			if took := time.Since(began); took < want || took > want+time.Second {
				t.Errorf("Submit took %v, want %v", took, want)
			}
		}
		mine := errors.New("mine")
		ctx, stop := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Second, func() { stop(mine) })
		if _, err := c.Get(ctx, "x"); !errors.Is(err, mine) {
			t.Errorf("Get = %v, want the caller's cause", err)
		}
	})
}
