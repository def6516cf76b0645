package task_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"math"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apbus/apbus/module"
	"github.com/apbus/apbus/task"
)

// fixture is a writer over a log in memory, inside a bubble.
type fixture struct {
	*task.Writer
	now  atomic.Pointer[task.Writer] // the same, for workers
	t    *testing.T
	mem  *task.MemLog
	term atomic.Int32
	opts task.WriterOptions

	stop  context.CancelCauseFunc
	ended chan error

	mu      sync.Mutex
	signals []task.Signal
	to      *node
	info    map[string]task.Described
}

// bubble runs a test of a writer on fake time.
func bubble(t *testing.T, test func(t *testing.T, f *fixture), opts ...func(*task.WriterOptions)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, opts...)
		defer f.close()
		test(t, f)
	})
}

func newFixture(t *testing.T, opts ...func(*task.WriterOptions)) *fixture {
	t.Helper()
	f := &fixture{t: t, mem: task.NewMemLog(), info: make(map[string]task.Described)}
	f.know("job.safe", module.Annotations{Idempotent: true})
	f.know("job.effect", module.Annotations{})
	f.opts = task.WriterOptions{
		Namespace: "test", Durability: task.ProcessSafe,
		Jitter:   func() float64 { return 1 },
		Describe: func(id string) (task.Described, bool) { d, ok := f.info[id]; return d, ok },
		Signal: func(s task.Signal) {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.signals = append(f.signals, s)
			if f.to != nil {
				f.to.Signal(s)
			}
		},
		Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
	}
	for _, o := range opts {
		o(&f.opts)
	}
	f.lead()
	return f
}

// know describes a module.
func (f *fixture) know(id string, a module.Annotations) {
	f.info[id] = task.Described{
		Descriptor: module.Descriptor{ID: id, Annotations: a, InputSchema: map[string]any{"type": "object"}, OutputSchema: map[string]any{"type": "object"}},
		Hosts:      1,
	}
}

// lead starts a new writer over the log; one that led before is deposed.
func (f *fixture) lead() {
	f.t.Helper()
	f.leadOver(f.mem.Lead())
}

func (f *fixture) leadOver(log task.Log) {
	f.t.Helper()
	term := f.term.Add(1)
	opts := f.opts
	opts.Leading = func() bool { return f.term.Load() == term }
	w, err := task.NewWriter(log, opts)
	if err != nil {
		f.t.Fatal(err)
	}
	ctx, stop := context.WithCancelCause(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	f.Writer, f.stop, f.ended = w, stop, ended
	f.now.Store(w)
}

// crash ends the writer and lets a new one take over.
func (f *fixture) crash() {
	f.t.Helper()
	f.close()
	f.lead()
}

func (f *fixture) close() {
	f.stop(errors.New("the test ends"))
	<-f.ended
}

// submit submits one task that must be accepted.
func (f *fixture) submit(s task.Submission) string {
	f.t.Helper()
	r, err := f.trySubmit(s)
	if err != nil {
		f.t.Fatalf("submit: %v", err)
	}
	return r.TaskID
}

func (f *fixture) trySubmit(s task.Submission) (*task.Receipt, error) {
	answer, err := f.Submit(context.Background(), task.SubmitRequest{Tasks: []task.Submission{s}})
	if err != nil {
		return nil, err
	}
	return answer.Receipts[0].Receipt, answer.Receipts[0].Error.Err()
}

// claim asks for work without waiting.
func (f *fixture) claim(node string, slots int, modules ...string) []task.Grant {
	f.t.Helper()
	answer, err := f.Claim(context.Background(), task.ClaimRequest{Node: node, Boot: node + "-1", Modules: modules, Slots: slots})
	if err != nil {
		f.t.Fatalf("claim: %v", err)
	}
	return answer.Grants
}

// run claims one task and starts it.
func (f *fixture) run(node, moduleID string) task.Grant {
	f.t.Helper()
	g := f.claim(node, 1, moduleID)
	if len(g) != 1 {
		f.t.Fatalf("claim of %s gave %d grants", moduleID, len(g))
	}
	f.begin(g[0])
	return g[0]
}

func (f *fixture) begin(g task.Grant) {
	f.t.Helper()
	v, err := f.Start(context.Background(), task.StartRequest{Node: "n1", Refs: []task.LeaseRef{g.LeaseRef}})
	if err != nil || v.Verdicts[0].Lost {
		f.t.Fatalf("start: %+v, %v", v, err)
	}
}

func (f *fixture) succeed(g task.Grant, output string) {
	f.t.Helper()
	if _, err := f.Finish(context.Background(), task.FinishReport{LeaseRef: g.LeaseRef, Node: "n1", Outcome: task.OutcomeCompleted, Result: json.RawMessage(output)}); err != nil {
		f.t.Fatalf("finish: %v", err)
	}
}

func (f *fixture) fail(g task.Grant, err error) task.FinishAnswer {
	f.t.Helper()
	a, ferr := f.Finish(context.Background(), task.FinishReport{LeaseRef: g.LeaseRef, Node: "n1", Outcome: task.OutcomeFailed, Error: task.Fail(err)})
	if ferr != nil {
		f.t.Fatalf("finish: %v", ferr)
	}
	return a
}

func (f *fixture) get(id string) task.Record {
	f.t.Helper()
	r, err := f.Get(context.Background(), id)
	if err != nil {
		f.t.Fatalf("get: %v", err)
	}
	return r
}

func (f *fixture) want(id string, s task.Status, d task.Detail) task.Record {
	f.t.Helper()
	r := f.get(id)
	if r.Status != s || r.Detail != d {
		f.t.Fatalf("task is %s/%s, want %s/%s; timeline %+v", r.Status, r.Detail, s, d, r.Timeline)
	}
	return r
}

// wait lets time pass and everything that is due happen.
func wait(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func wantCode(t *testing.T, err error, code module.Code) *module.Error {
	t.Helper()
	e := module.AsError(err)
	if e == nil || e.Code != code {
		t.Fatalf("got error %v, want %s", err, code)
	}
	return e
}

func ptr[T any](v T) *T { return &v }

// deliver hands the writer's signals to a node.
func (f *fixture) deliver(n *node) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.to = n
}

func nan() float64 { return math.NaN() }
