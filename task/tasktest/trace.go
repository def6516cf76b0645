package tasktest

import (
	"context"
	"fmt"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/apbus/apbus/module"
	"github.com/apbus/apbus/task"
)

// TraceClient is whatever has the methods of a writer.
type TraceClient interface {
	task.Service
	task.WorkSource
}

// Deposed is a writer that another one has followed.
type Deposed interface {
	Get(ctx context.Context, id string) (task.Record, error)
	Cancel(ctx context.Context, ask task.CancelAsk) (task.CancelAnswer, error)
}

// TraceStage is what a trace acts on: writers over one log, in a synctest bubble.
type TraceStage interface {
	// Client reaches the writer that leads, and may be asked for again after each of
	// the others.
	Client() TraceClient
	// Crash ends the writer that leads and returns when another one leads. What else
	// goes down, n chooses.
	Crash(n int)
	// Depose returns when another writer leads, of which the one before does not know.
	Depose() Deposed
}

// TraceOptions sets what a trace expects of the writers of its stage.
func TraceOptions(o *task.WriterOptions) {
	o.HeldBytes, o.MaxBatch = 3000, 4
	o.Jitter = func() float64 { return 1 }
	o.Describe = func(id string) (task.Described, bool) {
		d := module.Descriptor{ID: id, InputSchema: map[string]any{"type": "object"}, OutputSchema: map[string]any{"type": "object"}}
		d.Annotations.Idempotent = id == traceSafe
		return task.Described{Descriptor: d, Hosts: 1}, id == traceSafe || id == traceEffect
	}
}

// The modules of a trace: one that may run twice, and one that may not.
const (
	traceSafe   = "job.safe"
	traceEffect = "job.effect"
)

// Step is one thing that happens in a trace; what its numbers mean depends on the
// kind.
type Step struct {
	Kind string
	A, B int
}

var stepKinds = [...]string{
	"submit", "submit", "submit", "claim", "claim", "claim", "start", "start", "renew", "progress", "checkpoint",
	"succeed", "succeed", "fail", "refuse", "pend", "abort", "release", "cancel", "stale", "short", "long", "lease",
	"crash", "depose", "pause", "resume", "wake", "deny", "retry", "requeue", "ghost", "bulk",
}

// Steps draws a trace.
func Steps(rt *rapid.T, most int) []Step {
	return rapid.SliceOfN(rapid.Custom(func(rt *rapid.T) Step {
		return Step{rapid.SampledFrom(stepKinds[:]).Draw(rt, "kind"), rapid.IntRange(0, 1000).Draw(rt, "a"), rapid.IntRange(0, 7).Draw(rt, "b")}
	}), 1, most).Draw(rt, "steps")
}

// Play plays a trace on a stage, judging every answer by what the trace itself
// knows, then heals everything and has good nodes work until every task has ended.
// It returns what is wrong, "" for nothing. It must be called in a synctest bubble.
func Play(stage TraceStage, steps []Step) (complaint string) {
	m := &model{TraceClient: stage.Client(), stage: stage}
	for i, s := range steps {
		if m.do(s); m.wrong != "" {
			return fmt.Sprintf("after step %d %+v: %s", i, s, m.wrong)
		}
	}
	if m.converge(); m.wrong != "" {
		return "at the end: " + m.wrong
	}
	return ""
}

// pass lets time pass and everything that is due happen.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}
