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
	passes := make([]*guarded, len(runs))
	byType := map[Type][]*guarded{}
	q.Types, q.Since, q.Superseded, q.AfterSeq = nil, now, false, 0
	unbounded := false
	for i, r := range runs {
		m := r.Analyzer.Manifest()
		g := &guarded{found: Found{ID: m.ID}}
		passes[i] = g
		g.try(func() {
			g.pass = r.Analyzer.Begin(Input{Now: now, Params: r.Params, Outcomes: outcomes})
			since := g.pass.Since()
			unbounded = unbounded || since.IsZero()
			if since.Before(q.Since) {
				q.Since = since
			}
		})
		for _, t := range m.Types {
			byType[t] = append(byType[t], g)
			if !slices.Contains(q.Types, t) {
				q.Types = append(q.Types, t)
			}
		}
	}
	if unbounded {
		q.Since = time.Time{}
	}
	if len(q.Types) > 0 {
		if err := feed(ctx, rd, q, byType); err != nil {
			return nil, err
		}
	}
	found := make([]Found, len(passes))
	for i, g := range passes {
		g.try(func() { g.found.Drafts, g.found.Err = g.pass.Drafts(ctx) })
		if g.found.Err != nil {
			g.found.Drafts = nil
		}
		found[i] = g.found
	}
	return found, nil
}

func feed(ctx context.Context, rd Reader, q Query, byType map[Type][]*guarded) error {
	n := 0
	for r, err := range rd.Records(ctx, q) {
		if err != nil {
			return fmt.Errorf("reading records for analysis: %w", err)
		}
		if n++; n%256 == 0 && ctx.Err() != nil {
			return context.Cause(ctx)
		}
		for _, g := range byType[r.Type] {
			g.add(r)
		}
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return nil
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
