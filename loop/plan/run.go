package plan

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/apbus/apbus/module"
)

// Invoke makes one call. It must return soon after ctx has ended.
type Invoke func(ctx context.Context, moduleID string, inputs map[string]any) (map[string]any, error)

// MaxRuns is how many node runs, retries included, one run of a plan may take.
const MaxRuns = 1_000

// Outcomes of a node run in the [Event] timeline.
const (
	OutcomeOK        = "ok"
	OutcomeError     = "error"
	OutcomeCancelled = "cancelled"
	OutcomeDead      = "dead"
)

// Event is one entry of the timeline: a node ran once, or was found dead.
type Event struct {
	Node       string      `json:"node"`
	Tool       string      `json:"tool,omitempty"`
	Generation int         `json:"generation"`
	Attempt    int         `json:"attempt,omitempty"`
	Outcome    string      `json:"outcome"`
	Code       module.Code `json:"code,omitempty"`
	// StartedMS and EndedMS are Unix milliseconds.
	StartedMS int64 `json:"started_ms,omitempty"`
	EndedMS   int64 `json:"ended_ms,omitempty"`
}

// Result is what a run did.
type Result struct {
	// Outputs are the newest outputs by node.
	Outputs  map[string]map[string]any
	Timeline []Event
	// Trace is what else a journal wants to know, nil unless it was asked for.
	Trace *Trace
}

// Options of a run.
type Options struct {
	// Now is the clock of the timeline, time.Now when nil.
	Now func() time.Time
	// OnEvent is told of each event as it happens, one at a time.
	OnEvent func(Event)
	// Parallel bounds the nodes that run at once, default 8.
	Parallel int
	// Trace has [Result.Trace] filled in.
	Trace bool
}

// Run executes the plan on inputs. The plan must be valid and each node must have
// a tool. A failed node, after its retries, ends the run: the error is that of the
// node, wrapped with its ID, and of several that of the first by position. When
// ctx ends, running nodes are cancelled and waited for, and the error is the
// context's cause. The result holds what happened so far also on error.
func Run(ctx context.Context, p *Plan, inputs map[string]any, invoke Invoke, o Options) (*Result, error) {
	for _, n := range p.Nodes {
		if n.Tool == "" {
			return nil, invalid("node %.64q has no module to call", n.ID)
		}
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Parallel <= 0 {
		o.Parallel = 8
	}
	if inputs == nil {
		inputs = map[string]any{}
	}
	r, err := newRun(p, inputs)
	if err != nil {
		return nil, err
	}
	r.invoke, r.o, r.slots = invoke, o, make(chan struct{}, o.Parallel)
	r.nodes, r.holds = r.wave, r.evaluate
	if o.Trace {
		r.result.Trace = newTrace(inputs)
	}
	err = r.all(ctx)
	return r.result, err
}

// newRun prepares what an execution and a replay have in common.
func newRun(p *Plan, inputs map[string]any) (*run, error) {
	conds := make([]Cond, len(p.Edges))
	for i, e := range p.Edges {
		if e.Cond == "" {
			continue
		}
		c, err := ParseCond(e.Cond)
		if err != nil {
			return nil, invalid("edge %d: %w", i, err)
		}
		conds[i] = c
	}
	return &run{
		g: newGraph(p), conds: conds, inputs: inputs, fired: make([]int, len(p.Edges)), latest: make(map[string]int),
		result: &Result{Outputs: make(map[string]map[string]any)},
	}, nil
}

// run is one execution. Components are executed as soon as all before them are at
// rest; inside a component generations follow each other, and inside a generation
// waves of nodes that are ready together. What a node or a condition sees does not
// depend on timing: outputs of the components before and of earlier waves.
type run struct {
	g      *graph
	conds  []Cond
	invoke Invoke
	o      Options
	inputs map[string]any
	slots  chan struct{}
	// nodes runs nodes together, and holds decides a condition: both by doing so, or,
	// in a replay, by what a journal says.
	nodes func(ctx context.Context, nodes []int, generation int, at *view) (ran map[int]bool, failed []nodeError)
	holds func(e, generation int, at *view) (bool, error)

	mu     sync.Mutex
	fired  []int // how often each edge fired
	runs   int
	latest map[string]int // the generation of each node's newest output
	result *Result
}

// view is the state as nodes and conditions see it, with the generation that each
// node's output in it is of.
type view struct {
	state map[string]any
	from  map[string]int
}

// nodeError is a failed node.
type nodeError struct {
	node int
	err  error
}

// runError is the end of a run that a node failed.
type runError struct {
	node string
	err  error
}

func (e *runError) Error() string { return fmt.Sprintf("plan node %s: %v", e.node, e.err) }

func (e *runError) Unwrap() error { return e.err }

// failedNode is the node that failed a run.
func failedNode(err error) (node string, ok bool) {
	var e *runError
	if !errors.As(err, &e) {
		return "", false
	}
	return e.node, true
}

// errNodeFailed is why the siblings of a failed node are cancelled.
var errNodeFailed = errors.New("another node of the plan failed")

func (r *run) all(ctx context.Context) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	done := make([]chan struct{}, len(r.g.members))
	for c := range done {
		done[c] = make(chan struct{})
	}
	var failures []nodeError
	var wg sync.WaitGroup
	for c := range r.g.members {
		wg.Go(func() {
			defer close(done[c])
			for _, before := range r.g.before(c) {
				<-done[before]
			}
			if failed := r.component(ctx, c); len(failed) > 0 {
				r.mu.Lock()
				failures = append(failures, failed...)
				r.mu.Unlock()
				stop(errNodeFailed)
			}
		})
	}
	wg.Wait()
	slices.SortFunc(failures, func(a, b nodeError) int { return a.node - b.node })
	for _, f := range failures {
		// What the failure of another node cancelled is not what went wrong.
		if !errors.Is(f.err, errNodeFailed) {
			return &runError{r.g.p.Nodes[f.node].ID, f.err}
		}
	}
	return context.Cause(ctx)
}

// component runs the nodes of one component until no edge leads back any more.
func (r *run) component(ctx context.Context, c int) []nodeError {
	at := r.view(c)
	token := make(map[int]bool) // nodes that are begun from outside, or by an edge back
	for _, v := range r.g.members[c] {
		token[v] = v == 0
		for _, e := range r.g.in[v] {
			token[v] = token[v] || !r.g.inner(e) && r.hasFired(e)
		}
	}
	for generation := 1; ctx.Err() == nil; generation++ {
		next, failed := r.generation(ctx, c, generation, token, at)
		if len(failed) > 0 || len(next) == 0 {
			return failed
		}
		token = next
	}
	return nil
}

// view is the state as component c finds it: the inputs, and the outputs of all
// components before it, which are at rest.
func (r *run) view(c int) *view {
	at := &view{state: map[string]any{stateInput: r.inputs}, from: map[string]int{}}
	seen := map[int]bool{c: true}
	todo := r.g.before(c)
	r.mu.Lock()
	defer r.mu.Unlock()
	for len(todo) > 0 {
		b := todo[0]
		todo = todo[1:]
		if seen[b] {
			continue
		}
		seen[b] = true
		todo = append(todo, r.g.before(b)...)
		for _, v := range r.g.members[b] {
			id := r.g.p.Nodes[v].ID
			if out, ok := r.result.Outputs[id]; ok {
				at.state[id], at.from[id] = out, r.latest[id]
			}
		}
	}
	return at
}

func (r *run) hasFired(e int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.fired[e] > 0
}

// generation runs the nodes of a component once, in the order of its forward
// edges, and returns the nodes at which edges that lead back begin the next one.
func (r *run) generation(ctx context.Context, c, generation int, token map[int]bool, at *view) (map[int]bool, []nodeError) {
	members := slices.Sorted(slices.Values(r.g.members[c]))
	waiting := make(map[int]int) // unresolved forward edges inside the component
	for _, v := range members {
		for _, e := range r.g.in[v] {
			if r.g.inner(e) && !r.g.back[e] {
				waiting[v]++
			}
		}
	}
	alive := make(map[int]bool)
	next := make(map[int]bool)
	wave := slices.DeleteFunc(slices.Clone(members), func(v int) bool { return waiting[v] > 0 })
	for len(wave) > 0 {
		live := slices.DeleteFunc(slices.Clone(wave), func(v int) bool { return !token[v] && !alive[v] })
		ran, failed := r.nodes(ctx, live, generation, at)
		if len(failed) > 0 {
			return nil, failed
		}
		var ready []int
		for _, v := range wave {
			if !ran[v] && generation == 1 {
				r.record(Event{Node: r.g.p.Nodes[v].ID, Tool: r.g.p.Nodes[v].Tool, Generation: generation, Outcome: OutcomeDead})
			}
			for _, e := range r.g.out[v] {
				fires := false
				if ran[v] {
					var err error
					if fires, err = r.fire(e, generation, at); err != nil {
						return nil, []nodeError{{v, err}}
					}
				}
				w := r.g.dst[e]
				switch {
				case !r.g.inner(e):
				case r.g.back[e]:
					if fires {
						next[w] = true
					}
				default:
					alive[w] = alive[w] || fires
					if waiting[w]--; waiting[w] == 0 {
						ready = append(ready, w)
					}
				}
			}
		}
		slices.Sort(ready)
		wave = ready
	}
	return next, nil
}

// fire decides whether an edge fires now and counts it.
func (r *run) fire(e, generation int, at *view) (bool, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if limit := r.g.p.Edges[e].MaxCycles; limit != nil && r.fired[e] >= *limit {
		return false, nil
	}
	holds, err := r.holds(e, generation, at)
	if err != nil || !holds {
		return false, err
	}
	r.fired[e]++
	return true, nil
}

// evaluate decides a condition by the state. The lock is held.
func (r *run) evaluate(e, generation int, at *view) (bool, error) {
	holds := r.conds[e].Eval(at.state)
	if t := r.result.Trace; t != nil && r.conds[e].op != condAlways {
		t.Decisions = append(t.Decisions, Decision{
			Edge: e, Generation: generation, Held: holds, Reads: at.reads(r.conds[e].path),
		})
	}
	return holds, nil
}

// reads are the generations of the outputs that the paths begin at, nil where they
// begin at nothing but the inputs.
func (at *view) reads(paths ...[]string) map[string]int {
	var reads map[string]int
	for _, path := range paths {
		if root := path[0]; root != stateInput {
			if reads == nil {
				reads = make(map[string]int, len(paths))
			}
			reads[root] = at.from[root]
		}
	}
	return reads
}

// wave runs nodes together and waits for all of them. The first that fails cancels
// the others. Outputs become visible when the wave has ended.
func (r *run) wave(ctx context.Context, nodes []int, generation int, at *view) (ran map[int]bool, failed []nodeError) {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	outputs := make([]map[string]any, len(nodes))
	errs := make([]error, len(nodes))
	var wg sync.WaitGroup
	for i, v := range nodes {
		wg.Go(func() {
			if outputs[i], errs[i] = r.node(ctx, v, generation, at); errs[i] != nil {
				stop(errNodeFailed)
			}
		})
	}
	wg.Wait()
	ran = make(map[int]bool, len(nodes))
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, v := range nodes {
		if errs[i] != nil {
			failed = append(failed, nodeError{v, errs[i]})
			continue
		}
		ran[v] = true
		r.show(r.g.p.Nodes[v].ID, generation, outputs[i], at)
	}
	return ran, failed
}

// show makes an output the newest of its node. The lock is held.
func (r *run) show(id string, generation int, output map[string]any, at *view) {
	at.state[id], at.from[id] = output, generation
	r.result.Outputs[id], r.latest[id] = output, generation
}

// node runs one node with its retries, which follow at once.
func (r *run) node(ctx context.Context, v, generation int, at *view) (map[string]any, error) {
	select {
	case r.slots <- struct{}{}:
		defer func() { <-r.slots }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	n := r.g.p.Nodes[v]
	inputs, reads := r.inputsOf(n, at)
	for attempt := 1; ; attempt++ {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if !r.count() {
			return nil, errTooMany()
		}
		event := Event{Node: n.ID, Tool: n.Tool, Generation: generation, Attempt: attempt, Outcome: OutcomeOK, StartedMS: r.o.Now().UnixMilli()}
		out, err := r.invoke(ctx, n.Tool, inputs)
		event.EndedMS = r.o.Now().UnixMilli()
		switch {
		case err == nil:
			if out == nil {
				out = map[string]any{}
			}
			r.record(event)
			r.trace(Step{Event: event, Inputs: inputs, Output: out, Reads: reads})
			return out, nil
		case ctx.Err() != nil:
			event.Outcome, event.Code, err = OutcomeCancelled, module.CodeExecutionCancelled, context.Cause(ctx)
		default:
			event.Outcome, event.Code = OutcomeError, module.CodeOf(err)
		}
		r.record(event)
		r.trace(Step{Event: event, Inputs: inputs, Reads: reads, Final: !mayRetry(err)})
		if attempt > r.g.p.Retries[n.ID] || !mayRetry(err) {
			return nil, err
		}
	}
}

func errTooMany() error {
	return module.Errorf(module.CodeModuleExecuteError, "the plan has run more than %d nodes", MaxRuns)
}

// mayRetry is false for failures that say themselves that another attempt is
// useless.
func mayRetry(err error) bool {
	var coded *module.Error
	return !errors.As(err, &coded) || coded.Retryable != module.False
}

// count counts a node run, false when there were too many.
func (r *run) count() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.runs++
	return r.runs <= MaxRuns
}

// inputsOf puts a node's inputs together, and tells which outputs they are made of.
func (r *run) inputsOf(n Node, at *view) (inputs map[string]any, reads map[string]int) {
	bindings, bound := r.g.p.Bindings[n.ID]
	if !bound {
		if own, ok := r.inputs[n.ID].(map[string]any); ok {
			return own, nil
		}
		return r.inputs, nil
	}
	inputs = make(map[string]any, len(bindings))
	paths := make([][]string, 0, len(bindings))
	for name, from := range bindings {
		if path, ok := parsePath(from); ok {
			paths = append(paths, path)
			if v, there := lookup(at.state, path); there {
				inputs[name] = v
			}
		}
	}
	return inputs, at.reads(paths...)
}

func (r *run) record(e Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.result.Timeline = append(r.result.Timeline, e)
	if r.o.OnEvent != nil {
		r.o.OnEvent(e)
	}
}
