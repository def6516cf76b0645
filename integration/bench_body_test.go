package integration_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/apbus/apbus/examples"
	"github.com/apbus/apbus/module"
)

// BenchmarkLargeBody calls modules with an input or an output of 16 MiB. The
// bytes per second are those of whole calls: encode, store, read, decode,
// validate, run.
func BenchmarkLargeBody(b *testing.B) {
	text := strings.Repeat("sixteen letters ", 1<<20)
	mods, err := examples.Modules(examples.Options{Node: "n1", Groups: []string{"text"}})
	if err != nil {
		b.Fatal(err)
	}
	type textIO struct {
		Text string `json:"text"`
	}
	take := module.New("bench.take", "Take a text", func(_ context.Context, in textIO) (struct{}, error) { return struct{}{}, nil })
	give := module.New("bench.give", "Give a text", func(context.Context, struct{}) (textIO, error) { return textIO{Text: text}, nil })
	client, _ := benchNode(b, append(mods, take, give)...)
	for _, run := range []struct {
		name, id string
		in       any
	}{
		{"input", "bench.take", map[string]any{"text": text}},
		{"output", "bench.give", nil},
		{"wordcount", "text.wordcount", map[string]any{"text": text}},
	} {
		b.Run(run.name, func(b *testing.B) {
			b.SetBytes(int64(len(text)))
			for b.Loop() {
				if _, err := client.Call(b.Context(), run.id, run.in); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkCancel measures from the cancel of a caller's context to the end of the
// context of the module that runs for it on another connection.
func BenchmarkCancel(b *testing.B) {
	started, ended := make(chan struct{}), make(chan time.Time)
	wait := module.New("bench.wait", "Wait to be cancelled", func(ctx context.Context, _ struct{}) (struct{}, error) {
		started <- struct{}{}
		<-ctx.Done()
		ended <- time.Now()
		return struct{}{}, context.Cause(ctx)
	})
	client, _ := benchNode(b, wait)
	var took []time.Duration
	for b.Loop() {
		ctx, stop := context.WithCancel(b.Context())
		over := make(chan struct{})
		go func() {
			defer close(over)
			_, _ = client.Call(ctx, "bench.wait", nil) // cancelled
		}()
		<-started
		at := time.Now()
		stop()
		took = append(took, (<-ended).Sub(at))
		<-over
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-µs")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-µs")
}
