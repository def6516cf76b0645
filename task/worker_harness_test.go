package task_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/module"
	"github.com/apbus/apbus/task"
)

// node is a worker that runs, over a writer that may be swapped.
type node struct {
	*task.Worker
	t     *testing.T
	stop  context.CancelCauseFunc
	ended chan error
}

// line is a connection to whatever writer leads, that can be cut.
type line struct {
	f   *fixture
	cut atomic.Bool
}

var errCut = module.Errorf(module.CodeBusNoResponders, "nobody answers")

func through[A any](l *line, call func(w *task.Writer) (A, error)) (A, error) {
	var none A
	if l.cut.Load() {
		return none, errCut
	}
	a, err := call(l.f.now.Load())
	if l.cut.Load() { // the answer is lost
		return none, errCut
	}
	return a, err
}

func (l *line) Claim(ctx context.Context, req task.ClaimRequest) (task.ClaimAnswer, error) {
	return through(l, func(w *task.Writer) (task.ClaimAnswer, error) { return w.Claim(ctx, req) })
}

func (l *line) Start(ctx context.Context, req task.StartRequest) (task.LeaseAnswer, error) {
	return through(l, func(w *task.Writer) (task.LeaseAnswer, error) { return w.Start(ctx, req) })
}

func (l *line) Renew(ctx context.Context, req task.RenewRequest) (task.LeaseAnswer, error) {
	return through(l, func(w *task.Writer) (task.LeaseAnswer, error) { return w.Renew(ctx, req) })
}

func (l *line) Progress(ctx context.Context, rep task.ProgressReport) error {
	_, err := through(l, func(w *task.Writer) (struct{}, error) { return struct{}{}, w.Progress(ctx, rep) })
	return err
}

func (l *line) Checkpoint(ctx context.Context, rep task.CheckpointReport) error {
	_, err := through(l, func(w *task.Writer) (struct{}, error) { return struct{}{}, w.Checkpoint(ctx, rep) })
	return err
}

func (l *line) Finish(ctx context.Context, rep task.FinishReport) (task.FinishAnswer, error) {
	return through(l, func(w *task.Writer) (task.FinishAnswer, error) { return w.Finish(ctx, rep) })
}

func (l *line) Release(ctx context.Context, req task.ReleaseRequest) error {
	_, err := through(l, func(w *task.Writer) (struct{}, error) { return struct{}{}, w.Release(ctx, req) })
	return err
}

// body is a module of a test.
type body func(ctx context.Context, in map[string]any) (map[string]any, error)

// node starts a worker. The modules run as an executor would run them: with the
// Context of their call, and with errors that are coded.
func (f *fixture) node(name string, modules map[string]body, opts ...func(*task.WorkerOptions)) (*node, *line) {
	f.t.Helper()
	l := &line{f: f}
	o := task.WorkerOptions{
		Node: name, Boot: "b1", Slots: 4, Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
		Modules: func() []string {
			var ids []string
			for id := range modules {
				ids = append(ids, id)
			}
			return ids
		},
	}
	for _, set := range opts {
		set(&o)
	}
	invoke := task.InvokerFunc(func(ctx context.Context, req *contextwire.Request) (*contextwire.Reply, error) {
		c := req.Context.Enter(req.ModuleID, module.CallScope{
			Progress: req.Progress, Call: module.CallInfo{ID: req.CallID, Attempt: req.Attempt},
		})
		run := modules[req.ModuleID]
		if run == nil {
			return nil, module.Errorf(module.CodeModuleNotFound, "no such module").NotExecuted()
		}
		out, err := run(module.WithContext(ctx, c), req.Inputs)
		switch {
		case err != nil && ctx.Err() != nil:
			return nil, module.Wrap(module.CodeExecutionCancelled, context.Cause(ctx), "cancelled")
		case err != nil:
			return nil, module.Propagate(err, req.ModuleID, c)
		}
		return &contextwire.Reply{Output: out}, nil
	})
	w, err := task.NewWorker(l, invoke, o)
	if err != nil {
		f.t.Fatal(err)
	}
	ctx, stop := context.WithCancelCause(context.Background())
	n := &node{Worker: w, t: f.t, stop: stop, ended: make(chan error, 1)}
	go func() { n.ended <- w.Run(ctx) }()
	return n, l
}

// shutdown ends the worker and returns what Run said.
func (n *node) shutdown() error {
	n.stop(errors.New("the test ends"))
	return <-n.ended
}

// idle lets a module take its time, on the clock of the bubble.
func idle(d time.Duration) { <-time.After(d) }
