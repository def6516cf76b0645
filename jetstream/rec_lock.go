package jetstream

import (
	"context"
	"crypto/rand"
	"errors"
	"sync"
	"time"

	"github.com/apbus/apbus/loop"
)

// lockLife is how long a lock outlives the process that holds it; while it is held
// it is renewed three times in that time.
const lockLife = 9 * time.Second

// Lock implements [loop.Store]. A lock is a message that the server lets expire, and
// that its holder renews until unlock or until ttl is over: the lock of a process
// that was killed ends within nine seconds.
func (s *LoopStore) Lock(ctx context.Context, name string, ttl time.Duration) (func(context.Context) error, error) {
	subject, err := s.subject(kindLock, name)
	if err != nil {
		return nil, err
	}
	m, held, err := s.kept.lastOf(ctx, subject)
	if err != nil {
		return nil, err
	}
	var rev uint64
	if held {
		if len(m.data) > 0 {
			return nil, loop.ErrLocked
		}
		rev = m.seq // given back, but not yet expired
	}
	l := &heldLock{s: s, name: name, subject: subject, id: rand.Text(), until: time.Now().Add(ttl)}
	l.seq, err = s.write(ctx, s.kept, kindLock, name, []byte(l.id), rev, min(ttl, lockLife))
	if errors.Is(err, loop.ErrConflict) {
		return nil, loop.ErrLocked
	}
	if err != nil {
		return nil, err
	}
	renewing, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	l.stop = stop
	l.wg.Go(func() { l.renew(renewing) })
	return l.unlock, nil
}

// heldLock is a lock of this process. The ID is its value, so that a renewal whose
// answer was lost is known as its own.
type heldLock struct {
	s             *LoopStore
	name, subject string
	id            string
	until         time.Time
	stop          context.CancelCauseFunc
	wg            sync.WaitGroup
	seq           uint64 // of the last renewal; of unlock once renew has ended
}

// renew keeps the lock until its time is over or it is lost.
func (l *heldLock) renew(ctx context.Context) {
	tick := time.NewTicker(lockLife / 3)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		left := time.Until(l.until)
		if left <= 0 {
			return
		}
		// What is under way when the lock is given back comes to its end first.
		err := l.put(context.WithoutCancel(ctx), []byte(l.id), min(left, lockLife))
		if errors.Is(err, loop.ErrConflict) {
			l.s.log.WarnContext(ctx, "a lock of the loop was lost", "cause", err)
			return
		}
	}
}

// put writes the lock if it is still this one's.
func (l *heldLock) put(ctx context.Context, value []byte, life time.Duration) error {
	seq, err := l.s.write(ctx, l.s.kept, kindLock, l.name, value, l.seq, life)
	if errors.Is(err, loop.ErrConflict) {
		m, ok, readErr := l.s.kept.lastOf(ctx, l.subject)
		if readErr != nil {
			return readErr
		}
		if !ok || string(m.data) != l.id {
			return err
		}
		seq, err = l.s.write(ctx, l.s.kept, kindLock, l.name, value, m.seq, life)
	}
	if err == nil {
		l.seq = seq
	}
	return err
}

// errUnlocked ends the renewal of a lock that is given back.
var errUnlocked = errors.New("the lock is given back")

// unlock gives the lock back if it is still held; again it does nothing.
func (l *heldLock) unlock(ctx context.Context) error {
	l.stop(errUnlocked)
	l.wg.Wait()
	err := l.put(ctx, nil, time.Second)
	if errors.Is(err, loop.ErrConflict) {
		return nil // it has ended, and may be somebody else's
	}
	return err
}
