package loop

import (
	"cmp"
	"context"
	"math"
	"slices"

	"github.com/apbus/apbus/module"
)

// Embedder makes vectors of texts, so that texts of like meaning have vectors of like
// direction. Implementations are safe for concurrent use.
type Embedder interface {
	// Embed returns a vector for each text, in their order; an empty one where there is
	// none.
	Embed(ctx context.Context, texts []string) ([][]float64, error)
}

// How the likeness of two lessons was measured.
const (
	methodJaccard = "jaccard"
	methodCosine  = "cosine"
)

// nearby is a lesson to compare with: one that is live, or one that was rejected and
// rests.
type nearby struct {
	hash, text string
	state      State
}

// nearDuplicates lists live lessons about the same subject, and lessons that were
// rejected and rest, that say nearly what an authored lesson says; best first. With an
// embedder they are compared by the cosine of their vectors, where both have one, else
// by their words. A consolidation is meant to be near.
func (p *pass) nearDuplicates(r *resolved, vectors map[string][]float64) []NearDuplicate {
	if !r.isLesson() {
		return nil
	}
	var near []NearDuplicate
	mine := words(r.lesson)
	for _, o := range p.lessonsNear(r) {
		score, method, floor := jaccard(mine, words(o.text)), methodJaccard, NearDuplicateScore
		if c, ok := cosine(vectors[r.lesson], vectors[o.text]); ok {
			score, method, floor = c, methodCosine, NearDuplicateCosine
		}
		if score >= floor {
			near = append(near, NearDuplicate{Hash: o.hash, Score: math.Round(score*1000) / 1000, Method: method, State: o.state})
		}
	}
	slices.SortFunc(near, func(a, b NearDuplicate) int {
		return cmp.Or(cmp.Compare(b.Score, a.Score), cmp.Compare(a.Hash, b.Hash))
	})
	return near[:min(len(near), MaxNearDuplicates)]
}

func (r *resolved) isLesson() bool { return r.kind == KindLesson && r.ops != nil }

func (p *pass) lessonsNear(r *resolved) []nearby {
	var list []nearby
	for _, i := range p.items {
		if i.Live && i.IsLesson() && sameText(i.Name, r.target.Subject()) {
			list = append(list, nearby{hash: i.Hash, text: i.Text("object")})
		}
	}
	_, cooling := p.held()
	for _, c := range p.cases {
		if c.Status.State == StateRejected && c.Rec.Kind == KindLesson && sameText(c.Rec.Target, r.target.String()) &&
			p.now.UnixMilli() < cooling[c.Rec.DedupKey] && len(c.Rec.Proposal.Ops) == 1 {
			object, _ := c.Rec.Proposal.Ops[0].Fields["object"].(string)
			list = append(list, nearby{c.Hash, object, StateRejected})
		}
	}
	return list
}

// maxEmbedded bounds what a pass has embedded; what is beyond is compared by words.
const maxEmbedded = 512

// embed asks once for the vectors of all lessons among the drafts of a pass, and of what
// they are compared with, by their texts. That it fails blocks nothing: then there are
// none.
func (p *pass) embed(ctx context.Context, drafts []*resolved) map[string][]float64 {
	if p.embedder == nil {
		return nil
	}
	var mine, theirs []string
	for _, r := range drafts {
		if !r.isLesson() {
			continue
		}
		if near := p.lessonsNear(r); len(near) > 0 {
			mine = append(mine, r.lesson)
			for _, o := range near {
				theirs = append(theirs, o.text)
			}
		}
	}
	var texts []string
	asked := make(map[string]bool)
	for _, text := range append(mine, theirs...) {
		if !asked[text] && len(texts) < maxEmbedded {
			asked[text] = true
			texts = append(texts, text)
		}
	}
	if len(texts) == 0 {
		return nil
	}
	got, err := p.embedder.Embed(ctx, texts)
	if err != nil || len(got) != len(texts) {
		p.log.WarnContext(ctx, "loop: lessons are compared by their words", "code", module.CodeLoopBackend, "cause", err)
		return nil
	}
	vectors := make(map[string][]float64, len(texts))
	for i, text := range texts {
		vectors[text] = got[i]
	}
	return vectors
}

// cosine of two vectors, 0 to 1; ok is false where there is none, because one is empty
// or zero, their lengths differ, or they hold what is no number.
func cosine(a, b []float64) (score float64, ok bool) {
	if len(a) == 0 || len(a) != len(b) {
		return 0, false
	}
	var dot, aa, bb float64
	for i := range a {
		dot, aa, bb = dot+a[i]*b[i], aa+a[i]*a[i], bb+b[i]*b[i]
	}
	score = dot / math.Sqrt(aa*bb)
	if math.IsNaN(score) || math.IsInf(score, 0) {
		return 0, false
	}
	const rounding = 1e-9 // so that what is at the floor counts as at the floor
	return min(max(score+rounding, 0), 1), true
}
