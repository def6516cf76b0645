package jetstream

import (
	"context"
	"errors"
	"time"

	natsjs "github.com/nats-io/nats.go/jetstream"

	"github.com/apbus/apbus/executor/approval"
	"github.com/apbus/apbus/module"
	"github.com/apbus/apbus/task"
)

const (
	// unseenFor is how long a request that a task waits for may be missing: a replica
	// may be behind, but not that long.
	unseenFor = 2 * time.Minute
	// maxUnseen bounds the missing requests that are remembered.
	maxUnseen = 10_000
	// tipLimit is how long a new writer waits to learn where the bucket ends.
	tipLimit = time.Second
	// watchAgain is the pause after a watch that broke.
	watchAgain = time.Second
)

// Decided tells whether a request that a task waits for is over, and how:
// [task.WriterOptions].Decided. Time passing counts: one that nobody decided in time,
// or whose approval was not used in time, is expired, and so is one that is not to be
// found for two minutes.
func (s *ApprovalStore) Decided(ctx context.Context, id string) (task.WakeAsk, bool, error) {
	e, err := s.Get(ctx, id)
	if errors.Is(err, approval.ErrNotFound) {
		if !s.missing(id, time.Now()) {
			return task.WakeAsk{}, false, nil
		}
		return task.WakeAsk{ApprovalID: id, Decision: task.DecisionExpired, Reason: "the approval request is not there"}, true, nil
	}
	if err != nil {
		return task.WakeAsk{}, false, err
	}
	s.mu.Lock()
	delete(s.unseen, id)
	s.mu.Unlock()
	ask, over := wakeOf(e.Record.At(time.Now()))
	return ask, over, nil
}

// missing reports whether a request has not been there for too long.
func (s *ApprovalStore) missing(id string, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	first, known := s.unseen[id]
	if known && now.Sub(first) >= unseenFor {
		delete(s.unseen, id)
		return true
	}
	if !known {
		if len(s.unseen) >= maxUnseen {
			clear(s.unseen) // they wait a little longer
		}
		s.unseen[id] = now
	}
	return false
}

// wakeOf is what a record has to say to the tasks that wait for it; false while it is
// open. A claimed one was approved: what comes with its token now learns at the gate
// that it was used.
func wakeOf(r approval.Record) (task.WakeAsk, bool) {
	ask := task.WakeAsk{ApprovalID: r.ID, By: r.DecidedBy, Reason: r.BecauseOf}
	switch r.State {
	case approval.StateApproved, approval.StateClaimed:
		ask.Decision = task.DecisionApproved
	case approval.StateRejected:
		ask.Decision = task.DecisionRejected
	case approval.StateExpired:
		ask.Decision, ask.Reason = task.DecisionExpired, ""
		if !r.DecidedAt.IsZero() {
			ask.Reason = "the approval was not used in time"
		}
	case approval.StateWithdrawn:
		ask.Decision, ask.Reason = task.DecisionRejected, "the approval request was withdrawn"
	default:
		return task.WakeAsk{}, false
	}
	return ask, true
}

// tip is the revision of the last change in the bucket.
func (s *ApprovalStore) tip(ctx context.Context) (uint64, error) {
	ctx, stop := context.WithTimeoutCause(ctx, tipLimit, errNoAnswer)
	defer stop()
	status, err := s.kv.Status(ctx)
	if err != nil {
		return 0, approvalFailure(ctx, "watch", err)
	}
	bucket, ok := status.(*natsjs.KeyValueBucketStatus)
	if !ok {
		return 0, module.Errorf(module.CodeInternal, "the bucket of approvals does not tell where it ends")
	}
	return bucket.StreamInfo().State.LastSeq, nil
}

// waker is told of decisions.
type waker interface {
	Wake(ctx context.Context, ask task.WakeAsk) (task.WakeAnswer, error)
}

// tell wakes the tasks of w by what is decided after a revision, until ctx is done.
// What was decided earlier, what expires, and what a watch misses, the writer finds
// out by asking Decided.
func (s *ApprovalStore) tell(ctx context.Context, w waker, after uint64) {
	for {
		for e, err := range s.Watch(ctx, "", after) {
			if err != nil {
				s.log.DebugContext(ctx, "the approvals cannot be watched", "cause", err)
				break
			}
			after = e.Revision
			ask, over := wakeOf(e.Record)
			if !over {
				continue
			}
			if _, err := w.Wake(ctx, ask); err != nil && ctx.Err() == nil {
				s.log.DebugContext(ctx, "a decision was not taken in", "approval_id", ask.ApprovalID, "cause", err)
			}
		}
		pause := time.NewTimer(watchAgain)
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
			return
		}
	}
}
