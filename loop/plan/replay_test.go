package plan_test

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"strings"
	"testing"

	"github.com/apbus/apbus/loop/plan"
	"github.com/apbus/apbus/module"
	"github.com/apbus/apbus/schema"
	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// hash is one that a plan could have.
var hash = strings.Repeat("a1", 32)

// open keeps every value: nothing is sensitive.
func open() *plan.Redaction {
	r, err := schema.NewRedactor(schema.RedactOptions{SensitiveKeys: []string{}})
	if err != nil {
		panic(err)
	}
	return &plan.Redaction{Redactor: r, Schemas: func(string, map[string]any) (in, out *schema.Compiled, known bool) { return nil, nil, true }}
}

type failer interface {
	Helper()
	Fatal(...any)
}

// journaled runs a plan and returns its record, as it comes back from the journal.
func journaled(t failer, p *plan.Plan, inputs map[string]any, invoke plan.Invoke, hide *plan.Redaction) *plan.RunRecord {
	t.Helper()
	res, err := plan.Run(context.Background(), p, inputs, invoke, plan.Options{Trace: true})
	raw, encErr := plan.NewRunRecord(p, plan.RunAbout{Plan: "plan.x", PlanHash: hash, StartedMS: 1, EndedMS: 2}, res, err, hide).Encode()
	if encErr != nil {
		t.Fatal(encErr)
	}
	r, _, decErr := plan.DecodeRunRecord(raw)
	if decErr != nil {
		t.Fatal(decErr)
	}
	return r
}

func edits(list ...any) (out []plan.Edit) {
	for i := 0; i < len(list); i += 3 {
		out = append(out, plan.Edit{Path: list[i].(string), From: list[i+1], To: list[i+2]})
	}
	return out
}

func TestReplay(t *testing.T) {
	fails := func(times int, final bool) func(int) (map[string]any, error) {
		return func(n int) (map[string]any, error) {
			if n < times {
				e := module.Errorf(module.CodeModuleExecuteError, "no")
				if final {
					e.Retryable = module.False
				}
				return nil, e
			}
			return map[string]any{"ok": true}, nil
		}
	}
	count := func(n int) (map[string]any, error) { return map[string]any{"n": int64(n)}, nil }
	tests := []struct {
		name    string
		plan    *plan.Plan
		retries map[string]int
		answer  map[string]func(int) (map[string]any, error)
		edits   []plan.Edit
		want    string
	}{
		{name: "the same", plan: graph("a b", "a>b"), want: "done, 2 calls"},
		{name: "the same, failing", plan: graph("a b", "a>b"), answer: map[string]func(int) (map[string]any, error){"m.b": fails(1, false)}, want: "b fails, 2 calls"},
		{
			name: "more retries than were tried", plan: graph("a b", "a>b"), answer: map[string]func(int) (map[string]any, error){"m.b": fails(1, false)},
			edits: edits("retries.b", nil, int64(1)), want: "unknown, 2 calls",
		},
		{
			name: "more retries of what is useless to retry", plan: graph("a b", "a>b"), answer: map[string]func(int) (map[string]any, error){"m.b": fails(1, true)},
			edits: edits("retries.b", nil, int64(1)), want: "b fails, 2 calls",
		},
		{
			name: "more retries than were needed", plan: graph("a b", "a>b"), retries: map[string]int{"b": 1}, answer: map[string]func(int) (map[string]any, error){"m.b": fails(1, false)},
			edits: edits("retries.b", int64(1), int64(5)), want: "done, 3 calls",
		},
		{
			name: "fewer retries than were needed", plan: graph("a b", "a>b"), retries: map[string]int{"b": 2}, answer: map[string]func(int) (map[string]any, error){"m.b": fails(1, false)},
			edits: edits("retries.b", int64(2), int64(0)), want: "b fails, 2 calls",
		},
		{
			name: "a condition that lets the end go", plan: graph("a b", "a>b"), answer: map[string]func(int) (map[string]any, error){"m.a": out("x", int64(1))},
			edits: edits("edges.0.cond", nil, "a.x == 2"), want: "no end, 1 calls",
		},
		{
			name: "a condition that holds as before", plan: graph("a b", "a>b a.x == 1"), answer: map[string]func(int) (map[string]any, error){"m.a": out("x", int64(1))},
			edits: edits("edges.0.cond", "a.x == 1", "a.x exists"), want: "done, 2 calls",
		},
		{
			name: "a node that did not run", plan: graph("a b c", "a>b a.x", "a>c"), answer: map[string]func(int) (map[string]any, error){"m.a": out("x", false)},
			edits: edits("edges.0.cond", "a.x", "!a.x"), want: "unknown, 2 calls",
		},
		{
			name: "a failure that leaves nothing open", plan: graph("a b c", "a>b a.x", "a>c"),
			answer: map[string]func(int) (map[string]any, error){"m.a": out("x", false), "m.c": fails(1, false)},
			edits:  edits("edges.0.cond", "a.x", "!a.x"), want: "c fails, 2 calls",
		},
		{
			name: "what did not run keeps what follows unknown", plan: graph("a b c d", "a>b a.x", "a>c", "b>d", "c>d"), answer: map[string]func(int) (map[string]any, error){"m.a": out("x", false)},
			edits: edits("edges.0.cond", "a.x", "!a.x"), want: "unknown, 2 calls",
		},
		{
			name: "a shorter loop", plan: graph("a b", "a>a:5 a.n != 3", "a>b"), answer: map[string]func(int) (map[string]any, error){"m.a": count},
			edits: edits("edges.0.max_cycles", int64(5), int64(1)), want: "done, 3 calls",
		},
		{
			name: "a longer loop", plan: graph("a b", "a>a:1 a.n != 3", "a>b"), answer: map[string]func(int) (map[string]any, error){"m.a": count},
			edits: edits("edges.0.max_cycles", int64(1), int64(4)), want: "unknown, 2 calls",
		},
		{
			name: "a longer bound of a loop that its condition ends", plan: graph("a b", "a>a:5 a.n != 2", "a>b"), answer: map[string]func(int) (map[string]any, error){"m.a": count},
			edits: edits("edges.0.max_cycles", int64(5), int64(50)), want: "done, 4 calls",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tt.plan.Retries = tt.retries
			next := tt.plan
			if len(tt.edits) > 0 {
				var err error
				if next, err = tt.plan.Revise(tt.edits); err != nil {
					t.Fatal(err)
				}
			}
			r := journaled(t, tt.plan, nil, newCalls(tt.answer).invoke, open())
			for range 3 {
				got, err := plan.Replay(context.Background(), tt.plan, next, r)
				if err != nil || verdict(got) != tt.want {
					t.Errorf("%s, %v, want %s", verdict(got), err, tt.want)
				}
			}
		})
	}
}

func verdict(r plan.Replayed) string {
	end := "no end"
	switch {
	case !r.Known:
		end = "unknown"
	case r.Failed != "":
		end = r.Failed + " fails"
	case r.Done:
		end = "done"
	}
	return fmt.Sprintf("%s, %d calls", end, r.Calls)
}

// What a node was given is part of what it came to: where another output would have been
// handed to it, the one that is recorded does not stand in.
func TestReplayKnowsWhereInputsCameFrom(t *testing.T) {
	p := graph("a b", "a>a:3 a.n != 2", "a>b")
	p.Bindings = map[string]map[string]string{"b": {"n": "a.n"}}
	count := func(n int) (map[string]any, error) { return map[string]any{"n": int64(n)}, nil }
	r := journaled(t, p, nil, newCalls(map[string]func(int) (map[string]any, error){"m.a": count}).invoke, open())
	next, err := p.Revise(edits("edges.0.max_cycles", int64(3), int64(1)))
	if err != nil {
		t.Fatal(err)
	}
	if got, _ := plan.Replay(context.Background(), p, next, r); got.Known {
		t.Errorf("%s, though b would have been given n of the second round", verdict(got))
	}
	if _, err := plan.Replay(context.Background(), p, graph("a c", "a>a:3", "a>c"), r); module.CodeOf(err) != module.CodeInvalidInput {
		t.Errorf("another plan: %v", err)
	}
}

// A condition that is not touched is decided as it was, though what it read is not kept.
// One that is touched cannot be decided without.
func TestReplayWithoutValues(t *testing.T) {
	p := graph("a b c", "a>b a.x == 1", "b>c input.go")
	answer := map[string]func(int) (map[string]any, error){"m.a": out("x", int64(1))}
	in := map[string]any{"go": true}
	marked, err := schema.Compile(map[string]any{"type": "object", "properties": map[string]any{"x": map[string]any{"x-sensitive": true}}})
	if err != nil {
		t.Fatal(err)
	}
	masked := open()
	masked.Schemas = func(id string, _ map[string]any) (input, output *schema.Compiled, known bool) {
		if id == "m.a" {
			return nil, marked, true
		}
		return nil, nil, true
	}
	unknown := open()
	unknown.Schemas = func(string, map[string]any) (input, output *schema.Compiled, known bool) { return nil, nil, false }
	tests := []struct {
		name  string
		hide  *plan.Redaction
		edits []plan.Edit
		want  string
	}{
		{name: "masked, untouched", hide: masked, edits: edits("retries.c", nil, int64(1)), want: "done, 3 calls"},
		{name: "masked, touched", hide: masked, edits: edits("edges.0.cond", "a.x == 1", "a.x == 2"), want: "unknown, 1 calls"},
		{name: "masked, only asked whether it is there", hide: masked, edits: edits("edges.0.cond", "a.x == 1", "a.x exists"), want: "done, 3 calls"},
		{name: "masked, below", hide: masked, edits: edits("edges.0.cond", "a.x == 1", "a.x.y exists"), want: "unknown, 1 calls"},
		{name: "masked, something else is not there", hide: masked, edits: edits("edges.0.cond", "a.x == 1", "!a.y"), want: "done, 3 calls"},
		{name: "left out, untouched", hide: unknown, edits: edits("retries.c", nil, int64(1)), want: "done, 3 calls"},
		{name: "left out, touched", hide: unknown, edits: edits("edges.0.cond", "a.x == 1", "a exists"), want: "unknown, 1 calls"},
		{name: "inputs left out, touched", hide: unknown, edits: edits("edges.1.cond", "input.go", "!input.stop"), want: "unknown, 2 calls"},
		{name: "nobody redacts", hide: nil, edits: edits("edges.1.cond", "input.go", "!input.stop"), want: "unknown, 2 calls"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := journaled(t, p, in, newCalls(answer).invoke, tt.hide)
			next, err := p.Revise(tt.edits)
			if err != nil {
				t.Fatal(err)
			}
			if got, err := plan.Replay(context.Background(), p, next, r); err != nil || verdict(got) != tt.want {
				t.Errorf("%s, %v, want %s", verdict(got), err, tt.want)
			}
		})
	}
}

// pure answers by what it is asked and nothing else, so that a run can be made again.
func pure(_ context.Context, id string, in map[string]any) (map[string]any, error) {
	h := fnv.New32a()
	raw, err := schema.CanonicalJSON(in)
	if err != nil {
		return nil, err
	}
	fmt.Fprint(h, id, string(raw))
	n := h.Sum32()
	if n%5 == 0 {
		e := module.Errorf(module.CodeModuleExecuteError, "no")
		e.Retryable = module.TriOf(n%2 == 0)
		return nil, e
	}
	return map[string]any{"x": n%3 == 0, "n": int64(n % 4)}, nil
}

// Whatever the plan and its revision: where a replay says how a run ends, the run ends
// so, and the plan itself is always known.
func TestReplayTellsTheTruth(t *testing.T) {
	told := 0
	rapid.Check(t, func(t *rapid.T) {
		p := randomPlan(t)
		in := map[string]any{"go": rapid.Bool().Draw(t, "go"), "seed": int64(rapid.IntRange(0, 1000).Draw(t, "seed"))}
		r := journaled(t, p, in, pure, open())
		same, err := plan.Replay(context.Background(), p, p, r)
		if err != nil {
			t.Fatal(err)
		}
		if !same.Known || (same.Failed == "") != (r.Outcome == plan.OutcomeOK) {
			t.Fatalf("the run ended with %s %s, its replay: %s", r.Outcome, r.Failed, verdict(same))
		}
		next := p.Clone()
		for i := range next.Edges {
			switch rapid.IntRange(0, 3).Draw(t, "edit") {
			case 0:
				next.Edges[i].Cond = randomCond(t, p)
			case 1:
				if next.Edges[i].MaxCycles != nil {
					next.Edges[i].MaxCycles = new(rapid.IntRange(0, 3).Draw(t, "cycles"))
				}
			}
		}
		next.Retries = map[string]int{p.Nodes[rapid.IntRange(0, len(p.Nodes)-1).Draw(t, "node")].ID: rapid.IntRange(0, 2).Draw(t, "retries")}
		got, err := plan.Replay(context.Background(), p, next, r)
		if err != nil {
			t.Fatal(err)
		}
		if !got.Known {
			return
		}
		told++
		res, err := plan.Run(context.Background(), next, in, pure, plan.Options{})
		if (err == nil) != (got.Failed == "") {
			t.Fatalf("the replay: %s; the run: %v %s", verdict(got), err, trace(res))
		}
		if calls := len(strings.Fields(trace(res))) - strings.Count(trace(res), "-"); err == nil && calls != got.Calls {
			t.Fatalf("the replay: %s; the run: %s", verdict(got), trace(res))
		}
	})
	if told == 0 {
		t.Error("no replay told anything")
	}
}

func randomCond(t *rapid.T, p *plan.Plan) string {
	node := p.Nodes[rapid.IntRange(0, len(p.Nodes)-1).Draw(t, "of")].ID
	return fmt.Sprintf(rapid.SampledFrom([]string{"%s.x", "!%s.x", "%s.n == 1", "%s exists", "%s.n != 2"}).Draw(t, "cond"), node)
}

func randomPlan(t *rapid.T) *plan.Plan {
	n := rapid.IntRange(1, 5).Draw(t, "nodes")
	names := strings.Fields("a b c d e")[:n]
	p := &plan.Plan{Bindings: map[string]map[string]string{}}
	for _, name := range names {
		p.Nodes = append(p.Nodes, plan.Node{ID: name, Tool: "m." + name})
		if rapid.Bool().Draw(t, "bound") {
			p.Bindings[name] = map[string]string{"n": names[rapid.IntRange(0, n-1).Draw(t, "from")] + ".n", "seed": "input.seed"}
		}
	}
	edge := func(src, dst int, bounded bool) {
		e := plan.Edge{Src: names[src], Dst: names[dst]}
		if bounded {
			e.MaxCycles = new(rapid.IntRange(0, 3).Draw(t, "bound"))
		}
		if rapid.Bool().Draw(t, "conditional") {
			e.Cond = randomCond(t, p)
		}
		p.Edges = append(p.Edges, e)
	}
	for i := 1; i < n; i++ {
		edge(rapid.IntRange(0, i-1).Draw(t, "parent"), i, false)
	}
	for range rapid.IntRange(0, 4).Draw(t, "edges") {
		src, dst := rapid.IntRange(0, n-1).Draw(t, "src"), rapid.IntRange(0, n-1).Draw(t, "dst")
		edge(src, dst, dst <= src || rapid.Bool().Draw(t, "bounded"))
	}
	if err := p.Validate(); err != nil {
		t.Fatal(err)
	}
	return p
}

// A run that its caller ended says nothing of the plan.
func TestACancelledRunIsNoFailure(t *testing.T) {
	ctx, stop := context.WithCancelCause(t.Context())
	var got *plan.RunRecord
	m, err := plan.NewModule(plan.About{Name: "x", Hash: hash, Rec: "r", Journal: journalFunc(func(p *plan.Plan, about plan.RunAbout, res *plan.Result, err error) {
		got = plan.NewRunRecord(p, about, res, err, open())
	})}, graph("a b", "a>b"))
	if err != nil {
		t.Fatal(err)
	}
	c := module.NewContext(module.ContextOptions{Identity: module.NewIdentity("ann", "user", nil, nil)})
	x := &fakeExecutor{newCalls(map[string]func(int) (map[string]any, error){"m.b": func(int) (map[string]any, error) {
		stop(errors.New("the caller left"))
		return nil, context.Canceled
	}})}
	if err := c.BindExecutor(x); err != nil {
		t.Fatal(err)
	}
	if _, err := m.Execute(module.WithContext(ctx, c), nil); err == nil {
		t.Error("it ended well")
	}
	if got == nil || got.Outcome != plan.OutcomeCancelled || got.Plan != "plan.x" || got.Rec != "r" || got.TraceID != c.TraceID() || got.IdentityID != "ann" || len(got.Steps) != 2 {
		t.Errorf("%+v", got)
	}
}

type journalFunc func(*plan.Plan, plan.RunAbout, *plan.Result, error)

func (f journalFunc) Ran(p *plan.Plan, about plan.RunAbout, res *plan.Result, err error) {
	f(p, about, res, err)
}

// What a module answers is the same with a journal.
func TestAJournalChangesNothing(t *testing.T) {
	run := func(j plan.Journal) (map[string]any, error) {
		m, err := plan.NewModule(plan.About{Name: "x", Journal: j}, graph("a b", "a>b a.x == 1"))
		if err != nil {
			t.Fatal(err)
		}
		c := module.NewContext(module.ContextOptions{})
		if err := c.BindExecutor(&fakeExecutor{newCalls(map[string]func(int) (map[string]any, error){"m.a": out("x", int64(1))})}); err != nil {
			t.Fatal(err)
		}
		return m.Execute(module.WithContext(t.Context(), c), map[string]any{"k": "v"})
	}
	plain, err := run(nil)
	if err != nil {
		t.Fatal(err)
	}
	told := 0
	with, err := run(journalFunc(func(*plan.Plan, plan.RunAbout, *plan.Result, error) { told++ }))
	for _, o := range []map[string]any{plain, with} {
		for _, e := range o["timeline"].([]any) {
			delete(e.(map[string]any), "started_ms")
			delete(e.(map[string]any), "ended_ms")
		}
	}
	if diff := cmp.Diff(plain, with); diff != "" || err != nil || told != 1 {
		t.Errorf("told %d times, %v\n%s", told, err, diff)
	}
}

// A run that hands on more than a journal looks at keeps none of it beyond its end.
func TestATraceOfTooMuch(t *testing.T) {
	p := &plan.Plan{Nodes: []plan.Node{{ID: "a", Tool: "m.a"}, {ID: "b", Tool: "m.b"}}, Edges: []plan.Edge{{Src: "a", Dst: "b"}}}
	invoke := func(_ context.Context, tool string, _ map[string]any) (map[string]any, error) {
		if tool == "m.b" {
			return map[string]any{"text": strings.Repeat("x", 300<<10)}, nil
		}
		return map[string]any{"n": int64(1)}, nil
	}
	res, err := plan.Run(t.Context(), p, map[string]any{"in": int64(1)}, invoke, plan.Options{Trace: true})
	if err != nil {
		t.Fatal(err)
	}
	if !res.Trace.TooMuch || res.Trace.Inputs != nil || len(res.Trace.Steps) != 2 {
		t.Errorf("the trace: too much %v, inputs %v, %d steps", res.Trace.TooMuch, res.Trace.Inputs, len(res.Trace.Steps))
	}
	for _, s := range res.Trace.Steps {
		if s.Inputs != nil || s.Output != nil {
			t.Errorf("the step of %s keeps what it was given or gave", s.Node)
		}
	}
	if len(res.Outputs["b"]) == 0 {
		t.Error("the run has lost its output")
	}
}
