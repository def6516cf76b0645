package task_test

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apbus/apbus/task"
	"github.com/apbus/apbus/task/tasktest"
)

// whoever is the writer that leads at the moment.
type whoever struct{ now atomic.Pointer[task.Writer] }

func (w *whoever) Submit(ctx context.Context, req task.SubmitRequest) (task.SubmitAnswer, error) {
	return w.now.Load().Submit(ctx, req)
}
func (w *whoever) Get(ctx context.Context, id string) (task.Record, error) {
	return w.now.Load().Get(ctx, id)
}
func (w *whoever) Cancel(ctx context.Context, ask task.CancelAsk) (task.CancelAnswer, error) {
	return w.now.Load().Cancel(ctx, ask)
}
func (w *whoever) Claim(ctx context.Context, req task.ClaimRequest) (task.ClaimAnswer, error) {
	return w.now.Load().Claim(ctx, req)
}
func (w *whoever) Start(ctx context.Context, req task.StartRequest) (task.LeaseAnswer, error) {
	return w.now.Load().Start(ctx, req)
}
func (w *whoever) Renew(ctx context.Context, req task.RenewRequest) (task.LeaseAnswer, error) {
	return w.now.Load().Renew(ctx, req)
}
func (w *whoever) Finish(ctx context.Context, rep task.FinishReport) (task.FinishAnswer, error) {
	return w.now.Load().Finish(ctx, rep)
}

// slow is a log whose commits take a while, so that callers meet.
type slow struct{ task.Log }

func (l slow) Commit(ctx context.Context, entries []task.Entry) error {
	<-time.After(time.Duration(rand.Int64N(int64(3 * time.Millisecond))))
	if err := l.Log.Commit(ctx, entries); err != nil {
		return err
	}
	<-time.After(time.Duration(rand.Int64N(int64(3 * time.Millisecond))))
	return nil
}

// 32 clients act on the same tasks over a log in memory, while writers are deposed:
// the history of each task is that of one record in one place.
func TestLinearizable(t *testing.T) {
	for range 3 {
		seed := rand.Uint64()
		var seen *tasktest.History
		synctest.Test(t, func(t *testing.T) {
			mem, term, svc := task.NewMemLog(), atomic.Int64{}, &whoever{}
			ctx, stop := context.WithCancelCause(context.Background())
			var writers sync.WaitGroup
			lead := func() {
				mine := term.Add(1)
				w, err := task.NewWriter(slow{mem.Lead()}, task.WriterOptions{
					Namespace: "test", Lease: time.Hour, Logger: slog.New(slog.DiscardHandler), Leading: func() bool { return term.Load() == mine },
				})
				if err != nil {
					t.Error(err)
					return
				}
				writers.Go(func() { _ = w.Run(ctx) })
				svc.now.Store(w)
			}
			lead()
			over := make(chan struct{})
			writers.Go(func() {
				for {
					select {
					case <-time.After(60 * time.Millisecond):
						lead()
					case <-over:
						return
					}
				}
			})
			clients := make([]tasktest.LinearClient, 32)
			for i := range clients {
				clients[i] = svc
			}
			seen = tasktest.RunLinear(t, tasktest.Linear{
				Seed: seed, Clients: clients, Steps: 30, Module: "job.effect", Pause: func(d time.Duration) { <-time.After(10 * d) },
			})
			close(over)
			stop(errors.New("the test ends"))
			writers.Wait()
		})
		seen.Judge(t)
	}
}
