package loop

import (
	"context"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/apbus/apbus/loop/plan"
	"github.com/apbus/apbus/schema"
)

// skill makes a procedure in prose executable.
func (p *pass) skill(r *resolved, d SkillProposal) string {
	var steps []string
	for _, s := range d.Steps {
		if s = clean(s); s != "" {
			steps = append(steps, s)
		}
	}
	about, why := p.about(r, d.Description, d.WhenToUse)
	if why != "" {
		return why
	}
	if !p.policy.Skills {
		return whyOff
	}
	if len(steps) < p.policy.MinSteps {
		return "it has too few steps"
	}
	if len(steps) > MaxSkillSteps || slices.ContainsFunc(steps, func(s string) bool { return chars(s) > MaxSkillStepLen }) {
		return whyLong
	}
	p.writeSkill(r, about, steps)
	return ""
}

// procedure is what skills and plans have in common.
type procedure struct{ name, description, when string }

func (p *pass) about(r *resolved, description, when string) (procedure, string) {
	if r.target.Scheme != SchemeEntity {
		return procedure{}, whyTarget
	}
	a := procedure{name: r.target.Subject()}
	if !onlyOf(a.name, MaxSkillNameLen, "_-") {
		return a, whyName
	}
	var w1, w2 string
	a.description, w1 = line(description, MaxObjectLen)
	a.when, w2 = line(when, MaxObjectLen)
	return a, firstOf(w1, w2)
}

func (p *pass) writeSkill(r *resolved, a procedure, steps []string) {
	op := p.skillOp(r, a, steps)
	r.kind, r.action, r.importance = KindSkill, actionOf(op), 0.6
	r.content = a.name + " " + a.description + " " + a.when + " " + strings.Join(steps, " ")
	r.change = "record skill " + a.name + ": " + a.description + " When: " + a.when + " Steps:" + numbered(steps)
	r.ops = func(float64) []Op { return []Op{op} }
}

func actionOf(op Op) Action {
	if op.Op == OpSupersede {
		return ActionRevise
	}
	return ActionRecord
}

func (p *pass) skillOp(r *resolved, a procedure, steps []string) Op {
	list := make([]any, len(steps))
	for i, s := range steps {
		list[i] = s
	}
	return p.place(ItemSkill, r.namespace, a.name, map[string]any{"description": a.description, "when_to_use": a.when, "steps": list})
}

// numbered renders all steps, since what the judges do not see they cannot judge.
func numbered(steps []string) string {
	var b strings.Builder
	for i, s := range steps {
		b.WriteString(" (" + strconv.Itoa(i+1) + ") " + s)
	}
	return b.String()
}

// plan makes a procedure as a graph executable. Every node must call a module that
// the cited evidence shows; a graph that cannot run for another reason becomes a
// skill of the same steps, if skills are on.
func (p *pass) plan(b *bundle, r *resolved, d PlanProposal) string {
	about, why := p.about(r, d.Description, d.WhenToUse)
	switch {
	case why != "":
		return why
	case !p.policy.Plans:
		return whyOff
	case len(d.Nodes) < p.policy.MinNodes || len(d.Nodes) > MaxPlanNodes:
		return "it has too few or too many nodes"
	}
	seen := b.tools(r.cited)
	graph := &plan.Plan{}
	var steps []string
	ids := make(map[string]bool)
	unattributed := 0
	for _, n := range d.Nodes {
		step, why := line(n.Step, MaxSkillStepLen)
		id := strings.TrimSpace(n.ID)
		if why != "" {
			return why
		}
		if !onlyOf(id, MaxSkillNameLen, "_-") || ids[id] {
			return "a node has no ID of its own"
		}
		ids[id] = true
		tool := seen[strings.ToLower(strings.TrimSpace(n.Tool))]
		if tool == "" || p.registered != nil && !p.registered(tool) {
			unattributed++
			tool = ""
		}
		graph.Nodes = append(graph.Nodes, plan.Node{ID: id, Tool: tool, Step: step})
		if tool != "" {
			step = tool + ": " + step
		}
		steps = append(steps, Cap(step, MaxSkillStepLen))
	}
	if unattributed == len(d.Nodes) {
		return "no node calls a module that its evidence shows"
	}
	runnable := unattributed == 0 && addEdges(graph, d.Edges)
	if !runnable || graph.Validate() != nil {
		if !p.policy.Skills || len(steps) < p.policy.MinSteps {
			return "the graph cannot run"
		}
		p.writeSkill(r, about, steps)
		return ""
	}
	return p.writePlan(r, about, graph, steps)
}

// addEdges adds the edges, false when one of them cannot be meant.
func addEdges(graph *plan.Plan, edges []PlanEdgeDraft) bool {
	if len(edges) > 4*len(graph.Nodes) {
		return false
	}
	for _, e := range edges {
		edge := plan.Edge{Src: strings.TrimSpace(e.Src), Dst: strings.TrimSpace(e.Dst), MaxCycles: e.MaxCycles}
		if e.MaxCycles != nil && (*e.MaxCycles < 1 || *e.MaxCycles > plan.MaxCycles) {
			return false
		}
		if e.Cond != nil {
			if edge.Cond = strings.TrimSpace(*e.Cond); edge.Cond == "" || !isClean(edge.Cond) {
				return false
			}
		}
		graph.Edges = append(graph.Edges, edge)
	}
	return true
}

// tools are the modules that the cited calls show, by their names in lower case.
func (b *bundle) tools(cited []int) map[string]string {
	seen := make(map[string]string)
	for _, n := range cited {
		if r := b.records[n]; r.Evidence != nil && (isCall(r.Type) || r.Type == TypeTask) {
			seen[strings.ToLower(r.Evidence.ModuleID)] = r.Evidence.ModuleID
		}
	}
	return seen
}

func (p *pass) writePlan(r *resolved, a procedure, graph *plan.Plan, steps []string) string {
	if _, err := plan.ModuleID(a.name); err != nil {
		return whyName
	}
	if p.otherPlan(r.namespace, a.name) {
		return "another plan is the module of this name"
	}
	m, err := graph.Map()
	if err != nil {
		return "the graph cannot be stored"
	}
	op := p.place(ItemPlan, r.namespace, a.name, map[string]any{"description": a.description, "when_to_use": a.when, "plan": m})
	ops := []Op{op}
	if p.policy.Skills {
		ops = append(ops, p.skillOp(r, a, steps))
	}
	r.kind, r.action, r.importance = KindPlan, actionOf(op), 0.65
	r.change = "record plan " + a.name + ": " + a.description + " When: " + a.when + " Nodes:" + numbered(steps) + " Edges:" + edgesText(graph)
	r.content = r.change
	r.ops = func(float64) []Op { return ops }
	return ""
}

// otherPlan reports whether a plan of another namespace, or of a name that differs in
// signs only, is the module that a plan of this name would be.
func (p *pass) otherPlan(namespace, name string) bool {
	return slices.ContainsFunc(p.items, func(i *Item) bool {
		return i.Live && i.Type == ItemPlan && (i.Namespace != namespace || i.Name != name) &&
			slotKey(ItemPlan, i.Namespace, i.Name, nil) == slotKey(ItemPlan, namespace, name, nil)
	})
}

func edgesText(graph *plan.Plan) string {
	var b strings.Builder
	for _, e := range graph.Edges {
		b.WriteString(" " + e.Src + "->" + e.Dst)
		if e.Cond != "" {
			b.WriteString(" if " + e.Cond)
		}
		if e.MaxCycles != nil {
			b.WriteString(" at most " + strconv.Itoa(*e.MaxCycles) + " times")
		}
		b.WriteString(";")
	}
	return b.String()
}

// planRevision makes edits of a live plan executable; all of them or none.
func (p *pass) planRevision(ctx context.Context, r *resolved, d PlanRevision) string {
	if r.target.Scheme != SchemeGrain {
		return whyTarget
	}
	if !p.policy.Plans {
		return whyOff
	}
	i := slices.IndexFunc(p.items, func(i *Item) bool { return i.Live && i.Type == ItemPlan && i.Hash == r.target.Opaque })
	if i < 0 {
		return "its target is no live plan"
	}
	item := p.items[i]
	graph, err := PlanOf(item)
	if err != nil {
		return "the plan cannot be read"
	}
	edits := make([]plan.Edit, len(d.Edits))
	for n, e := range d.Edits {
		edits[n] = plan.Edit{Path: e.Path, From: e.From, To: e.To}
	}
	next, err := graph.Revise(edits)
	if err != nil {
		return "the edits do not fit the plan"
	}
	m, err := next.Map()
	if err != nil {
		return "the plan cannot be stored"
	}
	fields := maps.Clone(item.Fields)
	fields["plan"] = m
	op := Op{Op: OpSupersede, Type: ItemPlan, Namespace: item.Namespace, Name: item.Name, Fields: fields, Replaces: item.Hash}
	r.action, r.importance = ActionRevise, 0.7
	r.change = "revise plan " + item.Name + ":"
	for _, e := range d.Edits {
		r.change += " " + clean(Cap(e.Path, MaxTargetLen)) + ": " + literal(e.From) + " -> " + literal(e.To) + ";"
	}
	r.content = r.change
	if r.replay, err = p.rehearse(ctx, item.Hash, graph, next); err != nil {
		r.err = err
		return "it cannot be rehearsed"
	}
	if r.replay != nil && r.replay.Verdict == RehearsalRefused {
		r.importance = 0.4
		p.result.Funnel.AdvisoryReplay++
		return r.replay.Because
	}
	r.ops = func(float64) []Op { return []Op{op} }
	return ""
}

// literal is a value of an edit as text.
func literal(v any) string {
	raw, err := schema.CanonicalJSON(v)
	if err != nil {
		return "?"
	}
	return clean(Cap(string(raw), MaxCondLen))
}

// PlanOf reads the graph of a plan item.
func PlanOf(i *Item) (*plan.Plan, error) {
	m, _ := i.Fields["plan"].(map[string]any)
	return plan.FromMap(m)
}

// PlanModule makes the module of a live plan, plan.<name>, which tells journal of its
// runs and marks what hide hides; nil for neither.
func PlanModule(i *Item, journal plan.Journal, hide *plan.Redaction) (*plan.Module, error) {
	graph, err := PlanOf(i)
	if err != nil {
		return nil, err
	}
	return plan.NewModule(plan.About{
		Name: i.Name, Description: i.Text("description"), WhenToUse: i.Text("when_to_use"), Rec: i.Rec, Hash: i.Hash, Journal: journal, Hide: hide,
	}, graph)
}
