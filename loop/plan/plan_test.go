package plan_test

import (
	"strings"
	"testing"

	"github.com/apbus/apbus/loop/plan"
	"github.com/google/go-cmp/cmp"
)

// graph makes a plan of nodes called by a module of the same name and edges
// written a>b, with a condition after a space and a bound after a colon.
func graph(nodes string, edges ...string) *plan.Plan {
	p := &plan.Plan{}
	for id := range strings.FieldsSeq(nodes) {
		p.Nodes = append(p.Nodes, plan.Node{ID: id, Tool: "m." + id})
	}
	for _, e := range edges {
		ends, cond, _ := strings.Cut(e, " ")
		src, dst, _ := strings.Cut(ends, ">")
		edge := plan.Edge{Src: src, Dst: dst, Cond: cond}
		if d, bound, ok := strings.Cut(dst, ":"); ok {
			n := 0
			for _, c := range bound {
				n = n*10 + int(c-'0')
			}
			edge.Dst, edge.MaxCycles = d, &n
		}
		p.Edges = append(p.Edges, edge)
	}
	return p
}

func TestValidate(t *testing.T) {
	many := strings.TrimSpace(strings.Repeat("n ", 21))
	tests := []struct {
		name string
		plan *plan.Plan
		want string // part of the error, "" when valid
	}{
		{name: "one node", plan: graph("a")},
		{name: "diamond", plan: graph("a b c d", "a>b", "a>c", "b>d", "c>d")},
		{name: "bounded cycle", plan: graph("a b", "a>b", "b>a:3")},
		{name: "bounded self loop", plan: graph("a", "a>a:3")},
		{name: "no node", plan: graph(""), want: "1 to 20 nodes"},
		{name: "too many nodes", plan: graph(many), want: "1 to 20 nodes"},
		{name: "twice", plan: graph("a a"), want: "twice"},
		{name: "blank", plan: &plan.Plan{Nodes: []plan.Node{{ID: " "}}}, want: "usable ID"},
		{name: "control", plan: &plan.Plan{Nodes: []plan.Node{{ID: "a\x1b"}}}, want: "usable ID"},
		{name: "reserved", plan: graph("input"), want: "may not be called"},
		{name: "unknown end", plan: graph("a", "a>b"), want: "not there"},
		{name: "bad condition", plan: graph("a b", "a>b x <> 1"), want: "grammar"},
		{name: "unreachable", plan: graph("a b"), want: "cannot be reached"},
		{name: "cycle without bound", plan: graph("a b", "a>b", "b>a"), want: "no edge with max_cycles"},
		{name: "one of two cycles without bound", plan: graph("a b c", "a>b", "b>a:2", "b>c", "c>b"), want: "no edge with max_cycles"},
		{name: "bound too high", plan: graph("a", "a>a:101"), want: "max_cycles"},
		{name: "bad module", plan: &plan.Plan{Nodes: []plan.Node{{ID: "a", Tool: "No Module"}}}, want: "node"},
		{name: "retries of nobody", plan: &plan.Plan{Nodes: []plan.Node{{ID: "a"}}, Retries: map[string]int{"b": 1}}, want: "no node"},
		{name: "too many retries", plan: &plan.Plan{Nodes: []plan.Node{{ID: "a"}}, Retries: map[string]int{"a": 11}}, want: "not within"},
		{name: "binding of nobody", plan: &plan.Plan{Nodes: []plan.Node{{ID: "a"}}, Bindings: map[string]map[string]string{"b": {}}}, want: "no node"},
		{name: "binding without path", plan: &plan.Plan{Nodes: []plan.Node{{ID: "a"}}, Bindings: map[string]map[string]string{"a": {"x": "a..b"}}}, want: "no path"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			err := tt.plan.Validate()
			if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
	}
}

func TestRevise(t *testing.T) {
	base := func() *plan.Plan {
		p := graph("a b", "a>b x == 1", "b>a:3", "b>b:1")
		p.Retries = map[string]int{"a": 1}
		return p
	}
	tests := []struct {
		name  string
		edits []plan.Edit
		check func(*plan.Plan) any
		want  any // nil: refused
	}{
		{"condition", []plan.Edit{{Path: "edges.0.cond", From: "x == 1", To: "y"}}, func(p *plan.Plan) any { return p.Edges[0].Cond }, "y"},
		{"new condition", []plan.Edit{{Path: "edges.1.cond", From: nil, To: "!y"}}, func(p *plan.Plan) any { return p.Edges[1].Cond }, "!y"},
		{"cycles", []plan.Edit{{Path: "edges.1.max_cycles", From: int64(3), To: int64(5)}}, func(p *plan.Plan) any { return *p.Edges[1].MaxCycles }, 5},
		{"retries", []plan.Edit{{Path: "retries.b", From: nil, To: int64(2)}}, func(p *plan.Plan) any { return p.Retries["b"] }, 2},
		{"one after the other", []plan.Edit{{Path: "retries.a", From: int64(1), To: int64(2)}, {Path: "retries.a", From: int64(2), To: int64(3)}}, func(p *plan.Plan) any { return p.Retries["a"] }, 3},
		{name: "none"},
		{name: "too many", edits: make([]plan.Edit, 9)},
		{name: "stale", edits: []plan.Edit{{Path: "edges.0.cond", From: "x == 2", To: "y"}}},
		{name: "stale by representation", edits: []plan.Edit{{Path: "retries.a", From: 1.0, To: int64(2)}}},
		{name: "no change", edits: []plan.Edit{{Path: "retries.a", From: int64(1), To: int64(1)}}},
		{name: "all or nothing", edits: []plan.Edit{{Path: "retries.a", From: int64(1), To: int64(2)}, {Path: "edges.9.cond", To: "x"}}},
		{name: "nodes", edits: []plan.Edit{{Path: "nodes.0.tool", From: "m.a", To: "m.b"}}},
		{name: "ends", edits: []plan.Edit{{Path: "edges.0.dst", From: "b", To: "a"}}},
		{name: "longer path", edits: []plan.Edit{{Path: "edges.0.cond.x", To: "a"}}},
		{name: "index with sign", edits: []plan.Edit{{Path: "edges.+0.cond", From: "x == 1", To: "a"}}},
		{name: "index with zero", edits: []plan.Edit{{Path: "edges.00.cond", From: "x == 1", To: "a"}}},
		{name: "negative index", edits: []plan.Edit{{Path: "edges.-1.cond", To: "a"}}},
		{name: "condition outside the grammar", edits: []plan.Edit{{Path: "edges.0.cond", From: "x == 1", To: "x < 1"}}},
		{name: "blank condition", edits: []plan.Edit{{Path: "edges.0.cond", From: "x == 1", To: " "}}},
		{name: "null condition", edits: []plan.Edit{{Path: "edges.0.cond", From: "x == 1", To: nil}}},
		{name: "condition with control", edits: []plan.Edit{{Path: "edges.0.cond", From: "x == 1", To: "x\n"}}},
		{name: "condition too long", edits: []plan.Edit{{Path: "edges.0.cond", From: "x == 1", To: strings.Repeat("x", 201)}}},
		{name: "no cycles", edits: []plan.Edit{{Path: "edges.1.max_cycles", From: int64(3), To: int64(0)}}},
		{name: "too many cycles", edits: []plan.Edit{{Path: "edges.1.max_cycles", From: int64(3), To: int64(101)}}},
		{name: "cycles as float", edits: []plan.Edit{{Path: "edges.1.max_cycles", From: int64(3), To: 4.0}}},
		{name: "retries too high", edits: []plan.Edit{{Path: "retries.a", From: int64(1), To: int64(11)}}},
		{name: "retries of nobody", edits: []plan.Edit{{Path: "retries.c", To: int64(1)}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := base()
			got, err := p.Revise(tt.edits)
			if diff := cmp.Diff(base(), p); diff != "" {
				t.Errorf("the plan itself was changed: %s", diff)
			}
			switch {
			case tt.want == nil && err == nil:
				t.Errorf("accepted: %+v", got)
			case tt.want != nil && err != nil:
				t.Error(err)
			case tt.want != nil && tt.check(got) != tt.want:
				t.Errorf("got %v, want %v", tt.check(got), tt.want)
			}
		})
	}
}
