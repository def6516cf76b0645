package task

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"time"

	"github.com/apbus/apbus/module"
)

// maxSubmit is how many tasks one request may submit.
const maxSubmit = 1000

// idemKey stands for an idempotency key of a module.
type idemKey [16]byte

func idemOf(moduleID, key string) (k idemKey) {
	sum := sha256.Sum256(append(append([]byte(moduleID), 0), key...))
	copy(k[:], sum[:])
	return k
}

// inputDigest is the first half of an input digest, which is enough to tell inputs
// apart.
type inputDigest [16]byte

func digestOf(hexed string) (d inputDigest) {
	_, _ = hex.Decode(d[:], []byte(hexed[:min(len(hexed), 2*len(d))]))
	return d
}

// Submit stores tasks and returns once they are durable; see [Service].
func (w *Writer) Submit(ctx context.Context, req SubmitRequest) (SubmitAnswer, error) {
	if n := len(req.Tasks); n < 1 || n > maxSubmit || req.All && n > w.opts.MaxBatch {
		return SubmitAnswer{}, bad("tasks", fmt.Sprintf("must be between 1 and %d", min(maxSubmit, w.opts.MaxBatch)))
	}
	return w.submit(ctx, req, "")
}

func (w *Writer) submit(ctx context.Context, req SubmitRequest, schedule string) (SubmitAnswer, error) {
	drafts := make([]*draft, len(req.Tasks))
	verdicts := make([]Verdict, len(req.Tasks))
	refused := false
	lim := submitLimits{maxInput: w.opts.MaxInput, queueWait: w.opts.QueueWait}
	for i, s := range req.Tasks {
		d, err := prepare(s, w.shapes.of(s.ModuleID), lim)
		if err != nil {
			verdicts[i].Error = Fail(err)
			refused = true
		}
		drafts[i] = d
	}
	if refused && req.All {
		return SubmitAnswer{refuseAll(verdicts)}, nil
	}
	if err := w.enter(ctx); err != nil {
		return SubmitAnswer{}, err
	}
	if req.All && w.judgeAll(drafts, verdicts) {
		w.mu.Unlock()
		return SubmitAnswer{refuseAll(verdicts)}, nil
	}
	var last, one *batch
	if req.All {
		one = w.room(len(drafts))
	}
	for i, d := range drafts {
		if d == nil {
			continue
		}
		it, dup, err := w.admit(d)
		if err != nil {
			verdicts[i].Error = Fail(err)
			continue
		}
		var b *batch
		if dup {
			b = w.settled(it.dirty)
		} else {
			if b = one; b == nil {
				b = w.room(1)
			}
			it = w.create(b, d, schedule)
		}
		if b != nil && (last == nil || b.n > last.n) {
			last = b
		}
		verdicts[i].Receipt = &Receipt{
			TaskID: it.id.String(), Status: it.place.status(), Detail: it.place.detail(),
			Deduplicated: dup, Durability: w.opts.Durability,
		}
	}
	w.unlockAndKick()
	if err := w.durable(ctx, last); err != nil {
		return SubmitAnswer{}, err
	}
	return SubmitAnswer{verdicts}, nil
}

// refuseAll gives a verdict to the submissions that had none.
func refuseAll(verdicts []Verdict) []Verdict {
	for i := range verdicts {
		verdicts[i].Receipt = nil
		if verdicts[i].Error == nil {
			verdicts[i].Error = Fail(module.Errorf(module.CodeTaskBatchRefused, "another task of the request was refused"))
		}
	}
	return verdicts
}

// judgeAll reports whether any of the drafts would be refused. w is locked.
func (w *Writer) judgeAll(drafts []*draft, verdicts []Verdict) (refused bool) {
	fresh := 0
	keys := make(map[idemKey]string)
	for i, d := range drafts {
		_, dup, err := w.admit(d)
		if err == nil && !dup {
			again := false
			if key := d.rec.IdempotencyKey; key != "" {
				k := idemOf(d.rec.ModuleID, key)
				digest, seen := keys[k]
				if seen && digest != d.rec.InputDigest {
					err = keyConflict(key, "")
				}
				again = seen
				keys[k] = d.rec.InputDigest
			}
			if !again {
				fresh++
			}
		}
		if err == nil && w.active+fresh > w.opts.MaxTasks {
			err = w.full()
		}
		if err != nil {
			verdicts[i].Error = Fail(err)
			refused = true
		}
	}
	return refused
}

// admit says whether a draft may become a task now, or which task it already is.
// w is locked.
func (w *Writer) admit(d *draft) (it *item, dup bool, err error) {
	r := d.rec
	if r.IdempotencyKey != "" {
		if it := w.idem[idemOf(r.ModuleID, r.IdempotencyKey)]; it != nil {
			if it.extra.digest != digestOf(r.InputDigest) {
				return nil, false, keyConflict(r.IdempotencyKey, it.id.String())
			}
			return it, true, nil
		}
	}
	if w.active >= w.opts.MaxTasks {
		return nil, false, w.full()
	}
	if parent, ok := parseTaskID(r.Parent); ok && !r.Detached {
		p := w.items.get(parent)
		if p != nil && (p.place == inCancelled || p.place == inRunning && p.rec != nil && p.rec.CancelRequested != nil) {
			return nil, false, module.Errorf(module.CodeExecutionCancelled, "the task that submits it is cancelled").
				WithDetails(map[string]any{"reason": "parent", "task_id": r.Parent})
		}
	}
	return nil, false, nil
}

func (w *Writer) full() error {
	return module.Errorf(module.CodeTaskLimitExceeded, "%d tasks are not over yet, which is the limit", w.active).
		WithDetail("limit", int64(w.opts.MaxTasks))
}

func keyConflict(key, first string) error {
	e := module.Errorf(module.CodeTaskKeyConflict, "the idempotency key was used with other inputs").
		WithDetail("idempotency_key", key)
	if first != "" {
		e = e.WithDetail("task_id", first)
	}
	return e
}

// create makes a task. w is locked.
func (w *Writer) create(b *batch, d *draft, schedule string) *item {
	now := time.Now()
	id := newTaskID(w.opts.Namespace, now)
	for w.items.get(id) != nil {
		id = newTaskID(w.opts.Namespace, now)
	}
	r := w.rules.born(d, w.moment(), id, schedule)
	it := w.itemOf(id, r)
	w.insert(it, r)
	w.write(b, it)
	w.stats.Submitted++
	return it
}

// detail is the one that a place stands for.
func (p place) detail() Detail {
	switch p {
	case inQueued:
		return Queued
	case inScheduled:
		return Scheduled
	case inBackingOff:
		return BackingOff
	case inAwaiting:
		return AwaitingApproval
	case inClaimed:
		return Claimed
	case inDead:
		return Dead
	case inAside:
		return Blocked
	}
	return ""
}
