package task

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/apbus/apbus/module"
)

// unreported is the error of a worker that ended before it was heard.
func unreported(n int) error {
	return module.Errorf(module.CodeTaskStoreUnavailable, "%d attempts could not be reported; they end by their leases", n)
}

// report tells the writer how an attempt ended, again and again until somebody has
// heard it or a lease after the attempt's own is over: a writer that takes over leaves
// attempts to their nodes that long (rule 7).
func (w *Worker) report(a *attempt, rep FinishReport) { w.reportFor(a, rep, 0) }

// reportFor is report that gives up after d, 0 for what report does.
func (w *Worker) reportFor(a *attempt, rep FinishReport, d time.Duration) {
	if a.lost() && rep.Outcome != OutcomeCompleted {
		w.log.Warn("a task passed to another node", "task_id", a.g.TaskID, "module_id", a.g.ModuleID, "attempt", a.g.Attempt, "node", w.opts.Node)
		w.forget(a, func(s *WorkerStats) { s.Lost++ })
		return
	}
	rep.LeaseRef, rep.Node = a.g.LeaseRef, w.opts.Node
	ctx := context.WithoutCancel(a.ctx)
	if d > 0 {
		var stop context.CancelFunc
		ctx, stop = context.WithTimeout(ctx, d)
		defer stop()
	}
	for pause := 50 * time.Millisecond; ; pause = min(pause*2, time.Second) {
		err := w.reportOnce(ctx, a, &rep)
		switch {
		case err == nil:
			w.forget(a, func(s *WorkerStats) { s.count(rep) })
			return
		case !nobodyAnswered(err):
			w.log.Warn("the end of a task attempt was refused", "task_id", a.g.TaskID, "module_id", a.g.ModuleID,
				"attempt", a.g.Attempt, "node", w.opts.Node, "cause", err)
			w.forget(a, func(s *WorkerStats) { s.Lost++ })
			return
		}
		a.mu.Lock()
		over := a.done || time.Now().After(a.deadline.Add(a.lease))
		a.mu.Unlock()
		if over {
			w.log.Error("the end of a task attempt was heard by nobody", "task_id", a.g.TaskID, "module_id", a.g.ModuleID,
				"attempt", a.g.Attempt, "node", w.opts.Node, "cause", err)
			w.forget(a, func(s *WorkerStats) { s.Unreported++ })
			return
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return
		}
	}
}

// reportOnce stores a large output first, once.
func (w *Worker) reportOnce(ctx context.Context, a *attempt, rep *FinishReport) error {
	ctx, stop := context.WithTimeout(ctx, a.patience())
	defer stop()
	if len(rep.Result) > w.opts.InlineResult {
		ref, err := w.opts.PutResult(ctx, a.g.LeaseRef, rep.Result)
		if err != nil {
			return err
		}
		rep.Result, rep.ResultRef = nil, ref
	}
	_, err := w.src.Finish(ctx, *rep)
	return err
}

// nobodyAnswered reports whether a report may be repeated: no writer has judged it.
func nobodyAnswered(err error) bool {
	e := module.AsError(err)
	if e == nil {
		return true
	}
	return e.Code == module.CodeTaskStoreUnavailable || e.Code == module.CodeInternal ||
		strings.HasPrefix(string(e.Code), "BUS_") && e.Code != module.CodeBusPayloadTooLarge
}

func (s *WorkerStats) count(rep FinishReport) {
	switch rep.Outcome {
	case OutcomeCompleted:
		s.Completed++
	case OutcomeFailed:
		s.Failed++
	default:
		s.Released++
	}
}

// teller passes on what a module says of its progress: the last word, not too often,
// and never holding the module up. Most modules say nothing, so it begins with the
// first word.
type teller struct {
	w    *Worker
	a    *attempt
	news chan struct{}

	mu      sync.Mutex
	over    bool
	silence context.CancelFunc // nil before the first word
	owned   sync.WaitGroup
}

// report takes one word of the module. After stop nothing is passed on.
func (t *teller) report(p module.ProgressReport) {
	t.a.mu.Lock()
	t.a.progress = &Progress{Done: p.Done, Total: p.Total, Note: p.Note}
	t.a.mu.Unlock()
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.over {
		return
	}
	if t.silence == nil {
		telling, silence := context.WithCancel(t.a.ctx)
		t.news, t.silence = make(chan struct{}, 1), silence
		t.owned.Go(func() { t.run(telling) })
	}
	poke(t.news)
}

// run tells until it is silenced.
func (t *teller) run(telling context.Context) {
	for {
		select {
		case <-t.news:
		case <-telling.Done():
			return
		}
		t.a.mu.Lock()
		p := *t.a.progress
		t.a.mu.Unlock()
		ctx, stop := context.WithTimeout(telling, t.a.patience())
		err := t.w.src.Progress(ctx, ProgressReport{LeaseRef: t.a.g.LeaseRef, Done: p.Done, Total: p.Total, Note: p.Note})
		stop()
		if e := module.AsError(err); e != nil && e.Code == module.CodeTaskLeaseLost {
			t.a.lose()
		}
		select {
		case <-time.After(t.w.opts.ProgressEvery):
		case <-telling.Done():
			return
		}
	}
}

func (t *teller) stop() {
	t.mu.Lock()
	t.over = true
	silence := t.silence
	t.mu.Unlock()
	if silence != nil {
		silence()
		t.owned.Wait()
	}
}
