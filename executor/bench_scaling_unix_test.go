//go:build unix

package executor_test

import (
	"context"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/apbus/apbus/executor"
)

// BenchmarkCallScaling compares one caller with two at once, in alternating blocks of
// one run. "scaling" is how many times as many calls two complete, 2 at best; it says
// nothing where there is one processor, or where others use them. "cpu-ratio" says
// something everywhere: the processor time of a call of two callers over that of one,
// which grows with what they contend for; up to 1.18 two cores can scale 1.7 times.
func BenchmarkCallScaling(b *testing.B) {
	x, _ := benchExecutor(b, executor.Config{})
	in := map[string]any{"a": 1.5, "b": 2.5}
	const block, blocks = 5_000, 9
	measure := func(callers int) (rate, cpu float64) {
		var wg sync.WaitGroup
		began, spent := time.Now(), processorTime()
		for range callers {
			wg.Go(func() {
				for range block {
					if _, err := x.Call(context.Background(), "math.add", in); err != nil {
						b.Error(err)
						return
					}
				}
			})
		}
		wg.Wait()
		calls := float64(callers * block)
		return calls / time.Since(began).Seconds(), float64(processorTime()-spent) / calls
	}
	measure(2) // warm
	for b.Loop() {
		rates, scaling, ratios := make([]float64, blocks), make([]float64, blocks), make([]float64, blocks)
		for i := range blocks {
			one, alone := measure(1)
			two, both := measure(2)
			rates[i], scaling[i], ratios[i] = two, two/one, both/alone
		}
		for _, list := range [][]float64{rates, scaling, ratios} {
			slices.Sort(list)
		}
		b.ReportMetric(scaling[blocks/2], "scaling")
		b.ReportMetric(ratios[blocks/2], "cpu-ratio")
		b.ReportMetric(rates[blocks/2], "calls/s")
	}
}

// processorTime is what this process has used.
func processorTime() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
