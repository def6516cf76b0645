package examples_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/apbus/apbus/examples"
	"github.com/apbus/apbus/module"
)

func TestWords(t *testing.T) {
	x := newDirect(t, examples.Options{Groups: []string{"text"}})
	words := x.mods["text.words"].(module.Streamer)
	for _, tt := range []struct {
		name string
		text string
		want []module.Chunk
		all  map[string]any
	}{
		{"none", " \n", []module.Chunk{{"count": int64(0)}}, obj("count", int64(0))},
		{"three", "to  be\nor ", []module.Chunk{
			{"index": int64(0), "word": "to"}, {"index": int64(1), "word": "be"}, {"index": int64(2), "word": "or"}, {"count": int64(3)},
		}, obj("index", int64(2), "word", "or", "count", int64(3))},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var got []module.Chunk
			for c, err := range words.Stream(t.Context(), obj("text", tt.text)) {
				if err != nil {
					t.Fatal(err)
				}
				got = append(got, c)
			}
			if d := cmp.Diff(tt.want, got); d != "" {
				t.Errorf("chunks (-want +got):\n%s", d)
			}
			if d := cmp.Diff(tt.all, mustCall(t, x, "text.words", obj("text", tt.text))); d != "" {
				t.Errorf("output (-want +got):\n%s", d)
			}
		})
	}
}

func TestWordsPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		words := newDirect(t, examples.Options{Groups: []string{"text"}}).mods["text.words"].(module.Streamer)
		began := time.Now()
		gone := errors.New("gone")
		ctx, stop := context.WithCancelCause(t.Context())
		time.AfterFunc(250*time.Millisecond, func() { stop(gone) })
		n := 0
		var last error
		for _, err := range words.Stream(ctx, obj("text", "a b c d", "delay_ms", int64(100))) {
			if last = err; err == nil {
				n++
			}
		}
		if took := time.Since(began); n != 2 || took != 250*time.Millisecond || !errors.Is(last, gone) {
			t.Errorf("%d words in %v, then %v", n, took, last)
		}
	})
}
