package loop

import (
	"cmp"
	"context"
	"iter"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Reader shows the items as records: lessons, facts, skills and plans.
func (k *Knowledge) Reader() Reader { return knowledgeReader{k} }

type knowledgeReader struct{ k *Knowledge }

// Records implements [Reader].
func (r knowledgeReader) Records(ctx context.Context, q Query) iter.Seq2[*Record, error] {
	return func(yield func(*Record, error) bool) {
		if !q.WantsType(TypeLesson) && !q.WantsType(TypeFact) && !q.WantsType(TypeSkill) && !q.WantsType(TypePlan) {
			return
		}
		items, _, err := r.k.Items(ctx, !q.Superseded)
		if err != nil {
			yield(nil, err)
			return
		}
		for _, i := range items {
			if rec := i.record(); rec != nil && q.Wants(rec) && !yield(rec, nil) {
				return
			}
		}
	}
}

// ByHash implements [Reader].
func (r knowledgeReader) ByHash(ctx context.Context, hashes []string) (map[string]*Record, error) {
	items, _, err := r.k.Items(ctx, false)
	if err != nil {
		return nil, err
	}
	found := make(map[string]*Record)
	for _, i := range items {
		if slices.Contains(hashes, i.Hash) {
			if rec := i.record(); rec != nil {
				found[i.Hash] = rec
			}
		}
	}
	return found, nil
}

// Count implements [Reader]: knowledge is no evidence.
func (knowledgeReader) Count(context.Context, Query) (Counts, error) { return Counts{}, nil }

// record is the item as a record, nil for types that are none.
func (i *Item) record() *Record {
	fields := maps.Clone(i.Fields)
	if fields == nil {
		fields = make(map[string]any)
	}
	r := &Record{Hash: i.Hash, Namespace: i.Namespace, CreatedAtMS: i.AppliedAtMS, Fields: fields}
	switch i.Type {
	case ItemFact:
		r.Type, fields["subject"] = TypeFact, i.Name
		if i.IsLesson() {
			r.Type = TypeLesson
		}
	case ItemSkill:
		r.Type, fields["name"] = TypeSkill, i.Name
	case ItemPlan:
		r.Type, fields["name"] = TypePlan, i.Name
	default:
		return nil
	}
	if !i.Live {
		r.SupersededBy = i.By
	}
	return r
}

// Guidance is one thing the fleet has learned about a module.
type Guidance struct {
	// Kind is lesson, fact or skill.
	Kind string `json:"kind"`
	Text string `json:"text"`
	// Rec is the recommendation that it came from.
	Rec         string `json:"rec"`
	AppliedAtMS int64  `json:"applied_at"`
	// Hash names the item, so that evidence can say what a caller was shown.
	Hash string `json:"hash"`
}

// MaxGuidance is how many pieces of guidance a module has at most, newest first.
const MaxGuidance = 20

// Guidance returns what is known about a module: live lessons and facts whose
// subject it is, and live skills that name it as a word; newest first.
func (k *Knowledge) Guidance(ctx context.Context, moduleID string) ([]Guidance, error) {
	items, _, err := k.Items(ctx, true)
	if err != nil {
		return nil, err
	}
	return GuidanceOf(items, moduleID), nil
}

// GuidanceOf is [Knowledge.Guidance] over items that were read before.
func GuidanceOf(items []*Item, moduleID string) []Guidance {
	var list []Guidance
	for _, i := range items {
		g := Guidance{Rec: i.Rec, AppliedAtMS: i.AppliedAtMS, Hash: i.Hash}
		switch {
		case i.IsLesson() && i.Name == moduleID:
			g.Kind, g.Text = "lesson", i.Text("object")
		case i.Type == ItemFact && i.Name == moduleID:
			g.Kind, g.Text = "fact", i.Text("relation")+" "+i.Text("object")
		case i.Type == ItemSkill && mentions(i, moduleID):
			g.Kind, g.Text = "skill", skillText(i)
		default:
			continue
		}
		list = append(list, g)
	}
	slices.SortStableFunc(list, func(a, b Guidance) int { return newestFirst(a.AppliedAtMS, b.AppliedAtMS, a.Hash, b.Hash) })
	return list[:min(len(list), MaxGuidance)]
}

// newestFirst is the order of guidance.
func newestFirst(aMS, bMS int64, a, b string) int {
	return cmp.Or(cmp.Compare(bMS, aMS), strings.Compare(a, b))
}

func skillText(i *Item) string {
	var b strings.Builder
	b.WriteString(i.Name + ": " + i.Text("description") + " When: " + i.Text("when_to_use"))
	steps, _ := i.Fields["steps"].([]any)
	for n, s := range steps {
		text, _ := s.(string)
		b.WriteString(" (" + strconv.Itoa(n+1) + ") " + text)
	}
	return b.String()
}

// mentions reports whether a skill names a module as a whole word.
func mentions(i *Item, moduleID string) bool {
	return slices.ContainsFunc(i.texts(), func(text string) bool { return moduleWords(text)[moduleID] })
}

// moduleWords are the words of a text that may be IDs of modules.
func moduleWords(text string) map[string]bool {
	set := make(map[string]bool)
	for w := range strings.FieldsFuncSeq(text, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '_' || r == '.')
	}) {
		if w = strings.Trim(w, "."); w != "" {
			set[w] = true
		}
	}
	return set
}
