package jetstream

import (
	"context"
	"encoding/json"
	"sync/atomic"
	"time"

	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/task"
)

// Submit implements [task.Service]. It is repeated when every task has an
// idempotency key. Submits of one task that come at about the same time share a
// message.
func (c *TaskClient) Submit(ctx context.Context, req task.SubmitRequest) (task.SubmitAnswer, error) {
	r := again
	for _, s := range req.Tasks {
		if s.IdempotencyKey == "" {
			r = once
		}
	}
	if len(req.Tasks) != 1 || req.All {
		return ask[task.SubmitAnswer](ctx, c, verbSubmit, r, req)
	}
	body, err := encodeIn(c.rooms.take(), &req.Tasks[0])
	if err != nil {
		return task.SubmitAnswer{}, err
	}
	if len(body) > mergeLargest {
		return askRaw[task.SubmitAnswer](ctx, c, verbSubmit, r, list(nil, "tasks", [][]byte{body}), nil)
	}
	m := &c.submits
	if r == again {
		m = &c.keyedSubmits
	}
	v, err := m.do(ctx, body)
	if err != nil {
		return task.SubmitAnswer{}, err
	}
	return task.SubmitAnswer{Receipts: []task.Verdict{v}}, nil
}

func (c *TaskClient) sendSubmits(r repeat) send[task.Verdict] {
	return func(ctx context.Context, bodies [][]byte, out *atomic.Bool) ([]task.Verdict, error) {
		body := list(c.lists.take(), "tasks", bodies)
		defer func() { c.lists.give(body) }()
		answer, err := askRaw[task.SubmitAnswer](ctx, c, verbSubmit, r, body, out)
		return answer.Receipts, err
	}
}

// Get implements [task.Service].
func (c *TaskClient) Get(ctx context.Context, id string) (task.Record, error) {
	return ask[task.Record](ctx, c, verbGet, again, taskAsk{TaskID: id})
}

// List implements [task.Service].
func (c *TaskClient) List(ctx context.Context, req task.ListRequest) (task.Page, error) {
	return ask[task.Page](ctx, c, verbList, again, req)
}

// Result implements [task.Service]. An output that lies in the object store is
// fetched from there.
func (c *TaskClient) Result(ctx context.Context, req task.ResultRequest) (task.Result, error) {
	res, err := poll(ctx, c, verbResult, req.WaitMS, func(waitMS int64) any {
		return task.ResultRequest{TaskID: req.TaskID, WaitMS: waitMS}
	}, func(r *task.Result, _ time.Duration) bool { return r.Status.Terminal() })
	if err != nil || res.Ref == nil || res.Ref.Store != ObjectStore {
		return res, err
	}
	ref := contextwire.BodyRef{Name: res.Ref.Name, Size: res.Ref.Size, SHA256: res.Ref.SHA256}
	output, err := c.wire.blobs.get(ctx, c.wire.blobs.results, ref)
	if err != nil {
		return task.Result{}, err
	}
	res.Output, res.Ref = json.RawMessage(output), nil
	return res, nil
}

// Events implements [task.Service].
func (c *TaskClient) Events(ctx context.Context, req task.EventsRequest) (task.Events, error) {
	return poll(ctx, c, verbEvents, req.WaitMS, func(waitMS int64) any {
		return task.EventsRequest{TaskID: req.TaskID, After: req.After, WaitMS: waitMS}
	}, func(e *task.Events, _ time.Duration) bool { return len(e.Events) > 0 || e.Ended })
}

// longest is how long the writer waits at most, whatever it is asked.
const longest = 10 * time.Minute

// poll asks in short waits until something has happened or the time is over. enough
// sees each answer, and how long after the start of poll its request was sent.
func poll[Answer any](ctx context.Context, c *TaskClient, verb string, waitMS int64, request func(waitMS int64) any, enough func(a *Answer, sent time.Duration) bool) (Answer, error) {
	var zero Answer
	began := time.Now()
	end := began.Add(min(time.Duration(min(waitMS, longest.Milliseconds()))*time.Millisecond, longest))
	for {
		wait := min(max(time.Until(end), 0), pollLimit)
		if waitMS < 0 {
			wait = time.Duration(waitMS) * time.Millisecond // for the writer to refuse
		}
		body, err := encode(request(wait.Milliseconds()))
		if err != nil {
			return zero, err
		}
		data, sent, err := c.exchange(ctx, verb, again, body, max(wait, 0), nil)
		if err != nil {
			return zero, err
		}
		answer, err := decode[Answer](data)
		if err != nil || enough(&answer, sent.Sub(began)) || time.Until(end) < time.Millisecond {
			return answer, err
		}
	}
}

// Cancel implements [task.Service].
func (c *TaskClient) Cancel(ctx context.Context, req task.CancelAsk) (task.CancelAnswer, error) {
	return ask[task.CancelAnswer](ctx, c, verbCancel, again, req)
}

// Retry implements [task.Service].
func (c *TaskClient) Retry(ctx context.Context, req task.ActAsk) (task.Record, error) {
	return ask[task.Record](ctx, c, verbRetry, once, req)
}

// Requeue implements [task.Service].
func (c *TaskClient) Requeue(ctx context.Context, req task.ActAsk) (task.Record, error) {
	return ask[task.Record](ctx, c, verbRequeue, once, req)
}

// Bulk implements [task.Service].
func (c *TaskClient) Bulk(ctx context.Context, req task.BulkRequest) (task.BulkAnswer, error) {
	r := once
	if req.DryRun {
		r = again
	}
	return ask[task.BulkAnswer](ctx, c, verbBulk, r, req)
}

// RawInputs implements [task.Service].
func (c *TaskClient) RawInputs(ctx context.Context, id, by string) (json.RawMessage, error) {
	answer, err := ask[inputsAnswer](ctx, c, verbInputs, again, taskAsk{TaskID: id, By: by})
	return answer.Inputs, err
}

// Delete implements [task.Service].
func (c *TaskClient) Delete(ctx context.Context, id, by string) error {
	_, err := ask[nothing](ctx, c, verbDelete, once, taskAsk{TaskID: id, By: by})
	return err
}

// Queues implements [task.Service].
func (c *TaskClient) Queues(ctx context.Context) ([]task.QueueState, error) {
	answer, err := ask[queueList](ctx, c, verbQueues, again, nothing{})
	return answer.Queues, err
}

// SetQueue implements [task.Service].
func (c *TaskClient) SetQueue(ctx context.Context, moduleID string, s task.QueueSettings) (task.QueueState, error) {
	return ask[task.QueueState](ctx, c, verbQueueSet, again, queueAsk{ModuleID: moduleID, Settings: &s})
}

// LimitQueue implements [task.Service].
func (c *TaskClient) LimitQueue(ctx context.Context, moduleID string, l task.QueueLimits) (task.QueueState, error) {
	return ask[task.QueueState](ctx, c, verbQueueLimit, again, limitAsk{ModuleID: moduleID, Limits: l})
}

// Pause implements [task.Service].
func (c *TaskClient) Pause(ctx context.Context, moduleID, by, reason string) (task.QueueState, error) {
	return ask[task.QueueState](ctx, c, verbPause, again, queueAsk{ModuleID: moduleID, By: by, Reason: reason})
}

// Resume implements [task.Service].
func (c *TaskClient) Resume(ctx context.Context, moduleID, by string) (task.QueueState, error) {
	return ask[task.QueueState](ctx, c, verbResume, again, queueAsk{ModuleID: moduleID, By: by})
}

// PutSchedule implements [task.Service].
func (c *TaskClient) PutSchedule(ctx context.Context, spec task.ScheduleSpec, by string, replace bool) (task.Schedule, error) {
	r := once
	if replace {
		r = again
	}
	return ask[task.Schedule](ctx, c, verbSchedPut, r, schedulePut{Schedule: spec, By: by, Replace: replace})
}

// Schedule implements [task.Service].
func (c *TaskClient) Schedule(ctx context.Context, name string) (task.Schedule, error) {
	return ask[task.Schedule](ctx, c, verbSchedGet, again, scheduleAsk{Name: name})
}

// Schedules implements [task.Service].
func (c *TaskClient) Schedules(ctx context.Context) ([]task.Schedule, error) {
	answer, err := ask[scheduleList](ctx, c, verbSchedList, again, nothing{})
	return answer.Schedules, err
}

// DeleteSchedule implements [task.Service].
func (c *TaskClient) DeleteSchedule(ctx context.Context, name string) error {
	_, err := ask[nothing](ctx, c, verbSchedDel, once, scheduleAsk{Name: name})
	return err
}

// Wake implements [task.Service].
func (c *TaskClient) Wake(ctx context.Context, req task.WakeAsk) (task.WakeAnswer, error) {
	return ask[task.WakeAnswer](ctx, c, verbWake, again, req)
}
