package examples_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/apbus/apbus/examples"
)

func top(kv ...any) []any {
	out := []any{}
	for i := 0; i < len(kv); i += 2 {
		out = append(out, obj("word", kv[i], "count", int64(kv[i+1].(int))))
	}
	return out
}

func TestWordcount(t *testing.T) {
	x := newDirect(t, examples.Options{Groups: []string{"text"}})
	for _, tt := range []struct {
		name, text          string
		words, lines, bytes int64
		top                 []any
	}{
		{"empty", "", 0, 0, 0, top()},
		{"white space", " \t\n", 0, 1, 3, top()},
		{"one word", "word", 1, 1, 4, top("word", 1)},
		{"last line without newline", "a\nb", 2, 2, 3, top("a", 1, "b", 1)},
		{"last line with newline", "a\nb\n", 2, 2, 4, top("a", 1, "b", 1)},
		{"case kept", "Go go GO go", 4, 1, 11, top("go", 2, "GO", 1, "Go", 1)},
		{"punctuation belongs to the word", "end. end", 2, 1, 8, top("end", 1, "end.", 1)},
		{"white space of Unicode", "a\u00a0b\u2003c\u0085d", 4, 1, 11, top("a", 1, "b", 1, "c", 1, "d", 1)},
		{"letters of Unicode", "čaj čaj ☕", 3, 1, 13, top("čaj", 2, "☕", 1)},
		{
			"ten at most", "k j i h g f e d c b a a", 12, 1, 23,
			top("a", 2, "b", 1, "c", 1, "d", 1, "e", 1, "f", 1, "g", 1, "h", 1, "i", 1, "j", 1),
		},
		{"all white space of ASCII", "a\tb\nc\vd\fe\rf g", 7, 2, 13, top("a", 1, "b", 1, "c", 1, "d", 1, "e", 1, "f", 1, "g", 1)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := mustCall(t, x, "text.wordcount", obj("text", tt.text))
			want := obj("words", tt.words, "lines", tt.lines, "bytes", tt.bytes, "top", tt.top)
			if d := cmp.Diff(want, got); d != "" {
				t.Error(d)
			}
		})
	}
}

func TestWordcountAgreesWithFields(t *testing.T) {
	x := newDirect(t, examples.Options{Groups: []string{"text"}})
	text := rapid.StringOfN(rapid.RuneFrom([]rune("abc \n\t\u00a0\u2028é")), 0, 200, -1)
	rapid.Check(t, func(t *rapid.T) {
		s := text.Draw(t, "text")
		out, err := x.Call(t.Context(), "text.wordcount", obj("text", s))
		if err != nil {
			t.Fatal(err)
		}
		fields := strings.Fields(s)
		counts := map[string]int{}
		for _, f := range fields {
			counts[f]++
		}
		words := make([]string, 0, len(counts))
		for w := range counts {
			words = append(words, w)
		}
		slices.SortFunc(words, func(a, b string) int {
			if counts[a] != counts[b] {
				return counts[b] - counts[a]
			}
			return strings.Compare(a, b)
		})
		want := top()
		for _, w := range words[:min(10, len(words))] {
			want = append(want, top(w, counts[w])...)
		}
		if d := cmp.Diff(obj("words", int64(len(fields)), "top", want), obj("words", out["words"], "top", out["top"])); d != "" {
			t.Fatal(d)
		}
	})
}

func bigText(megabytes int) string {
	var b strings.Builder
	for i := 0; b.Len() < megabytes<<20; i++ {
		fmt.Fprintf(&b, "line %d of the text with some repeated words and one more: %d\n", i%5000, i%777)
	}
	return b.String()
}

// TestWordcountNeedsLittleMemory counts tens of megabytes with an allocation
// that depends on the distinct words only.
func TestWordcountNeedsLittleMemory(t *testing.T) {
	x := newDirect(t, examples.Options{Groups: []string{"text"}})
	in := obj("text", bigText(32))
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	mustCall(t, x, "text.wordcount", in)
	runtime.ReadMemStats(&after)
	if got := after.TotalAlloc - before.TotalAlloc; got > 4<<20 {
		t.Errorf("allocated %d bytes for 32 MiB of text, want at most 4 MiB", got)
	}
}

func TestWordcountStops(t *testing.T) {
	x := newDirect(t, examples.Options{Groups: []string{"text"}})
	ctx, stop := context.WithCancelCause(t.Context())
	because := errors.New("enough")
	stop(because)
	if _, err := x.Call(ctx, "text.wordcount", obj("text", "a b")); !errors.Is(err, because) {
		t.Errorf("err = %v, want the cause", err)
	}
}

func BenchmarkWordcount(b *testing.B) {
	mods, err := examples.Modules(examples.Options{Groups: []string{"text"}})
	if err != nil {
		b.Fatal(err)
	}
	in := obj("text", bigText(16))
	b.SetBytes(16 << 20)
	for b.Loop() {
		if _, err := mods[0].Execute(b.Context(), in); err != nil {
			b.Fatal(err)
		}
	}
}
