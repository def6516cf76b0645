package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/apbus/apbus/internal/settings"
	"github.com/apbus/apbus/module"
)

// benchFlags say how much load a benchmark makes.
type benchFlags struct {
	InFlight int           `local:"" default:"16" placeholder:"N" help:"How many are under way at once."`
	Count    int           `local:"" placeholder:"N" help:"How many in all; without it as many as --for allows."`
	For      time.Duration `local:"" default:"5s" placeholder:"5s" help:"How long, without --count."`
}

// maxInFlight bounds the goroutines of a benchmark.
const maxInFlight = 10_000

func (f *benchFlags) check() error {
	switch {
	case f.InFlight < 1 || f.InFlight > maxInFlight:
		return settings.Usagef("--in-flight must be 1 to %d", maxInFlight)
	case f.Count < 0:
		return settings.Usagef("--count must not be negative")
	case f.Count == 0 && f.For <= 0:
		return settings.Usagef("--for must be positive")
	}
	return nil
}

// measured is what a benchmark came to. Times are of what succeeded.
type measured struct {
	took   time.Duration
	times  []time.Duration // sorted
	parts  int             // chunks of streams
	failed map[string]int  // by code
	sample error           // the first failure
}

// run repeats op until the load is done or ctx ends; what is under way then is
// finished and not counted as failed. op returns how many parts it received.
func (f *benchFlags) run(ctx context.Context, op func(context.Context) (parts int, err error)) *measured {
	m := &measured{failed: map[string]int{}}
	var (
		mu    sync.Mutex
		begun int
		wg    sync.WaitGroup
	)
	began := time.Now()
	take := func() bool {
		mu.Lock()
		defer mu.Unlock()
		if ctx.Err() != nil || (f.Count > 0 && begun >= f.Count) || (f.Count == 0 && time.Since(began) >= f.For) {
			return false
		}
		begun++
		return true
	}
	for range f.InFlight {
		wg.Go(func() {
			for take() {
				started := time.Now()
				parts, err := op(ctx)
				took := time.Since(started)
				mu.Lock()
				switch {
				case err == nil:
					m.times = append(m.times, took)
					m.parts += parts
				case ctx.Err() == nil:
					m.failed[codeOrText(err)]++
					if m.sample == nil {
						m.sample = err
					}
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	m.took = time.Since(began)
	slices.Sort(m.times)
	return m
}

func codeOrText(err error) string {
	if coded := module.AsError(err); coded != nil {
		return string(coded.Code)
	}
	if _, ok := errors.AsType[*interruptedError](err); ok {
		return "interrupted"
	}
	return "unreachable"
}

// quantile is the time that the share q of the successes took at most.
func (m *measured) quantile(q float64) time.Duration {
	if len(m.times) == 0 {
		return 0
	}
	i := int(math.Ceil(q*float64(len(m.times)))) - 1
	return m.times[min(max(i, 0), len(m.times)-1)]
}

func (m *measured) perSecond(n int) float64 {
	if m.took <= 0 {
		return 0
	}
	return float64(n) / m.took.Seconds()
}

// print shows the figures, as one document or for people, also of a benchmark that
// was interrupted. One in which something failed fails itself.
func (m *measured) print(s *session, what, id string, f *benchFlags) error {
	p := s.stdout
	failures := 0
	for _, n := range m.failed {
		failures += n
	}
	if p.json {
		if err := p.document(m.document(what, id, f)); err != nil {
			return err
		}
	} else if err := m.text(p, what, id, f); err != nil {
		return err
	}
	if s.ctx.Err() != nil {
		return fmt.Errorf("%w: the figures are of what was over", settings.ErrInterrupted)
	}
	if failures > 0 {
		return &toldError{fmt.Sprintf("%d of %d failed: %v", failures, failures+len(m.times), m.sample)}
	}
	return nil
}

func (m *measured) document(what, id string, f *benchFlags) map[string]any {
	millis := func(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
	failed := map[string]any{}
	for code, n := range m.failed {
		failed[code] = int64(n)
	}
	doc := map[string]any{
		"bench": what, "module_id": id, "in_flight": int64(f.InFlight),
		"succeeded": int64(len(m.times)), "failed": failed,
		"seconds": m.took.Seconds(), "per_second": m.perSecond(len(m.times)),
		"latency_ms": map[string]any{
			"p50": millis(m.quantile(0.50)), "p90": millis(m.quantile(0.90)),
			"p99": millis(m.quantile(0.99)), "max": millis(m.quantile(1)),
		},
	}
	if m.parts > 0 {
		doc["chunks"], doc["chunks_per_second"] = int64(m.parts), m.perSecond(m.parts)
	}
	return doc
}

func (m *measured) text(p *printer, what, id string, f *benchFlags) error {
	lines := []string{fmt.Sprintf("%s: %d %ss in %s with %d in flight: %.0f a second",
		id, len(m.times), what, m.took.Round(10*time.Millisecond), f.InFlight, m.perSecond(len(m.times)))}
	if m.parts > 0 {
		lines = append(lines, fmt.Sprintf("%d chunks: %.0f a second", m.parts, m.perSecond(m.parts)))
	}
	if len(m.times) > 0 {
		lines = append(lines, fmt.Sprintf("p50 %s, p90 %s, p99 %s, max %s", brief(m.quantile(0.50)),
			brief(m.quantile(0.90)), brief(m.quantile(0.99)), brief(m.quantile(1))))
	}
	for _, code := range sortedKeys(m.failed) {
		lines = append(lines, p.red(fmt.Sprintf("%d failed: %s", m.failed[code], code)))
	}
	if m.sample != nil {
		lines = append(lines, "the first: "+printable(m.sample.Error()))
	}
	return p.line("%s", strings.Join(lines, "\n"))
}

// brief rounds a time to three digits or so.
func brief(d time.Duration) time.Duration {
	switch {
	case d < time.Millisecond:
		return d.Round(time.Microsecond)
	case d < time.Second:
		return d.Round(10 * time.Microsecond)
	}
	return d.Round(10 * time.Millisecond)
}
