package plan_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/apbus/apbus/loop/plan"
	"github.com/apbus/apbus/module"
	"github.com/apbus/apbus/schema"
	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// marks compiles a schema whose named properties are sensitive.
func marks(t failer, names ...string) *schema.Compiled {
	t.Helper()
	properties := map[string]any{}
	for _, name := range names {
		properties[name] = map[string]any{"x-sensitive": true}
	}
	c, err := schema.Compile(map[string]any{"type": "object", "properties": properties})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// hiding redacts by what the modules mark: inputs by m.a, outputs by m.a>.
func hiding(t failer, by map[string]*schema.Compiled) *plan.Redaction {
	t.Helper()
	r, err := schema.NewRedactor(schema.RedactOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return &plan.Redaction{Redactor: r, Schemas: func(id string, _ map[string]any) (in, out *schema.Compiled, known bool) {
		return by[id], by[id+">"], id != "m.unknown"
	}}
}

const mask = schema.DefaultReplacement

func TestWhatAJournalHides(t *testing.T) {
	echo := func(_ context.Context, _ string, in map[string]any) (map[string]any, error) { return in, nil }
	tests := []struct {
		name     string
		plan     *plan.Plan
		bindings map[string]map[string]string
		inputs   map[string]any
		marks    map[string]*schema.Compiled
		invoke   plan.Invoke
		// want are the plan's inputs and the outputs by step, nil for what is left out.
		want map[string]any
	}{
		{
			name: "nothing to hide", plan: graph("a b", "a>b"), inputs: map[string]any{"n": int64(1), "f": 1.0, "t": "x"}, invoke: echo,
			want: map[string]any{"input": map[string]any{"n": int64(1), "f": 1.0, "t": "x"}, "a": map[string]any{"n": int64(1), "f": 1.0, "t": "x"}, "b": map[string]any{"n": int64(1), "f": 1.0, "t": "x"}},
		},
		{
			name: "by name", plan: graph("a"), inputs: map[string]any{"password": "hunter22", "note": "it is hunter22!"}, invoke: echo,
			want: map[string]any{"input": map[string]any{"password": mask, "note": "it is " + mask + "!"}, "a": map[string]any{"password": mask, "note": "it is " + mask + "!"}},
		},
		{
			name: "an output's mark follows the value", plan: graph("a b", "a>b"), bindings: map[string]map[string]string{"b": {"plain": "a.pin"}},
			marks: map[string]*schema.Compiled{"m.a>": marks(t, "pin")},
			invoke: func(_ context.Context, id string, in map[string]any) (map[string]any, error) {
				if id == "m.a" {
					return map[string]any{"pin": int64(7), "said": "pin 7, not 77"}, nil
				}
				return map[string]any{"again": in["plain"], "more": int64(77), "text": "seven is 7"}, nil
			},
			want: map[string]any{"input": map[string]any{}, "a": map[string]any{"pin": mask, "said": mask}, "b": map[string]any{"again": mask, "more": int64(77), "text": mask}},
		},
		{
			name: "a node's mark reaches back to the plan's inputs", plan: graph("a b", "a>b"), inputs: map[string]any{"b": map[string]any{"card": "4111-1111", "ok": true}, "a": map[string]any{}},
			marks: map[string]*schema.Compiled{"m.b": marks(t, "card", "ok")}, invoke: echo,
			want: map[string]any{"input": map[string]any{"a": map[string]any{}, "b": map[string]any{"card": mask, "ok": mask}}, "a": map[string]any{}, "b": map[string]any{"card": mask, "ok": true}},
		},
		{
			name: "and through bindings, booleans too", plan: graph("a b", "a>b"), inputs: map[string]any{"who": map[string]any{"sick": true, "age": int64(40)}},
			bindings: map[string]map[string]string{"a": {"sick": "input.who.sick"}, "b": {"tell": "a.state"}},
			marks:    map[string]*schema.Compiled{"m.a": marks(t, "sick"), "m.b": marks(t, "tell")},
			invoke: func(_ context.Context, id string, _ map[string]any) (map[string]any, error) {
				if id == "m.a" {
					return map[string]any{"state": map[string]any{"bad": true}, "fine": true}, nil
				}
				return nil, nil
			},
			want: map[string]any{"input": map[string]any{"who": map[string]any{"sick": mask, "age": int64(40)}}, "a": map[string]any{"state": mask, "fine": true}, "b": map[string]any{}},
		},
		{
			name: "a secret as a key", plan: graph("a"), inputs: map[string]any{"token": "tok-123456"},
			invoke: func(context.Context, string, map[string]any) (map[string]any, error) {
				return map[string]any{"by": map[string]any{"tok-123456": int64(1)}}, nil
			},
			want: map[string]any{"input": map[string]any{"token": mask}, "a": map[string]any{"by": map[string]any{mask: int64(1)}}},
		},
		{
			name: "a module that nobody knows", plan: &plan.Plan{Nodes: []plan.Node{{ID: "a", Tool: "m.unknown"}}}, inputs: map[string]any{"n": int64(1)}, invoke: echo,
			want: map[string]any{"input": nil, "a": nil},
		},
		{
			name: "another plan", plan: &plan.Plan{Nodes: []plan.Node{{ID: "a", Tool: "plan.other"}}}, inputs: map[string]any{"n": int64(1)}, invoke: echo,
			want: map[string]any{"input": nil, "a": nil},
		},
		{
			name: "too many secrets", plan: graph("a"), inputs: manySecrets(257), invoke: echo,
			want: map[string]any{"input": nil, "a": nil},
		},
		{
			name: "too large for one value", plan: graph("a b", "a>b"), inputs: map[string]any{"n": int64(1)},
			invoke: func(_ context.Context, id string, _ map[string]any) (map[string]any, error) {
				if id == "m.a" {
					return map[string]any{"t": strings.Repeat("x", plan.MaxRunValue+1)}, nil
				}
				return nil, nil
			},
			want: map[string]any{"input": map[string]any{"n": int64(1)}, "a": nil, "b": map[string]any{}},
		},
		{
			name: "too large to be looked at", plan: graph("a b", "a>b"), inputs: map[string]any{"n": int64(1)},
			invoke: func(context.Context, string, map[string]any) (map[string]any, error) {
				return map[string]any{"t": strings.Repeat("x", 300<<10)}, nil
			},
			want: map[string]any{"input": nil, "a": nil, "b": nil},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tt.plan.Bindings = tt.bindings
			r := journaled(t, tt.plan, tt.inputs, tt.invoke, hiding(t, tt.marks))
			got := map[string]any{"input": nil}
			if !r.InputsLeftOut {
				got["input"] = orEmpty(r.Inputs)
			}
			for _, s := range r.Steps {
				if got[s.Node] = nil; !s.LeftOut {
					got[s.Node] = orEmpty(s.Output)
				}
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func manySecrets(n int) map[string]any {
	in := map[string]any{}
	for i := range n {
		in[fmt.Sprintf("token %d", i)] = fmt.Sprintf("t-%d", i)
	}
	return in
}

func orEmpty(m map[string]any) map[string]any {
	if m == nil {
		return map[string]any{}
	}
	return m
}

// Whatever a run hands around, no value that is sensitive somewhere is anywhere in its
// record.
func TestNoSecretIsJournaled(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := randomPlan(t)
		const secret, number = "s3cr3t-value", int64(987654)
		by := map[string]*schema.Compiled{}
		for _, n := range p.Nodes {
			// Every module marks seed, which all secrets go in by, and what it gives.
			by[n.Tool], by[n.Tool+">"] = marks(t, "seed", "n"), marks(t, "token", "number")
		}
		leak := func(_ context.Context, id string, in map[string]any) (map[string]any, error) {
			out := map[string]any{"token": secret, "number": number, "x": len(id)%2 == 0, "n": int64(1)}
			for key, v := range in {
				out["echo "+key] = []any{v, map[string]any{fmt.Sprint(v): fmt.Sprintf("<%v>", v)}}
			}
			if rapid.IntRange(0, 4).Draw(t, "fail") == 0 {
				return nil, module.Errorf(module.CodeModuleExecuteError, "no %s %d", secret, number)
			}
			return out, nil
		}
		var one rapid1
		in := map[string]any{"seed": map[string]any{"t": secret, "n": number}, "other": []any{secret + "x", number, map[string]any{secret: true}}}
		res, err := plan.Run(context.Background(), p, in, one.only(leak), plan.Options{Trace: true, Parallel: 1})
		raw, err := plan.NewRunRecord(p, plan.RunAbout{Plan: "plan.x", PlanHash: hash}, res, err, hiding(t, by)).Encode()
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range []string{secret, fmt.Sprint(number)} {
			if strings.Contains(string(raw), s) {
				t.Fatalf("%s is in %s", s, raw)
			}
		}
	})
}

// rapid1 keeps draws of nodes that run together apart.
type rapid1 struct{ slot chan struct{} }

func (r *rapid1) only(f plan.Invoke) plan.Invoke {
	r.slot = make(chan struct{}, 1)
	return func(ctx context.Context, id string, in map[string]any) (map[string]any, error) {
		r.slot <- struct{}{}
		defer func() { <-r.slot }()
		return f(ctx, id, in)
	}
}

// The record shares nothing with the run, so that it does not change with what becomes
// of the values.
func TestARecordIsACopy(t *testing.T) {
	given := map[string]any{"list": []any{int64(1)}}
	gave := map[string]any{"map": map[string]any{"k": "v"}}
	p := graph("a")
	res, err := plan.Run(t.Context(), p, given, func(context.Context, string, map[string]any) (map[string]any, error) { return gave, nil }, plan.Options{Trace: true})
	r := plan.NewRunRecord(p, plan.RunAbout{Plan: "plan.x", PlanHash: hash}, res, err, open())
	given["list"].([]any)[0], gave["map"].(map[string]any)["k"] = "changed", "changed"
	if diff := cmp.Diff([]any{map[string]any{"list": []any{int64(1)}}, map[string]any{"map": map[string]any{"k": "v"}}}, []any{r.Inputs, r.Steps[0].Output}); diff != "" {
		t.Error(diff)
	}
}

func TestARecordIsBounded(t *testing.T) {
	p := graph("a b", "a>a:100", "a>b")
	p.Retries = map[string]int{"a": 2}
	n := 0
	invoke := func(_ context.Context, id string, _ map[string]any) (map[string]any, error) {
		if n++; id == "m.a" && n%3 != 0 {
			return nil, errors.New("not yet")
		}
		return map[string]any{"t": strings.Repeat("x", 2000)}, nil
	}
	res, err := plan.Run(t.Context(), p, nil, invoke, plan.Options{Trace: true})
	if err != nil {
		t.Fatal(err)
	}
	r := plan.NewRunRecord(p, plan.RunAbout{Plan: "plan.x", PlanHash: hash}, res, nil, open())
	raw, err := r.Encode()
	if err != nil || len(raw) > plan.MaxRunRecord {
		t.Fatalf("%d bytes, %v", len(raw), err)
	}
	if len(r.Steps) != plan.MaxRunSteps || r.Dropped != len(res.Trace.Steps)-plan.MaxRunSteps {
		t.Errorf("%d steps of %d, %d dropped", len(r.Steps), len(res.Trace.Steps), r.Dropped)
	}
	// What is not there is not made up.
	if got, err := plan.Replay(context.Background(), p, p, r); err != nil || got.Known {
		t.Errorf("%s, %v", verdict(got), err)
	}
}

func FuzzRunRecords(f *testing.F) {
	raw, err := plan.NewRunRecord(graph("a"), plan.RunAbout{Plan: "plan.x", PlanHash: hash}, nil, errors.New("no"), nil).Encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(raw)
	f.Add([]byte(`{"v":1,"plan":"plan.x","plan_hash":"x","outcome":"ok","started_ms":1,"ended_ms":2,"steps":[{"node":"a","tool":"m.a","generation":1,"attempt":1,"outcome":"ok","reads":{"b":1}}],"decisions":[{"edge":0,"generation":1,"held":true}]}`))
	p := graph("a b", "a>a:3 a.x", "a>b")
	f.Fuzz(func(t *testing.T, raw []byte) {
		r, _, err := plan.DecodeRunRecord(raw)
		if err != nil {
			return
		}
		if _, err := plan.Replay(context.Background(), p, p, r); err != nil {
			t.Fatal(err)
		}
		again, err := r.Encode()
		if err != nil {
			return // of what is no record of ours it may be too much
		}
		if _, _, err := plan.DecodeRunRecord(again); err != nil {
			t.Fatal(err)
		}
	})
}

// What a node's module hides is hidden from whoever looks at the call of the plan, by
// the plan's own schemas.
func TestSchemasOfAPlanHideWhatItsNodesHide(t *testing.T) {
	deep, err := schema.Compile(map[string]any{"type": "object", "required": []any{"who"}, "properties": map[string]any{
		"who":  map[string]any{"type": "object", "properties": map[string]any{"no": map[string]any{"type": "string", "x-sensitive": true}, "name": map[string]any{"type": "string"}}},
		"list": map[string]any{"type": "array", "items": map[string]any{"type": "object", "properties": map[string]any{"pin": map[string]any{"x-sensitive": true}}}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	branches, err := schema.Compile(map[string]any{"anyOf": []any{map[string]any{"properties": map[string]any{"x": map[string]any{"x-sensitive": true}}}, map[string]any{"type": "null"}}})
	if err != nil {
		t.Fatal(err)
	}
	card := marks(t, "card")
	tests := []struct {
		name           string
		plan           *plan.Plan
		bindings       map[string]map[string]string
		by             map[string]*schema.Compiled
		inputs, output map[string]any
		shown, gave    map[string]any
	}{
		{
			name: "nothing", plan: graph("a"), inputs: map[string]any{"card": "4111"}, output: map[string]any{"a": map[string]any{"card": "4111"}},
			shown: map[string]any{"card": "4111"}, gave: map[string]any{"a": map[string]any{"card": "4111"}},
		},
		{
			name: "all inputs, and an output", plan: graph("a b", "a>b"), by: map[string]*schema.Compiled{"m.a": card, "m.b>": card},
			inputs: map[string]any{"card": "4111", "n": int64(1)}, output: map[string]any{"a": map[string]any{"card": "4111"}, "b": map[string]any{"card": "4111", "n": int64(1)}},
			shown: map[string]any{"card": mask, "n": int64(1)}, gave: map[string]any{"a": map[string]any{"card": "4111"}, "b": map[string]any{"card": mask, "n": int64(1)}},
		},
		{
			name: "a node's own", plan: graph("a b", "a>b"), by: map[string]*schema.Compiled{"m.a": card},
			inputs: map[string]any{"a": map[string]any{"card": "4111", "n": int64(1)}, "b": map[string]any{"card": "4111"}},
			shown:  map[string]any{"a": map[string]any{"card": mask, "n": int64(1)}, "b": map[string]any{"card": "4111"}},
		},
		{
			name: "below, and in lists", plan: graph("a"), by: map[string]*schema.Compiled{"m.a": deep},
			inputs: map[string]any{"a": map[string]any{"who": map[string]any{"no": "4111", "name": "ann"}, "list": []any{map[string]any{"pin": int64(1), "n": int64(2)}}}},
			shown:  map[string]any{"a": map[string]any{"who": map[string]any{"no": mask, "name": "ann"}, "list": []any{map[string]any{"pin": mask, "n": int64(2)}}}},
		},
		{
			name: "in a branch", plan: graph("a"), by: map[string]*schema.Compiled{"m.a": branches},
			inputs: map[string]any{"a": map[string]any{"y": "4111"}, "z": "4111"}, shown: map[string]any{"a": mask, "z": mask},
		},
		{
			name: "through a binding", plan: graph("b a", "b>a"), bindings: map[string]map[string]string{"a": {"card": "input.who.no", "n": "input.n"}}, by: map[string]*schema.Compiled{"m.a": card},
			inputs: map[string]any{"who": map[string]any{"no": "4111", "name": "ann"}, "n": int64(1)}, shown: map[string]any{"who": map[string]any{"no": mask, "name": "ann"}, "n": int64(1)},
		},
		{
			name: "of another node's output", plan: graph("b a", "b>a"), bindings: map[string]map[string]string{"a": {"card": "b.card"}}, by: map[string]*schema.Compiled{"m.a": card},
			inputs: map[string]any{"card": "4111"}, output: map[string]any{"b": map[string]any{"card": "4111", "n": int64(1)}},
			shown: map[string]any{"card": "4111"}, gave: map[string]any{"b": map[string]any{"card": mask, "n": int64(1)}},
		},
		{
			name: "a module that nobody knows", plan: &plan.Plan{Nodes: []plan.Node{{ID: "a", Tool: "m.unknown"}}},
			inputs: map[string]any{"x": int64(1)}, output: map[string]any{"a": map[string]any{"x": int64(1)}}, shown: map[string]any{"x": mask}, gave: map[string]any{"a": mask},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tt.plan.Bindings = tt.bindings
			hide := hiding(t, tt.by)
			m, err := plan.NewModule(plan.About{Name: "x", Hide: hide}, tt.plan)
			if err != nil {
				t.Fatal(err)
			}
			look := func(doc, v map[string]any) map[string]any {
				t.Helper()
				c, err := schema.Compile(doc)
				if err != nil {
					t.Fatal(err)
				}
				if err := c.Validate(v); err != nil {
					t.Errorf("it asks for something: %v", err)
				}
				return hide.Redactor.Redact(c, v)
			}
			if diff := cmp.Diff(tt.shown, look(m.Descriptor().InputSchema, tt.inputs)); diff != "" {
				t.Error(diff)
			}
			if tt.output != nil {
				got := look(m.Descriptor().OutputSchema, map[string]any{"outputs": tt.output, "timeline": []any{}})
				if diff := cmp.Diff(tt.gave, got["outputs"]); diff != "" {
					t.Error(diff)
				}
			}
		})
	}
}

// What a run costs its caller for being journaled.
func BenchmarkNewRunRecord(b *testing.B) {
	for name, size := range map[string]int{"small": 20, "large": 4000} {
		b.Run(name, func(b *testing.B) {
			p := graph("a b c", "a>b a.ok == true", "b>c")
			in := map[string]any{"order": "o-1", "card": "4111111111111111", "note": strings.Repeat("x", size)}
			invoke := func(context.Context, string, map[string]any) (map[string]any, error) {
				return map[string]any{"ok": true, "id": "ch-1", "text": strings.Repeat("y", size), "list": []any{int64(1), 2.5, "z"}}, nil
			}
			res, err := plan.Run(context.Background(), p, in, invoke, plan.Options{Trace: true})
			hide := hiding(b, map[string]*schema.Compiled{"m.a": marks(b, "card"), "m.b": marks(b, "card"), "m.c": marks(b, "card")})
			b.ReportAllocs()
			for b.Loop() {
				plan.NewRunRecord(p, plan.RunAbout{Plan: "plan.x", PlanHash: hash}, res, err, hide)
			}
		})
	}
}
