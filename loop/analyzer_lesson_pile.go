package loop

import (
	"context"
	"slices"
	"strings"
	"time"
)

// lessonPile finds subjects with more lessons than anybody reads; its finding lists
// them, which is the cue to make one of them.
type lessonPile struct{}

func (lessonPile) Manifest() Manifest {
	return Manifest{
		ID: "exec.lesson_pile/1", Title: "Lesson piles", Cadence: "slow", DefaultOn: true,
		Description: "More live lessons about one subject than anybody reads.",
		Types:       []Type{TypeLesson, TypeFact},
		Params:      []Param{intParam("max_active", 8, 1, 10_000, "how many lessons are fine")},
		Templates: map[string]string{
			"exec.lesson_pile": "{count} lessons are live about {subject}",
		},
	}
}

func (lessonPile) Begin(in Input) Pass {
	return &pilePass{now: in.Now, most: int(in.Params.Int("max_active")), piles: newTable[pile](maxCells / 4)}
}

// pile keeps the oldest lessons, as many as one finding may list.
type pile struct {
	n       int
	subject string
	list    []cited
}

type pilePass struct {
	now   time.Time
	most  int
	piles table[pile]
	key   []byte
}

func (p *pilePass) Since() time.Time { return p.now }

func (p *pilePass) Add(r *Record) {
	subject := r.Text("subject")
	if !r.Live() || subject == "" || (r.Type == TypeFact && r.Text("relation") != "lesson") {
		return
	}
	p.key = joinKey(p.key[:0], r.Namespace, strings.ToLower(subject))
	c := p.piles.at(p.key)
	var s sample
	if s.add(r); c == nil || len(s.list) == 0 {
		return
	}
	if c.n++; c.subject == "" || subject < c.subject {
		c.subject = copied(subject)
	}
	c.list = append(c.list, s.list[0])
	if len(c.list) >= 2*MaxDraftEvidence {
		c.trim()
	}
}

func (c *pile) trim() {
	slices.SortFunc(c.list, func(a, b cited) int { return -compareCited(a, b) })
	c.list = c.list[:min(len(c.list), MaxDraftEvidence)]
}

func (p *pilePass) Drafts(context.Context) ([]Draft, error) {
	var drafts []Draft
	for _, key := range p.piles.sorted() {
		c := p.piles.cells[key]
		if c.n <= p.most {
			continue
		}
		c.trim()
		ns, _, _ := strings.Cut(key, string(rune(unitSeparator)))
		hashes := (&sample{list: c.list}).hashes()
		slices.Reverse(hashes) // oldest first
		drafts = append(drafts, Draft{
			Target: "entity:" + targetName(ns) + "/" + targetName(c.subject), Action: ActionFlag, Severity: SeverityMedium,
			Summary:  Summary{"exec.lesson_pile", map[string]any{"count": int64(c.n), "subject": shown(c.subject)}},
			Evidence: hashes, Confidence: 0.9, Importance: 0.4,
		})
	}
	return ordered(drafts), nil
}
