package loop

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// Tables of parts merge into the table of all, also where each of them samples, in
// whatever order; so do samples.
func TestMergeIsTheWhole(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit := rapid.IntRange(1, 20).Draw(t, "limit")
		parts := rapid.SliceOfN(rapid.SliceOfN(rapid.IntRange(0, 120), 0, 80), 1, 6).Draw(t, "parts")
		all, merged := newTable[int](limit), newTable[int](limit)
		var whole, put sample
		for _, keys := range parts {
			part := newTable[int](limit)
			var some sample
			for _, k := range keys {
				for _, to := range []*table[int]{&all, &part} {
					if n := to.at(fmt.Appendf(nil, "key%d", k)); n != nil {
						*n++
					}
				}
				r := &Record{CreatedAtMS: int64(k / 7), Hash: fmt.Sprintf("%064x", k)}
				whole.add(r)
				some.add(r)
			}
			if rapid.Bool().Draw(t, "settled") {
				part.settle(nil)
				some.settle()
			}
			merged.merge(&part, sum)
			put.merge(&some)
		}
		if diff := cmp.Diff(cellsOf(all), cellsOf(merged)); diff != "" || all.halved != merged.halved {
			t.Fatalf("halved %d times, want %d: %s", merged.halved, all.halved, diff)
		}
		if diff := cmp.Diff(whole.hashes(), put.hashes()); diff != "" {
			t.Fatal(diff)
		}
	})
}

func cellsOf(t table[int]) map[string]int {
	cells := map[string]int{}
	for k, n := range t.cells {
		cells[k] = *n
	}
	return cells
}

// Trees of calls are bounded by how many calls they hold; those of parts end as those of
// all do.
func TestTreesMergeBeyondTheirBound(t *testing.T) {
	params, err := func() (Params, error) { m := deadlinePressure{}.Manifest(); return m.ResolveParams(nil) }()
	if err != nil {
		t.Fatal(err)
	}
	begin := func() *deadlinePass { return deadlinePressure{}.Begin(Input{Params: params}).(*deadlinePass) }
	fill := func(p *deadlinePass, from, to int) {
		for i := from; i < to; i++ {
			key := fmt.Appendf(nil, "trace%d", i/3)
			if tr := p.trees.at(key); tr != nil {
				tr.calls = append(tr.calls, treeCall{uint64(i), 1}) //nolint:gosec // not negative
				p.held++
				p.bound()
			}
		}
	}
	const n, part = 3 * maxHops, maxHops / 4
	all, merged := begin(), begin()
	fill(all, 0, n)
	var parts []*deadlinePass
	for from := 0; from < n; from += part {
		p := begin()
		fill(p, from, from+part)
		parts = append(parts, p)
	}
	for _, p := range slices.Backward(parts) {
		merged.merge(p)
	}
	if all.held != merged.held || all.trees.halved != merged.trees.halved || all.trees.halved == 0 || len(all.trees.cells) != len(merged.trees.cells) {
		t.Errorf("%d calls of %d trees, halved %d times; want %d of %d, %d", merged.held, len(merged.trees.cells), merged.trees.halved,
			all.held, len(all.trees.cells), all.trees.halved)
	}
}
