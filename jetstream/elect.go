package jetstream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/apbus/apbus/task"
)

// Elect takes part in the election until ctx is done. Each time this process
// leads it calls run, whose context ends with cause [task.ErrDeposed] when the
// lead is lost; only then, and with the log it was given, may it write. When run
// returns, the lead is given up, so that another process takes it at once.
//
// Elect returns nil once ctx is done, and otherwise what run returned unless that
// is [task.ErrDeposed], after which it waits for the lead again; nil too, if run
// leaves of its own accord.
//
// It calls run once at a time. A process that is killed is followed within the
// lease and a poll of a tenth of it.
func (s *Store) Elect(ctx context.Context, run func(ctx context.Context, log *Log) error) error {
	for {
		l, err := s.campaign(ctx)
		if err != nil {
			return err
		}
		if l == nil {
			return nil
		}
		s.o.Logger.Info("leading the tasks", "namespace", s.o.Namespace, "stream", s.o.Stream)
		err = s.reign(ctx, l, run)
		if !errors.Is(err, task.ErrDeposed) {
			return err
		}
		s.o.Logger.Warn("no longer leading the tasks", "namespace", s.o.Namespace, "cause", err)
		if ctx.Err() != nil {
			return nil
		}
	}
}

// reign runs one leadership to its end.
func (s *Store) reign(ctx context.Context, l *lead, run func(context.Context, *Log) error) error {
	reign, stop := context.WithCancelCause(ctx)
	l.stop = stop
	// Renewals go on while run winds up after ctx is done, so that what it still
	// commits is fenced like everything else.
	beats, stopBeats := context.WithCancelCause(context.WithoutCancel(ctx))
	var wg sync.WaitGroup
	wg.Go(func() { l.hold(beats) })
	err := run(reign, &Log{lead: l})
	stopBeats(errors.New("the leadership is over"))
	wg.Wait()
	lost := context.Cause(reign)
	stop(nil)
	if errors.Is(lost, task.ErrDeposed) {
		if err == nil || errors.Is(err, lost) || reign.Err() != nil && errors.Is(err, context.Canceled) {
			err = lost
		}
		return err
	}
	if releaseErr := l.release(context.WithoutCancel(ctx)); releaseErr != nil {
		s.o.Logger.Warn("the lead was not given up; others wait until it runs out", "cause", releaseErr)
	}
	if ctx.Err() != nil && (errors.Is(err, context.Canceled) || errors.Is(err, context.Cause(ctx))) {
		err = nil
	}
	return err
}

// campaign waits for the lead; nil without error once ctx is done.
func (s *Store) campaign(ctx context.Context) (*lead, error) {
	released, forget, err := s.watchRelease()
	if err != nil {
		return nil, err
	}
	defer forget()
	var (
		poll    = s.o.LeaseTTL / 10
		known   uint64    // the record seen last
		since   time.Time // when it was first seen
		warned  bool
		waiting = time.NewTimer(0)
	)
	defer waiting.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil, nil
		case <-released:
			// What was heard may not be stored yet.
			waiting.Reset(poll / 20)
			continue
		case <-waiting.C:
		}
		waiting.Reset(poll)
		attempt, stop := s.patient(ctx)
		seq, r, err := s.current(attempt)
		stop()
		if err != nil {
			if !warned && ctx.Err() == nil {
				s.o.Logger.Warn("the lead of the tasks cannot be read", "namespace", s.o.Namespace, "cause", err)
			}
			warned = true
			// What happens meanwhile is not seen, so nothing may be concluded from it.
			known, since = 0, time.Time{}
			continue
		}
		warned = false
		if seq != known {
			known, since = seq, time.Now()
		}
		if seq != 0 && !r.Released && time.Since(since) < s.o.LeaseTTL {
			continue
		}
		l, ok, err := s.acquire(ctx, seq)
		if err != nil && ctx.Err() == nil {
			s.o.Logger.Warn("the lead of the tasks cannot be taken", "namespace", s.o.Namespace, "cause", err)
		}
		if ok {
			return l, nil
		}
	}
}

// watchRelease hears of a leader that leaves. It only saves a poll: whether that
// is so is then read from the stream.
func (s *Store) watchRelease() (<-chan struct{}, func(), error) {
	released := make(chan struct{}, 1)
	sub, err := s.raw.nc.Subscribe(s.names.lead(), func(m *nats.Msg) {
		var r leadRecord
		if json.Unmarshal(m.Data, &r) != nil || !r.Released {
			return
		}
		select {
		case released <- struct{}{}:
		default:
		}
	})
	if err != nil {
		return nil, nil, fmt.Errorf("watch the lead: %w", err)
	}
	return released, func() {
		_ = sub.Unsubscribe() // fails only on a closed connection
	}, nil
}
