package loop_test

import (
	"context"
	"errors"
	"math"
	"testing"

	"github.com/apbus/apbus/loop"
)

// vectors is an embedder that knows some texts.
type vectors map[string][]float64

func (v vectors) Embed(_ context.Context, texts []string) ([][]float64, error) {
	if v == nil {
		return nil, errors.New("down")
	}
	out := make([][]float64, len(texts))
	for i, t := range texts {
		out[i] = v[t]
	}
	return out, nil
}

// at is a vector whose cosine with {1, 0} is c.
func at(c float64) []float64 { return []float64{3 * c, 3 * math.Sqrt(1-c*c)} }

// Lessons are near by the cosine of their vectors, where both have one, else by their
// words (loop specification, section 4.1).
func TestNearDuplicates(t *testing.T) {
	const (
		there = "Cancel an order before refunding it."
		like  = "Cancel an order before you refund it." // 5 of 8 words: 0.625
		other = "Whoever wants money back gives the goods back first."
		less  = "Cancel an order before a refund is asked for." // below 0.60
	)
	for _, tt := range []struct {
		name, lesson string
		embedder     loop.Embedder
		method       string // "" for not near
		score        float64
	}{
		{"words above", like, nil, "jaccard", 0.625},
		{"words below", less, nil, "", 0},
		{"words at", "one two three", nil, "jaccard", 0.6},
		{"meaning above", other, vectors{there: {1, 0}, other: at(0.95)}, "cosine", 0.95},
		{"meaning at", other, vectors{there: {1, 0}, other: at(0.90)}, "cosine", 0.9},
		{"meaning below", other, vectors{there: {1, 0}, other: at(0.899)}, "", 0},
		{"meaning outweighs words", like, vectors{there: {1, 0}, like: at(0.5)}, "", 0},
		{"opposite meaning", like, vectors{there: {1, 0}, like: {-1, 0}}, "", 0},
		{"no vector on one side", like, vectors{there: {1, 0}}, "jaccard", 0.625},
		{"no vector on the other", like, vectors{like: {1, 0}}, "jaccard", 0.625},
		{"a vector of zero", like, vectors{there: {0, 0}, like: {1, 0}}, "jaccard", 0.625},
		{"vectors of two lengths", like, vectors{there: {1, 0, 0}, like: {1, 0}}, "jaccard", 0.625},
		{"vectors of no numbers", like, vectors{there: {math.NaN(), 0}, like: {math.Inf(1), 0}}, "jaccard", 0.625},
		{"the embedder is down", like, vectors(nil), "jaccard", 0.625},
	} {
		t.Run(tt.name, func(t *testing.T) {
			old := there
			if tt.name == "words at" {
				old = "one two three four five"
			}
			for _, suppress := range []bool{false, true} {
				w := newWorld(t, proposing(lesson(old)), onlyLLM)
				w.failing(12)
				w.run(pinned(), loop.RunOptions{})
				first := w.llm()[0].Hash
				w.approve(first)
				w.apply(pinned(), first)
				w.model.discover = func(map[string]any) string { return discovery(lesson(tt.lesson)) }
				w.engine = w.open(w.store, onlyLLM, func(o *loop.Options) { o.Embedder = tt.embedder }, withPolicy(func(p *loop.Policy) {
					if suppress {
						p.NearDuplicate = loop.NearDuplicateSuppress
					}
				}))
				r := w.run(pinned().Add(day(1)), loop.RunOptions{FullSweep: true})
				if suppress {
					if dropped := r.Funnel.DroppedNearDuplicate; (dropped == 1) != (tt.method != "") {
						t.Errorf("%d dropped", dropped)
					}
					continue
				}
				var near []loop.NearDuplicate
				for _, c := range w.llm() {
					if c.Hash != first {
						near = c.Rec.NearDuplicateOf
					}
				}
				switch {
				case tt.method == "" && len(near) > 0, tt.method != "" && len(near) != 1:
					t.Errorf("near %+v, want %q", near, tt.method)
				case tt.method != "" && (near[0].Method != tt.method || near[0].Score != tt.score):
					t.Errorf("near %+v, want %s %v", near[0], tt.method, tt.score)
				}
			}
		})
	}
}

// deaf is an embedder that fails, and counts how often it was asked.
type deaf struct{ asked int }

func (d *deaf) Embed(context.Context, []string) ([][]float64, error) {
	d.asked++
	return nil, errors.New("down")
}

// A pass asks an embedder that failed no second time: it holds a lock meanwhile.
func TestAFailedEmbedderIsAskedOnce(t *testing.T) {
	w := newWorld(t, proposing(lesson("there is one")), onlyLLM)
	w.failing(12)
	w.run(pinned(), loop.RunOptions{})
	w.approve(w.llm()[0].Hash)
	w.apply(pinned(), w.llm()[0].Hash)
	d := &deaf{}
	w.model.discover = func(map[string]any) string {
		return discovery(lesson("a one"), lesson("b two"), lesson("c three"))
	}
	w.engine = w.open(w.store, onlyLLM, func(o *loop.Options) { o.Embedder = d })
	for passes := 1; passes <= 2; passes++ {
		w.run(pinned().Add(day(passes)), loop.RunOptions{FullSweep: true})
		if d.asked != passes {
			t.Errorf("asked %d times in %d passes", d.asked, passes)
		}
	}
}
