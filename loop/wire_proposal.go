package loop

import "strings"

// Kind names what a draft proposes to change. The vocabulary is closed.
type Kind string

// The kinds of proposals.
const (
	KindLesson        Kind = "lesson"
	KindFact          Kind = "fact"
	KindQueryRevision Kind = "query_revision"
	KindPlanRevision  Kind = "plan_revision"
	KindCodeRevision  Kind = "code_revision"
	KindSkill         Kind = "skill"
	KindConsolidation Kind = "consolidation"
	KindPlan          Kind = "plan"
)

// DraftProposal is one of the eight proposal types below. None of them carries
// its own scope or grader: subject, name, plan and tool come from the draft's
// target, namespaces from the cited evidence, evalsets from the store.
type DraftProposal interface{ Kind() Kind }

// LessonProposal is one imperative line to record.
type LessonProposal struct{ Lesson string }

// FactProposal is a durable fact under a relation the model chose.
type FactProposal struct{ Relation, Object string }

// QueryRevision rewrites the saved query or template named by the target.
type QueryRevision struct{ Body string }

// PlanRevision edits single fields of the plan named by the target.
type PlanRevision struct{ Edits []PlanEdit }

// PlanEdit is one edit. From must equal what the live plan holds at Path.
type PlanEdit struct {
	Path     string
	From, To any
}

// CodeRevision is new source for the tool named by the target.
type CodeRevision struct{ Source string }

// SkillProposal is a procedure as prose.
type SkillProposal struct {
	Description, WhenToUse string
	Steps                  []string
}

// Consolidation replaces a pile of lessons by one.
type Consolidation struct {
	Lesson     string
	Supersedes []string
}

// PlanProposal is a procedure as a graph of calls.
type PlanProposal struct {
	Description, WhenToUse string
	Nodes                  []PlanNodeDraft
	Edges                  []PlanEdgeDraft
}

// PlanNodeDraft is one step: an identifier, the module it calls and what for.
type PlanNodeDraft struct{ ID, Tool, Step string }

// PlanEdgeDraft is one edge. Cond nil means always; MaxCycles nil no bound.
type PlanEdgeDraft struct {
	Src, Dst  string
	Cond      *string
	MaxCycles *int
}

// Kind names the kind of each proposal.
func (LessonProposal) Kind() Kind { return KindLesson }

// Kind returns fact.
func (FactProposal) Kind() Kind { return KindFact }

// Kind returns query_revision.
func (QueryRevision) Kind() Kind { return KindQueryRevision }

// Kind returns plan_revision.
func (PlanRevision) Kind() Kind { return KindPlanRevision }

// Kind returns code_revision.
func (CodeRevision) Kind() Kind { return KindCodeRevision }

// Kind returns skill.
func (SkillProposal) Kind() Kind { return KindSkill }

// Kind returns consolidation.
func (Consolidation) Kind() Kind { return KindConsolidation }

// Kind returns plan.
func (PlanProposal) Kind() Kind { return KindPlan }

// Parsed returns the proposal of the draft, nil when it is advisory. An explicit
// proposal decides alone: one that cannot be read, or of an unknown kind, is
// advisory and never read again as the lesson. Only without one a lesson that is
// not blank counts. Absent inner fields are empty; whether that suffices is for
// the engine to say.
func (d LLMDraft) Parsed() DraftProposal {
	if d.Proposal == nil {
		if strings.TrimSpace(d.Lesson) == "" {
			return nil
		}
		return LessonProposal{Lesson: d.Lesson}
	}
	m, ok := d.Proposal.(map[string]any)
	if !ok {
		return nil
	}
	o := object(m)
	var kind string
	if !o.text("kind", &kind) {
		return nil
	}
	p, ok := readProposal(Kind(kind), o)
	if !ok {
		return nil
	}
	return p
}

func readProposal(kind Kind, o object) (DraftProposal, bool) {
	switch kind {
	case KindLesson:
		var p LessonProposal
		ok := o.text("lesson", &p.Lesson)
		return p, ok
	case KindFact:
		var p FactProposal
		ok := o.text("relation", &p.Relation) && o.text("object", &p.Object)
		return p, ok
	case KindQueryRevision:
		var p QueryRevision
		ok := o.text("body", &p.Body)
		return p, ok
	case KindPlanRevision:
		return readPlanRevision(o)
	case KindCodeRevision:
		var p CodeRevision
		ok := o.text("source", &p.Source)
		return p, ok
	case KindSkill:
		var p SkillProposal
		ok := o.text("description", &p.Description) && o.text("when_to_use", &p.WhenToUse) && o.texts("steps", &p.Steps)
		return p, ok
	case KindConsolidation:
		var p Consolidation
		ok := o.text("lesson", &p.Lesson) && o.texts("supersedes", &p.Supersedes)
		return p, ok
	case KindPlan:
		return readPlan(o)
	}
	return nil, false
}

func readPlanRevision(o object) (DraftProposal, bool) {
	var p PlanRevision
	ok := o.objects("edits", func(e object) bool {
		edit := PlanEdit{From: e["from"], To: e["to"]}
		ok := e.text("path", &edit.Path)
		p.Edits = append(p.Edits, edit)
		return ok
	})
	return p, ok
}

func readPlan(o object) (DraftProposal, bool) {
	var p PlanProposal
	ok := o.text("description", &p.Description) && o.text("when_to_use", &p.WhenToUse) &&
		o.objects("nodes", func(e object) bool {
			var n PlanNodeDraft
			ok := e.text("id", &n.ID) && e.text("tool", &n.Tool) && e.text("step", &n.Step)
			p.Nodes = append(p.Nodes, n)
			return ok
		}) &&
		o.objects("edges", func(e object) bool {
			edge, ok := readPlanEdge(e)
			p.Edges = append(p.Edges, edge)
			return ok
		})
	return p, ok
}

func readPlanEdge(e object) (edge PlanEdgeDraft, ok bool) {
	if !e.text("src", &edge.Src) || !e.text("dst", &edge.Dst) {
		return edge, false
	}
	if e["cond"] != nil {
		cond, ok := e["cond"].(string)
		if !ok {
			return edge, false
		}
		edge.Cond = &cond
	}
	if e["max_cycles"] != nil {
		n := 0
		if !e.index("max_cycles", &n) {
			return edge, false
		}
		edge.MaxCycles = &n
	}
	return edge, true
}
