package plan

import (
	"context"
	"errors"
	"maps"
	"strings"

	"github.com/apbus/apbus/module"
)

// Replayed is what a plan does in the place of the one that a journaled run is of.
type Replayed struct {
	// Known is false when the plan would do something that the run did not, of which the
	// journal therefore knows nothing: it would run a node that did not run, or not that
	// often, or with outputs of others that did not come about; or a condition needs a
	// value that was redacted or left out.
	Known bool
	// Done is true for a run that no node fails and that gets to an end: of a plan with
	// nodes that nothing follows, one of these runs.
	Done bool
	// Failed and Code are the node that fails it, "" for none.
	Failed string
	Code   module.Code
	// Calls is how many calls it makes, as far as that is known.
	Calls int
}

// errUnknown says that the journal does not know what would happen.
var errUnknown = errors.New("the journal does not know")

// Replay runs candidate over a journaled run of live: what the nodes of that run came to
// stands in for their calls, and a condition that both plans have and that reads the
// same outputs is decided as it was. Nothing is called. The two plans have the same
// nodes and edges up to what [Plan.Revise] changes, else the error is
// GENERAL_INVALID_INPUT; and the cause of ctx when that ends. It is a function of its
// other arguments.
//
// A failure that is known decides over what is not known elsewhere, since the first
// failure ends a run.
func Replay(ctx context.Context, live, candidate *Plan, record *RunRecord) (Replayed, error) {
	if !sameShape(live, candidate) {
		return Replayed{}, invalid("the plans differ in more than a revision does")
	}
	r, err := newRun(candidate, record.Inputs)
	if err != nil {
		return Replayed{}, err
	}
	p := &replay{run: r, live: live, record: record, steps: map[stepKey]*RecordedStep{}, decisions: map[decisionKey]*Decision{}}
	for i := range record.Steps {
		s := &record.Steps[i]
		p.steps[stepKey{s.Node, s.Generation, s.Attempt}] = s
		if s.Outcome == OutcomeOK {
			p.steps[stepKey{s.Node, s.Generation, gave}] = s
		}
	}
	for i := range record.Decisions {
		d := &record.Decisions[i]
		p.decisions[decisionKey{d.Edge, d.Generation}] = d
	}
	r.nodes, r.holds = p.wave, p.decide
	return p.all(ctx)
}

// sameShape reports whether a run of one plan can stand in for one of the other.
func sameShape(a, b *Plan) bool {
	if len(a.Nodes) != len(b.Nodes) || len(a.Edges) != len(b.Edges) || len(a.Bindings) != len(b.Bindings) {
		return false
	}
	for i := range a.Nodes {
		if a.Nodes[i].ID != b.Nodes[i].ID || a.Nodes[i].Tool != b.Nodes[i].Tool {
			return false
		}
	}
	for i := range a.Edges {
		if a.Edges[i].Src != b.Edges[i].Src || a.Edges[i].Dst != b.Edges[i].Dst {
			return false
		}
	}
	return maps.EqualFunc(a.Bindings, b.Bindings, maps.Equal[map[string]string, map[string]string])
}

// stepKey names an attempt, or with gave the one that gave an output.
type stepKey struct {
	node                string
	generation, attempt int
}

const gave = -1

type decisionKey struct{ edge, generation int }

// replay is a run without calls, in one goroutine and in one order.
type replay struct {
	*run
	live      *Plan
	record    *RunRecord
	steps     map[stepKey]*RecordedStep
	decisions map[decisionKey]*Decision
	calls     int
}

// all runs the components one after the other, each after those before it. What comes
// after something that is not known is not known either.
func (p *replay) all(ctx context.Context) (Replayed, error) {
	result := Replayed{Known: true}
	stopped := make([]bool, len(p.g.members))
	var first *nodeError
	for c := range p.g.members {
		for _, before := range p.g.before(c) {
			stopped[c] = stopped[c] || stopped[before]
		}
		if stopped[c] {
			continue
		}
		for _, f := range p.component(ctx, c) {
			stopped[c] = true
			switch {
			case errors.Is(f.err, errUnknown):
				result.Known = false
			case first == nil || f.node < first.node:
				first = &f
			}
		}
	}
	if ctx.Err() != nil {
		return Replayed{}, context.Cause(ctx)
	}
	result.Calls = p.calls
	switch {
	case first != nil:
		result.Known, result.Failed, result.Code = true, p.g.p.Nodes[first.node].ID, module.CodeOf(first.err)
	case result.Known:
		result.Done = p.ended()
	}
	return result, nil
}

// ended reports whether a node that nothing follows has run, or there is none.
func (p *replay) ended() bool {
	ends := false
	for v, out := range p.g.out {
		if len(out) > 0 {
			continue
		}
		if p.latest[p.g.p.Nodes[v].ID] > 0 {
			return true
		}
		ends = true
	}
	return !ends
}

// wave takes the place of run.wave.
func (p *replay) wave(_ context.Context, nodes []int, generation int, at *view) (ran map[int]bool, failed []nodeError) {
	ran = make(map[int]bool, len(nodes))
	outputs := make(map[int]map[string]any, len(nodes))
	for _, v := range nodes {
		out, err := p.node(v, generation, at)
		if err != nil {
			failed = append(failed, nodeError{v, err})
			continue
		}
		outputs[v] = out
	}
	for v, out := range outputs {
		ran[v] = true
		p.show(p.g.p.Nodes[v].ID, generation, out, at)
	}
	return ran, failed
}

// node takes the place of run.node: the attempts are those that were recorded.
func (p *replay) node(v, generation int, at *view) (map[string]any, error) {
	n := p.g.p.Nodes[v]
	_, reads := p.inputsOf(n, at)
	for attempt := 1; ; attempt++ {
		if !p.count() {
			return nil, errTooMany()
		}
		s := p.steps[stepKey{n.ID, generation, attempt}]
		if s == nil || s.Tool != n.Tool || !maps.Equal(s.Reads, reads) {
			return nil, errUnknown
		}
		switch s.Outcome {
		case OutcomeOK:
			p.calls++
			if s.Output == nil {
				return map[string]any{}, nil
			}
			return s.Output, nil
		case OutcomeError:
			p.calls++
		default: // it was cut short, nobody knows by what it would have ended
			return nil, errUnknown
		}
		if s.Final || attempt > p.g.p.Retries[n.ID] {
			return nil, &module.Error{Code: s.Code}
		}
	}
}

// decide takes the place of run.evaluate.
func (p *replay) decide(e, generation int, at *view) (bool, error) {
	c := p.conds[e]
	if c.op == condAlways {
		return true, nil
	}
	if p.live.Edges[e].Cond == p.g.p.Edges[e].Cond {
		if d := p.decisions[decisionKey{e, generation}]; d != nil && maps.Equal(d.Reads, at.reads(c.path)) {
			return d.Held, nil
		}
	}
	root := c.path[0]
	if root == stateInput {
		if p.record.InputsLeftOut {
			return false, errUnknown
		}
	} else if s := p.steps[stepKey{root, at.from[root], gave}]; s != nil && s.LeftOut {
		return false, errUnknown
	}
	if !c.told(at.state, p.record.Mask) {
		return false, errUnknown
	}
	return c.Eval(at.state), nil
}

// told reports whether a condition can be decided though some values are masked.
func (c Cond) told(state map[string]any, mask string) bool {
	masked := func(v any) bool {
		s, ok := v.(string)
		return ok && mask != "" && strings.Contains(s, mask)
	}
	var v any = state
	for _, seg := range c.path {
		m, ok := v.(map[string]any)
		if !ok {
			return !masked(v)
		}
		if v, ok = m[seg]; !ok {
			// A key may have been masked too.
			for key := range m {
				if masked(key) {
					return false
				}
			}
			return true
		}
	}
	return c.op == condExists || !masked(v)
}
