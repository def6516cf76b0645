package main

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"
)

// load is what every contender gets to do.
type load struct {
	tasks    int
	inFlight int
	payload  string
}

// figures are what one run came to.
type figures struct {
	took time.Duration
	// waits are the times from the start of a submission to the start of the task,
	// sorted.
	waits []time.Duration
}

func (f figures) perSecond(l load) float64 { return float64(l.tasks) / f.took.Seconds() }

func (f figures) quantile(q float64) time.Duration {
	if len(f.waits) == 0 {
		return 0
	}
	return f.waits[min(len(f.waits)-1, int(q*float64(len(f.waits))))]
}

// contender is one queue in one mode. A queue is opened, used for any number of runs
// and closed.
type contender interface {
	name() string
	open(ctx context.Context) error
	// submit stores one task, whose payload holds the number.
	submit(ctx context.Context, number int, payload string) error
	// completed returns how many tasks the queue has completed since it was opened.
	completed(ctx context.Context) (int, error)
	close()
}

// starts is told by the handlers of a contender that a task runs.
type starts struct {
	mu      sync.Mutex
	waiting map[int]chan time.Time
}

func newStarts() *starts { return &starts{waiting: map[int]chan time.Time{}} }

func (s *starts) expect(number int) <-chan time.Time {
	c := make(chan time.Time, 1)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting[number] = c
	return c
}

// ran is called by a handler. A task that runs again is not counted again.
func (s *starts) ran(number int) {
	now := time.Now()
	s.mu.Lock()
	c := s.waiting[number]
	delete(s.waiting, number)
	s.mu.Unlock()
	if c != nil {
		c <- now
	}
}

// run gives c the whole load. first is the number of the first task.
func run(ctx context.Context, c contender, s *starts, l load, first int) (figures, error) {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	before, err := c.completed(ctx)
	if err != nil {
		return figures{}, err
	}
	var (
		mu    sync.Mutex
		waits = make([]time.Duration, 0, l.tasks)
		next  = first
		wg    sync.WaitGroup
	)
	take := func() (int, bool) {
		mu.Lock()
		defer mu.Unlock()
		next++
		return next - 1, next <= first+l.tasks
	}
	began := time.Now()
	for range l.inFlight {
		wg.Go(func() {
			for number, more := take(); more; number, more = take() {
				started := s.expect(number)
				submitted := time.Now()
				if err := c.submit(ctx, number, l.payload); err != nil {
					stop(fmt.Errorf("submit: %w", err))
					return
				}
				select {
				case at := <-started:
					mu.Lock()
					waits = append(waits, at.Sub(submitted))
					mu.Unlock()
				case <-ctx.Done():
					return
				}
			}
		})
	}
	wg.Wait()
	if ctx.Err() != nil {
		return figures{}, context.Cause(ctx)
	}
	for {
		done, err := c.completed(ctx)
		if err != nil {
			return figures{}, err
		}
		if done-before >= l.tasks {
			break
		}
		select {
		case <-time.After(time.Millisecond):
		case <-ctx.Done():
			return figures{}, fmt.Errorf("%d of %d tasks completed: %w", done-before, l.tasks, context.Cause(ctx))
		}
	}
	f := figures{took: time.Since(began), waits: waits}
	slices.Sort(f.waits)
	return f, nil
}
