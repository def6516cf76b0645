package loop

import (
	"context"
	"fmt"
	"runtime/debug"
	"slices"
	"time"

	"github.com/apbus/apbus/module"
)

// Run is one analyzer with its complete parameters.
type Run struct {
	Analyzer Analyzer
	Params   Params
}

// Found is what one analyzer of a pass gave: drafts, or why there are none.
type Found struct {
	ID     string
	Drafts []Draft
	Err    error
}

// Analyze runs the analyzers over one single reading of the records, each record
// handed to whoever looks at its type. An analyzer that fails or panics costs only
// its own findings. The result is in the order of runs; the error is that of the
// reader, or the cause of ctx, and then there is no result. q narrows namespaces
// only: analyzers read live state or their own window.
func Analyze(ctx context.Context, rd Reader, now time.Time, q Query, outcomes []Outcome, runs []Run) ([]Found, error) {
	a := newAnalysis(rd, now, q, outcomes, runs)
	if len(a.q.Types) > 0 {
		if err := a.feed(ctx, a.q, a.passes); err != nil {
			return nil, err
		}
	}
	return a.drafts(ctx), nil
}

// analysis is one pass of several analyzers.
type analysis struct {
	rd     Reader
	q      Query
	in     Input
	runs   []Run
	types  [][]Type // of each run
	passes []*guarded
}

func newAnalysis(rd Reader, now time.Time, q Query, outcomes []Outcome, runs []Run) *analysis {
	a := &analysis{
		rd: rd, q: q, in: Input{Now: now, Outcomes: outcomes}, runs: runs, types: make([][]Type, len(runs)), passes: make([]*guarded, len(runs)),
	}
	a.q.Types, a.q.Since, a.q.Superseded, a.q.AfterSeq, a.q.UpToSeq = nil, now, false, 0, 0
	unbounded := false
	for i, r := range runs {
		m := r.Analyzer.Manifest()
		a.types[i] = m.Types
		g := a.begin(i)
		a.passes[i] = g
		g.try(func() {
			since := g.pass.Since()
			unbounded = unbounded || since.IsZero()
			if since.Before(a.q.Since) {
				a.q.Since = since
			}
		})
		for _, t := range m.Types {
			if !slices.Contains(a.q.Types, t) {
				a.q.Types = append(a.q.Types, t)
			}
		}
	}
	if unbounded {
		a.q.Since = time.Time{}
	}
	return a
}

// begin begins a pass of a run.
func (a *analysis) begin(i int) *guarded {
	g := &guarded{found: Found{ID: a.runs[i].Analyzer.Manifest().ID}}
	in := a.in
	in.Params = a.runs[i].Params
	g.try(func() { g.pass = a.runs[i].Analyzer.Begin(in) })
	return g
}

// feed hands each record to the passes, one a run, that look at its type; nil for
// a run that is not asked.
func (a *analysis) feed(ctx context.Context, q Query, passes []*guarded) error {
	byType := a.byType(passes)
	n := 0
	for r, err := range a.rd.Records(ctx, q) {
		if err := a.reading(ctx, err, &n); err != nil {
			return err
		}
		for _, g := range byType[r.Type] {
			g.add(r)
		}
	}
	return context.Cause(ctx)
}

func (a *analysis) byType(passes []*guarded) map[Type][]*guarded {
	byType := map[Type][]*guarded{}
	for i, g := range passes {
		if g == nil {
			continue
		}
		for _, t := range a.types[i] {
			byType[t] = append(byType[t], g)
		}
	}
	return byType
}

// reading is why a reading ends early: an error of the reader, or now and then that
// ctx has ended.
func (a *analysis) reading(ctx context.Context, err error, n *int) error {
	if err != nil {
		return fmt.Errorf("reading records for analysis: %w", err)
	}
	if *n++; *n%256 == 0 && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return nil
}

func (a *analysis) drafts(ctx context.Context) []Found {
	found := make([]Found, len(a.passes))
	for i, g := range a.passes {
		g.try(func() { g.found.Drafts, g.found.Err = g.pass.Drafts(ctx) })
		if g.found.Err != nil {
			g.found.Drafts = nil
		}
		found[i] = g.found
	}
	return found
}

// guarded is a pass whose panic is its own failure.
type guarded struct {
	pass  Pass
	found Found
}

func (g *guarded) add(r *Record) {
	if g.found.Err != nil {
		return
	}
	defer g.recover()
	g.pass.Add(r)
}

// mergeable reports whether passes can be merged into this one.
func (g *guarded) mergeable() bool { _, ok := g.pass.(mergeable); return ok }

// merge takes what a pass over a part was given.
func (g *guarded) merge(o mergeable) {
	g.try(func() { g.pass.(mergeable).merge(o) })
}

func (g *guarded) try(f func()) {
	if g.found.Err != nil {
		return
	}
	defer g.recover()
	f()
}

func (g *guarded) recover() {
	if v := recover(); v != nil {
		g.found.Err = module.Errorf(module.CodeInternal, "analyzer %s panicked", g.found.ID).
			WithCause(fmt.Errorf("%v\n%s", v, debug.Stack()))
	}
}
