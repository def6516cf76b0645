package examples

import (
	"context"
	"math"
	"time"

	"github.com/apbus/apbus/module"
)

type sleepIn struct {
	MS       int64 `json:"ms" minimum:"0" description:"How long to sleep, in milliseconds"`
	Steps    int64 `json:"steps,omitempty" minimum:"1" maximum:"100000" description:"How many equal parts to sleep in, each of which reports progress; 1 when absent"`
	Stubborn bool  `json:"stubborn,omitempty" description:"Sleep on when the call is cancelled or out of time"`
}

type sleepOut struct {
	SleptMS int64 `json:"slept_ms" minimum:"0" description:"How long the module slept, in milliseconds"`
}

// sleepTimeout is the limit that the sleep modules declare.
const sleepTimeout = 600 * time.Second

func sleep(id string) module.Module {
	return module.New(id, "Sleep, reporting progress",
		func(ctx context.Context, in sleepIn) (sleepOut, error) {
			if err := sleepInSteps(ctx, in); err != nil {
				return sleepOut{}, err
			}
			return sleepOut{SleptMS: in.MS}, nil
		},
		module.WithName("Sleep"),
		module.WithDocumentation("Ends at once when the call is cancelled or its time is over, unless it is asked to be stubborn."),
		module.WithTags(module.FirstSegment(id)),
		module.WithTimeout(sleepTimeout),
		module.WithAnnotations(module.Annotations{Readonly: true, Idempotent: true, ClosedWorld: true}),
		module.WithExamples(module.Example{
			Title:  "Ten milliseconds in two steps",
			Inputs: map[string]any{"ms": int64(10), "steps": int64(2)},
			Output: map[string]any{"slept_ms": int64(10)},
		}),
	)
}

func sleepInSteps(ctx context.Context, in sleepIn) error {
	steps := max(in.Steps, 1)
	total := milliseconds(in.MS)
	start := time.Now()
	for step := int64(1); step <= steps; step++ {
		// Every step ends at its own place on the clock, so that lateness does not add up.
		end := time.Duration(float64(total) * (float64(step) / float64(steps)))
		if step == steps {
			end = total
		}
		left := end - time.Since(start)
		if in.Stubborn {
			time.Sleep(left)
		} else if err := pause(ctx, left); err != nil {
			return err
		}
		module.Progress(ctx, float64(step), float64(steps), "")
	}
	return nil
}

// milliseconds does not overflow: what is longer than a Duration is cut to the longest.
func milliseconds(ms int64) time.Duration {
	return time.Duration(min(ms, math.MaxInt64/int64(time.Millisecond))) * time.Millisecond
}

// pause sleeps for d or until ctx is done, whose cause it then returns.
func pause(ctx context.Context, d time.Duration) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if d <= 0 {
		return nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
