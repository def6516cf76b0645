package jetstream

import (
	"context"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/apbus/apbus/task"
)

// Claim implements [task.WorkSource]. When ctx ends while the writer has just
// granted something, that is given back; for this Claim may outlast its context by
// half a second.
func (c *TaskClient) Claim(ctx context.Context, req task.ClaimRequest) (task.ClaimAnswer, error) {
	answer, err := poll(ctx, c, verbClaim, req.WaitMS, func(waitMS int64) any {
		r := req
		r.WaitMS = waitMS
		return r
	}, func(a *task.ClaimAnswer, sent time.Duration) bool {
		// Leases begin when the writer answered, which the worker reckons from its own
		// clock: all the waiting before counts.
		a.WaitedMS += sent.Milliseconds()
		return len(a.Grants) > 0
	})
	if err != nil || ctx.Err() == nil {
		return answer, err
	}
	if refs := refsOf(answer.Grants); len(refs) > 0 {
		c.background(func(ctx context.Context) { //nolint:contextcheck // the claim is over
			if err := c.Release(ctx, task.ReleaseRequest{Node: req.Node, Refs: refs}); err != nil {
				c.log.Warn("tasks that were granted too late come back when their lease is over",
					"tasks", len(refs), "cause", err)
			}
		})
	}
	return task.ClaimAnswer{}, fmt.Errorf("claim: %w", context.Cause(ctx))
}

func refsOf(grants []task.Grant) []task.LeaseRef {
	refs := make([]task.LeaseRef, len(grants))
	for i, g := range grants {
		refs[i] = g.LeaseRef
	}
	return refs
}

// lateGrace is how long the answer to a claim is waited for after its context has
// ended.
const lateGrace = 500 * time.Millisecond

// outliving returns a context that lasts a moment longer than ctx, and tells the
// writer when ctx ends.
func (c *TaskClient) outliving(ctx context.Context, call string) (context.Context, func()) {
	late, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	var end *time.Timer
	set := make(chan struct{})
	unhook := context.AfterFunc(ctx, func() {
		defer close(set)
		c.leave(call)
		end = time.AfterFunc(lateGrace, func() { stop(context.Cause(ctx)) })
	})
	return late, func() {
		if !unhook() {
			<-set
			end.Stop()
		}
		stop(nil)
	}
}

// Start implements [task.WorkSource].
func (c *TaskClient) Start(ctx context.Context, req task.StartRequest) (task.LeaseAnswer, error) {
	return ask[task.LeaseAnswer](ctx, c, verbStart, again, req)
}

// Renew implements [task.WorkSource].
func (c *TaskClient) Renew(ctx context.Context, req task.RenewRequest) (task.LeaseAnswer, error) {
	return ask[task.LeaseAnswer](ctx, c, verbRenew, again, req)
}

// Progress implements [task.WorkSource].
func (c *TaskClient) Progress(ctx context.Context, rep task.ProgressReport) error {
	_, err := ask[nothing](ctx, c, verbProgress, again, rep)
	return err
}

// Checkpoint implements [task.WorkSource].
func (c *TaskClient) Checkpoint(ctx context.Context, rep task.CheckpointReport) error {
	_, err := ask[nothing](ctx, c, verbCheckpoint, again, rep)
	return err
}

// PutResult stores an output that is too large for a report in the object store, for
// longer than any record is kept by default. Putting it again does nothing.
func (c *TaskClient) PutResult(ctx context.Context, lease task.LeaseRef, output []byte) (*task.ResultRef, error) {
	// The name belongs to the attempt, so that a stale one overwrites nothing.
	name := lease.TaskID + "." + strconv.Itoa(lease.Attempt) + "." + strconv.FormatInt(lease.Epoch, 10)
	ref, err := c.wire.blobs.put(ctx, c.wire.blobs.results, name, output)
	if err != nil {
		return nil, err
	}
	return &task.ResultRef{Store: ObjectStore, Name: ref.Name, Size: ref.Size, SHA256: ref.SHA256}, nil
}

// Finish implements [task.WorkSource]. An output over 512 KiB is put into the object
// store first. Reports that come at about the same time share a message.
func (c *TaskClient) Finish(ctx context.Context, rep task.FinishReport) (task.FinishAnswer, error) {
	if len(rep.Result) > maxInLog && rep.ResultRef == nil {
		ref, err := c.PutResult(ctx, rep.LeaseRef, rep.Result)
		if err != nil {
			return task.FinishAnswer{}, err
		}
		rep.Result, rep.ResultRef = nil, ref
	}
	body, err := encodeIn(c.rooms.take(), &rep)
	if err != nil {
		return task.FinishAnswer{}, err
	}
	if len(body) > mergeLargest {
		return askRaw[task.FinishAnswer](ctx, c, verbFinish, again, body, nil)
	}
	v, err := c.finishes.do(ctx, body)
	if err != nil {
		return task.FinishAnswer{}, err
	}
	return v.FinishAnswer, remote(v.Error)
}

func (c *TaskClient) sendFinishes(ctx context.Context, bodies [][]byte, out *atomic.Bool) ([]task.FinishVerdict, error) {
	body := list(c.lists.take(), "reports", bodies)
	defer func() { c.lists.give(body) }()
	answer, err := askRaw[task.FinishAllAnswer](ctx, c, verbFinishAll, again, body, out)
	return answer.Verdicts, err
}

// remote is a verdict's error as one that the writer sent.
func remote(f *task.Failure) error {
	if f == nil || f.Error == nil {
		return nil
	}
	f.Remote = true // nobody else holds it
	return f.Error
}

// Release implements [task.WorkSource].
func (c *TaskClient) Release(ctx context.Context, req task.ReleaseRequest) error {
	_, err := ask[nothing](ctx, c, verbRelease, again, req)
	return err
}
