package loop

import (
	"cmp"
	"context"
	"slices"
	"strings"
)

// resolved is a draft whose citations are records and whose proposal is either
// executable or advisory. Resolution precedes every judgement, so that what cannot
// be done costs no call, and what is judged is what would be written.
type resolved struct {
	draft    LLMDraft
	summary  string
	guidance string
	target   Target
	// cited are the positions of its evidence in the bundle; namespace is the most
	// frequent one among them.
	cited     []int
	namespace string

	// Set for an executable proposal.
	kind       Kind
	action     Action
	importance float64
	// change is what would be written, in full; content what the fingerprint covers.
	change, content string
	// lesson is the text of an authored lesson.
	lesson  string
	evalset string
	// replay is how journaled runs fare under a revision of their plan.
	replay *Rehearsal
	// err ends the pass: the store could not be read.
	err error
	ops func(confidence float64) []Op

	// why says why it is only advisory, "" when it never was more.
	why string
}

// claim is what the judges see: the finding and the whole change.
func (r *resolved) claim() string {
	if r.ops == nil {
		return r.summary
	}
	return r.summary + " " + r.change
}

// resolve returns nil for a draft that is dropped: without a citation that holds, on
// a target that a model may not touch, or of no confidence of its own.
func (p *pass) resolve(ctx context.Context, b *bundle, d LLMDraft) *resolved {
	f := p.result.Funnel
	r := &resolved{draft: d, summary: clean(Cap(d.Summary, MaxSummaryLen)), guidance: clean(Cap(d.Guidance, MaxGuidanceLen))}
	f.UnresolvedCitations += max(0, len(d.Evidence)-MaxCitations)
	for _, citation := range d.Evidence[:min(len(d.Evidence), MaxCitations)] {
		n := b.resolve(citation)
		switch {
		case n < 0:
			f.UnresolvedCitations++
		case !slices.Contains(r.cited, n):
			r.cited = append(r.cited, n)
		}
	}
	if len(r.cited) == 0 {
		f.DroppedUncited++
		return nil
	}
	f.Cited++
	r.namespace = b.majority(r.cited)
	proposal := d.Parsed()
	var err error
	if r.target, err = ParseTarget(d.Target); err != nil || !p.mayTarget(r.target, proposal) {
		f.DroppedTarget++
		return nil
	}
	if d.Confidence == 0 {
		f.DroppedUnconfident++
		return nil
	}
	switch {
	case proposal == nil && d.Proposal != nil:
		r.why = "the proposal cannot be read"
	case proposal == nil:
	case len(r.cited) < p.policy.MinEvidence:
		f.AdvisoryThinEvidence++
		r.why = "it cites too little"
	default:
		r.kind = proposal.Kind()
		r.why = p.execute(ctx, b, r, proposal)
	}
	if r.why != "" {
		if r.ops = nil; len(r.cited) >= p.policy.MinEvidence {
			f.AdvisoryProposal++
		}
		if r.target.Class() == ClassCode { // no advice about tools
			f.DroppedTarget++
			return nil
		}
	}
	return r
}

// mayTarget holds the classes that are open to a model.
func (p *pass) mayTarget(t Target, proposal DraftProposal) bool {
	switch t.Class() {
	case ClassMemory, ClassQuery:
		return true
	case ClassCode:
		return p.policy.Code && proposal != nil && proposal.Kind() == KindCodeRevision
	}
	return false
}

// majority is the most frequent namespace among cited records, the first by name
// among equals.
func (b *bundle) majority(cited []int) string {
	times := make(map[string]int)
	best := ""
	for i, n := range cited {
		ns := b.records[n].Namespace
		times[ns]++
		if i == 0 || times[ns] > times[best] || times[ns] == times[best] && ns < best {
			best = ns
		}
	}
	return best
}

// execute makes a proposal executable, or says why it is only advisory.
func (p *pass) execute(ctx context.Context, b *bundle, r *resolved, proposal DraftProposal) (why string) {
	switch d := proposal.(type) {
	case LessonProposal:
		return p.lesson(r, d)
	case FactProposal:
		return p.fact(r, d)
	case QueryRevision:
		return p.queryRevision(r, d)
	case PlanRevision:
		return p.planRevision(ctx, r, d)
	case CodeRevision:
		return p.codeRevision(r, d)
	case SkillProposal:
		return p.skill(r, d)
	case Consolidation:
		return p.consolidation(b, r, d)
	case PlanProposal:
		return p.plan(b, r, d)
	}
	return "its kind is unknown"
}

const (
	whyTarget = "its target does not fit its kind"
	whyEmpty  = "a text is missing"
	whyLong   = "a text is too long"
	whyName   = "the name cannot be used"
	whyOff    = "its kind is switched off"
)

// line cleans a text that would be written. What is too long is refused, never cut:
// half a rule may say the opposite.
func line(s string, limit int) (string, string) {
	s = clean(s)
	switch {
	case s == "":
		return "", whyEmpty
	case chars(s) > limit:
		return "", whyLong
	}
	return s, ""
}

// firstOf is the first reason, "" for none.
func firstOf(why ...string) string { return cmp.Or(why...) }

func (p *pass) lesson(r *resolved, d LessonProposal) string {
	if r.target.Scheme != SchemeEntity {
		return whyTarget
	}
	text, why := line(d.Lesson, MaxLessonLen)
	if why != "" {
		return why
	}
	r.action, r.importance, r.lesson = ActionClusterFailure, 0.5, text
	r.content = RelationLesson + " " + text
	r.change = `record lesson on ` + r.target.Subject() + `: "` + text + `"`
	ns, subject := r.namespace, r.target.Subject()
	r.ops = func(confidence float64) []Op {
		return []Op{factOp(ns, subject, RelationLesson, text, confidence)}
	}
	return ""
}

func (p *pass) fact(r *resolved, d FactProposal) string {
	if r.target.Scheme != SchemeEntity {
		return whyTarget
	}
	relation := strings.TrimSpace(d.Relation)
	object, why := line(d.Object, MaxObjectLen)
	switch {
	case !onlyOf(relation, MaxRelationLen, "_.:-"):
		return "the relation cannot be used"
	case p.reserved(relation):
		return "the relation is not for a model to write"
	case why != "":
		return why
	}
	ns, subject := r.namespace, r.target.Subject()
	op := factOp(ns, subject, relation, object, 0)
	if p.liveFact(op) {
		return "it is known"
	}
	r.action, r.importance = ActionRecord, 0.5
	r.content = relation + " " + object
	r.change = `record fact: ` + subject + ` ` + relation + ` "` + object + `"`
	r.ops = func(confidence float64) []Op { return []Op{op.with("confidence", confidence)} }
	return ""
}

// reserved are relations that something trusts: those of the loop, and lessons,
// which have a way of their own.
func (p *pass) reserved(relation string) bool {
	lower := strings.ToLower(relation)
	return strings.HasPrefix(lower, "mg:") || strings.HasPrefix(lower, "loop:") || lower == RelationLesson ||
		slices.ContainsFunc(p.policy.ReservedRelations, func(s string) bool { return strings.EqualFold(s, relation) })
}

// nameOf is the name in a target, where it may be one: the same characters for
// every kind.
func nameOf(name string) bool { return onlyOf(name, MaxSkillNameLen, "._/-") }

func (p *pass) queryRevision(r *resolved, d QueryRevision) string {
	item := ItemQuery
	switch r.target.Scheme {
	case SchemeQuery:
	case SchemeTemplate:
		item = ItemTemplate
	default:
		return whyTarget
	}
	body := strings.TrimSpace(cleanText(d.Body))
	switch {
	case !nameOf(r.target.Opaque):
		return whyName
	case body == "":
		return whyEmpty
	case chars(body) > MaxQueryBodyLen:
		return whyLong
	case !queryBodyAllowed(body):
		return "the body holds what no query may"
	}
	if item == ItemQuery {
		if _, err := parseQuery(body); err != nil {
			return "the body is no query"
		}
	} else if _, err := parseTemplate(r.target.Opaque, body); err != nil {
		return "the body is no template of evidence"
	}
	r.action, r.importance, r.content = ActionRevise, 0.6, body
	r.change = "replace " + string(item) + " " + r.target.Opaque + " by: " + body
	op := p.place(item, "", r.target.Opaque, map[string]any{"body": body})
	r.ops = func(float64) []Op { return []Op{op} }
	return ""
}

// place is the operation that puts a named item where it belongs: in the place of
// the live one of that name, or as the first.
func (p *pass) place(t ItemType, namespace, name string, fields map[string]any) Op {
	op := Op{Op: OpAdd, Type: t, Namespace: namespace, Name: name, Fields: fields}
	if live := p.liveNamed(t, namespace, name); live != nil {
		op.Op, op.Replaces = OpSupersede, live.Hash
	}
	return op
}

func (p *pass) liveNamed(t ItemType, namespace, name string) *Item {
	for _, i := range p.items {
		if i.Live && i.Type == t && i.Namespace == namespace && i.Name == name {
			return i
		}
	}
	return nil
}

func (p *pass) codeRevision(r *resolved, d CodeRevision) string {
	source := cleanText(d.Source)
	switch {
	case r.target.Scheme != SchemeTool:
		return whyTarget
	case !p.policy.Code:
		return whyOff
	case !nameOf(r.target.Opaque):
		return whyName
	case strings.TrimSpace(source) == "":
		return whyEmpty
	case chars(source) > MaxCodeLen:
		return whyLong
	}
	evalset := p.liveNamed(ItemEvalset, "", r.target.Opaque)
	if evalset == nil {
		return "the tool has no evalset"
	}
	before := ""
	if live := p.liveNamed(ItemCode, "", r.target.Opaque); live != nil {
		before = live.Text("source")
	}
	if before == source {
		return "nothing would change"
	}
	r.action, r.importance, r.content, r.evalset = ActionCodeRevision, 0.8, source, evalset.Hash
	r.change = "replace the source of " + r.target.Opaque + ":\n" + diff(before, source)
	op := p.place(ItemCode, "", r.target.Opaque, map[string]any{"source": source, "evalset_hash": evalset.Hash})
	r.ops = func(float64) []Op { return []Op{op} }
	return ""
}

// diff shows what changes between two texts: the lines between their common begin
// and end.
func diff(before, after string) string {
	a, b := strings.Split(before, "\n"), strings.Split(after, "\n")
	if before == "" {
		a = nil
	}
	head := 0
	for head < len(a) && head < len(b) && a[head] == b[head] {
		head++
	}
	tail := 0
	for tail < len(a)-head && tail < len(b)-head && a[len(a)-1-tail] == b[len(b)-1-tail] {
		tail++
	}
	var out strings.Builder
	for _, l := range a[head : len(a)-tail] {
		out.WriteString("-" + l + "\n")
	}
	for _, l := range b[head : len(b)-tail] {
		out.WriteString("+" + l + "\n")
	}
	return out.String()
}

func (p *pass) consolidation(b *bundle, r *resolved, d Consolidation) string {
	if r.target.Scheme != SchemeEntity {
		return whyTarget
	}
	text, why := line(d.Lesson, MaxLessonLen)
	if why != "" {
		return why
	}
	var members []string
	for _, s := range d.Supersedes {
		h := strings.ToLower(strings.TrimSpace(s))
		if n := b.resolve(s); n >= 0 {
			h = b.items[n].Hash
		}
		if !slices.Contains(members, h) {
			members = append(members, h)
		}
	}
	slices.Sort(members)
	if len(members) < 2 || len(members) > MaxConsolidated || !p.isPile(r.target, members) {
		return "it does not name the lessons of a pile"
	}
	var old []*Item
	for _, h := range members {
		i := slices.IndexFunc(p.items, func(i *Item) bool { return i.Hash == h })
		if i < 0 || !p.items[i].Live || !p.items[i].IsLesson() || !strings.EqualFold(p.items[i].Name, r.target.Subject()) ||
			p.items[i].Namespace != p.items[max(0, slices.IndexFunc(p.items, func(i *Item) bool { return i.Hash == members[0] }))].Namespace {
			return "it names what is no live lesson on its target"
		}
		if p.items[i].Text("object") == text {
			return "one of the lessons says it already"
		}
		old = append(old, p.items[i])
	}
	r.action, r.importance, r.content = ActionConsolidate, 0.6, text
	r.change = `put one lesson on ` + r.target.Subject() + `: "` + text + `" in the place of:`
	for _, i := range old {
		r.change += ` "` + i.Text("object") + `"`
	}
	ns, subject := old[0].Namespace, old[0].Name
	consolidates := make([]any, len(members))
	for i, h := range members {
		consolidates[i] = h
	}
	r.ops = func(confidence float64) []Op {
		ops := []Op{factOp(ns, subject, RelationLesson, text, confidence).with("consolidates", consolidates)}
		for _, i := range old {
			ops = append(ops, Op{
				Op: OpHide, Type: ItemFact, Namespace: i.Namespace, Name: i.Name, Replaces: i.Hash,
				Fields: map[string]any{"relation": i.Fields["relation"], "object": i.Fields["object"]},
			})
		}
		return ops
	}
	return ""
}

// isPile reports whether a finding of this pass lists exactly these lessons.
func (p *pass) isPile(t Target, members []string) bool {
	return slices.ContainsFunc(p.piles(), func(c *candidate) bool {
		return sameText(c.rec.Target, t.String()) && slices.Equal(slices.Sorted(slices.Values(c.rec.Evidence)), members)
	})
}

func sameText(a, b string) bool { return strings.EqualFold(a, b) }
