package task

import (
	"context"
	"encoding/json"
	"time"

	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/module"
)

// maxNote bounds the text of a progress report, in bytes.
const maxNote = 1024

// maxRefs is how many attempts one report may speak of.
const maxRefs = 10_000

// owned returns the item of an attempt that ref owns (rule 3). w is locked.
func (w *Writer) owned(ref LeaseRef) (*item, error) {
	id, ok := parseTaskID(ref.TaskID)
	if !ok {
		return nil, notFound(ref.TaskID)
	}
	it := w.items.get(id)
	if it == nil || it.rec == nil || !it.rec.owns(ref) {
		w.stats.Stale++
		return nil, leaseLost(ref)
	}
	it.busy().heard = true
	return it, nil
}

// ownedBy is owned for a node that may hold what a former writer granted; see adopt.
// w is locked.
func (w *Writer) ownedBy(ref LeaseRef, node string) (*item, error) {
	it, err := w.owned(ref)
	if err != nil && w.adopt(ref, node) {
		return w.owned(ref)
	}
	if err != nil {
		w.forget(ref)
	}
	return it, err
}

// forget undoes remember where nothing came of it: reports of attempts that never
// were do not fill the memory with the records of tasks that wait. w is locked.
func (w *Writer) forget(ref LeaseRef) {
	if id, ok := parseTaskID(ref.TaskID); ok {
		if it := w.items.get(id); it != nil && it.place == inQueued {
			w.letGo(it)
		}
	}
}

// adopt lets a node keep an attempt that a former writer granted and did not write:
// the task is queued as far as the log knows, and nobody else was given this
// attempt, because that would have been written (durable design, takeover). w is
// locked.
func (w *Writer) adopt(ref LeaseRef, node string) bool {
	id, ok := parseTaskID(ref.TaskID)
	if !ok {
		return false
	}
	it := w.items.get(id)
	if it == nil || it.place != inQueued || it.rec == nil ||
		ref.Attempt != it.rec.Attempt+1 || ref.Epoch <= 0 || ref.Epoch == it.rec.VoidEpoch || it.dirty > 0 || node == "" || !w.shapes.recall(it.q.id).rerun && !it.q.rerun {
		return false
	}
	m := w.moment()
	next := it.rec.next()
	w.rules.grant(next, m, owner{node: node, epoch: ref.Epoch, rerun: true})
	it.busy().until = next.Lease.Until
	w.rules.start(next, m)
	w.change(w.room(1), it, next)
	return true
}

// Start makes attempts durable before their modules run; see [WorkSource].
func (w *Writer) Start(ctx context.Context, req StartRequest) (LeaseAnswer, error) {
	for _, ref := range req.Refs {
		w.remember(ctx, ref)
	}
	return w.leases(ctx, req.Refs, func(ref LeaseRef) (*batch, LeaseVerdict) {
		it, err := w.ownedBy(ref, req.Node)
		if err != nil {
			return nil, LeaseVerdict{Lost: true}
		}
		m := w.moment()
		if !it.rec.Rerun && it.place == inClaimed {
			next := it.rec.next()
			w.rules.start(next, m)
			w.change(w.room(1), it, next)
		}
		return w.settled(it.dirty), w.extend(it, m.now)
	})
}

// Renew keeps the ownership of attempts; see [WorkSource].
func (w *Writer) Renew(ctx context.Context, req RenewRequest) (LeaseAnswer, error) {
	for _, ref := range req.Refs {
		w.remember(ctx, ref)
	}
	return w.leases(ctx, req.Refs, func(ref LeaseRef) (*batch, LeaseVerdict) {
		it, err := w.ownedBy(ref, req.Node)
		if err != nil {
			return nil, LeaseVerdict{Lost: true}
		}
		v := w.extend(it, At(time.Now()))
		if it.doing().cancelIn > w.committed {
			// The record comes first (rule 8): were this writer deposed now, the request would
			// be gone though a run has stopped for it. A signal tells once it is durable.
			v.Cancel = nil
		}
		return nil, v
	})
}

// remember has the record and the description of the module at hand when an attempt
// may have to be adopted.
func (w *Writer) remember(ctx context.Context, ref LeaseRef) {
	id, ok := parseTaskID(ref.TaskID)
	if !ok {
		return
	}
	w.mu.Lock()
	it := w.items.get(id)
	if it == nil || it.place != inQueued || it.dirty > 0 {
		w.mu.Unlock()
		return
	}
	moduleID, rerun := it.q.id, it.q.rerun
	w.mu.Unlock()
	if rerun || w.shapes.of(moduleID).rerun {
		_, _ = w.fetch(ctx, it, true) // without it, the attempt is not adopted
	}
}

// extend renews a lease, in memory. w is locked.
func (w *Writer) extend(it *item, now Stamp) LeaseVerdict {
	busy := it.busy()
	busy.until, busy.heard = max(busy.until, now.Add(w.opts.Lease)), true
	return LeaseVerdict{LeaseMS: w.opts.Lease.Milliseconds(), Cancel: it.rec.CancelRequested}
}

// leases asks for a verdict on each ref and waits for what they depend on.
func (w *Writer) leases(ctx context.Context, refs []LeaseRef, judge func(LeaseRef) (*batch, LeaseVerdict)) (LeaseAnswer, error) {
	if len(refs) > maxRefs {
		return LeaseAnswer{}, bad("refs", "are too many")
	}
	if err := w.enter(ctx); err != nil {
		return LeaseAnswer{}, err
	}
	answer := LeaseAnswer{Verdicts: make([]LeaseVerdict, len(refs))}
	var last *batch
	for i, ref := range refs {
		b, v := judge(ref)
		answer.Verdicts[i] = v
		if b != nil && (last == nil || b.n > last.n) {
			last = b
		}
	}
	w.unlockAndKick()
	if err := w.durable(ctx, last); err != nil {
		return LeaseAnswer{}, err
	}
	return answer, w.still()
}

// Progress tells how far an attempt is; see [WorkSource]. It is kept in memory and
// given to the log from time to time.
func (w *Writer) Progress(ctx context.Context, rep ProgressReport) error {
	if !finite(rep.Done, rep.Total) {
		return bad("progress", "must be finite")
	}
	if err := w.enter(ctx); err != nil {
		return err
	}
	it, err := w.owned(rep.LeaseRef)
	if err != nil {
		w.mu.Unlock()
		return err
	}
	if it.place != inRunning {
		w.mu.Unlock()
		return module.Errorf(module.CodeTaskStateConflict, "the attempt has not started")
	}
	m := w.moment()
	x := it.busy()
	x.progress = &Progress{Done: rep.Done, Total: rep.Total, Note: clipText(rep.Note, maxNote), At: m.now, Number: m.number}
	if m.now.Sub(max(x.saved, it.rec.StartedAt)) >= progressEvery {
		x.saved, x.unborn = m.now, false
		next := it.rec.next()
		next.Progress = x.progress
		w.swap(it, next)
		w.write(w.room(1), it)
	}
	it.notify()
	w.unlockAndKick()
	return nil
}

// Checkpoint stores what the next attempt will be given; see [WorkSource].
func (w *Writer) Checkpoint(ctx context.Context, rep CheckpointReport) error {
	if len(rep.Checkpoint) > w.opts.MaxCheckpoint {
		return contextwire.TooLarge(int64(len(rep.Checkpoint)), int64(w.opts.MaxCheckpoint))
	}
	if !json.Valid(rep.Checkpoint) {
		return bad("checkpoint", "must be JSON")
	}
	if err := w.enter(ctx); err != nil {
		return err
	}
	it, err := w.owned(rep.LeaseRef)
	if err != nil {
		w.mu.Unlock()
		return err
	}
	next := it.rec.next()
	next.Checkpoint = rep.Checkpoint
	w.swap(it, next)
	it.written()
	b := w.room(1)
	w.write(b, it)
	w.unlockAndKick()
	return w.durable(ctx, b)
}

// Finish ends an attempt; see [WorkSource].
func (w *Writer) Finish(ctx context.Context, rep FinishReport) (FinishAnswer, error) {
	a, err := w.FinishAll(ctx, FinishAllRequest{Reports: []FinishReport{rep}})
	if err != nil {
		return FinishAnswer{}, err
	}
	return a.Verdicts[0].FinishAnswer, a.Verdicts[0].Error.Err()
}

// FinishAll ends many attempts at once, each as Finish does; the order of the reports
// is that of the verdicts. The error is about the request as a whole: then any of the
// reports may have been heard, and all of them may be repeated.
func (w *Writer) FinishAll(ctx context.Context, req FinishAllRequest) (FinishAllAnswer, error) {
	if len(req.Reports) > maxRefs {
		return FinishAllAnswer{}, bad("reports", "are too many")
	}
	answer := FinishAllAnswer{Verdicts: make([]FinishVerdict, len(req.Reports))}
	for i := range req.Reports {
		if err := w.checkFinish(&req.Reports[i]); err != nil {
			answer.Verdicts[i].Error = Fail(err)
			continue
		}
		w.remember(ctx, req.Reports[i].LeaseRef)
	}
	if err := w.enter(ctx); err != nil {
		return FinishAllAnswer{}, err
	}
	var last *batch
	var stale []int
	for i, rep := range req.Reports {
		v := &answer.Verdicts[i]
		if v.Error != nil {
			continue
		}
		it, err := w.ownedBy(rep.LeaseRef, rep.Node)
		if err != nil {
			v.Error = Fail(err)
			stale = append(stale, i)
			continue
		}
		if b := w.finish(it, rep); last == nil || b.n > last.n {
			last = b
		}
		v.Status, v.Detail = it.rec.Status, it.rec.Detail
	}
	w.unlockAndKick()
	if err := w.durable(ctx, last); err != nil {
		return FinishAllAnswer{}, err
	}
	for _, i := range stale {
		v := &answer.Verdicts[i]
		a, err := w.finished(ctx, req.Reports[i].LeaseRef, v.Error.Error)
		v.FinishAnswer, v.Error = a, Fail(err)
	}
	return answer, nil
}

// finish ends the attempt of an item that it owns. w is locked.
func (w *Writer) finish(it *item, rep FinishReport) *batch {
	next := it.rec.next()
	b := w.room(2)
	if rep.Outcome == OutcomeCompleted && len(rep.Result) > w.opts.InlineResult {
		rep.ResultRef = &ResultRef{Store: InLog, Size: int64(len(rep.Result))}
		m := w.moment()
		b.put(Entry{Key: KeyResult + next.TaskID, Body: rep.Result, TTL: ttl(m.now.Add(w.opts.Retention.Completed), m.now)})
		rep.Result = nil
	}
	retries := next.RetryCount
	w.rules.finish(next, w.moment(), rep)
	w.stats.Retried += uint64(next.RetryCount - retries)
	w.change(b, it, next)
	return b
}

// checkFinish judges a report by itself. An output that cannot be kept ends the task
// (rule 10).
func (w *Writer) checkFinish(rep *FinishReport) error {
	switch rep.Outcome {
	case OutcomeCompleted:
		if rep.ResultRef != nil && rep.ResultRef.Store != InLog {
			rep.Result = nil
			return nil
		}
		rep.ResultRef = nil
		switch {
		case len(rep.Result) > w.opts.MaxResult:
			*rep = invalidResult(*rep, "is too large").withSize(int64(len(rep.Result)), int64(w.opts.MaxResult))
		case !isObject(rep.Result):
			*rep = invalidResult(*rep, "is no JSON object")
		}
	case OutcomeFailed, OutcomeAborted, OutcomeReleased:
		rep.Result, rep.ResultRef = nil, nil
	default:
		return bad("outcome", "is not known")
	}
	if p := rep.Progress; p != nil && !finite(p.Done, p.Total) {
		rep.Progress = nil
	}
	return nil
}

func finite(done, total float64) bool { return done-done == 0 && total-total == 0 }

// invalidResult turns a completed attempt into one that failed for good.
func invalidResult(rep FinishReport, what string) FinishReport {
	rep.Outcome = OutcomeFailed
	rep.Result, rep.ResultRef = nil, nil
	rep.Error = Fail(module.Errorf(module.CodeTaskResultInvalid, "the output %s", what))
	return rep
}

func (r FinishReport) withSize(size, limit int64) FinishReport {
	r.Error = &Failure{r.Error.WithDetails(map[string]any{"size": size, "limit": limit})}
	return r
}

func isObject(raw json.RawMessage) bool {
	_, err := contextwire.DecodeMap(contextwire.JSON, raw, contextwire.Limits{})
	return err == nil
}

// finished answers a report of an attempt that is not the present one: the same as
// before when it is a repetition, TASK_LEASE_LOST otherwise.
func (w *Writer) finished(ctx context.Context, ref LeaseRef, stale error) (FinishAnswer, error) {
	id, ok := parseTaskID(ref.TaskID)
	w.mu.Lock()
	it := w.items.get(id)
	if !ok || it == nil || it.place == inAside {
		w.mu.Unlock()
		return FinishAnswer{}, stale
	}
	v := w.look(it)
	w.mu.Unlock()
	r, err := w.raw(ctx, v)
	if err != nil {
		return FinishAnswer{}, err
	}
	if r.LastEpoch != ref.Epoch || ref.Epoch == 0 {
		return FinishAnswer{}, stale
	}
	return FinishAnswer{Status: r.Status, Detail: r.Detail}, w.still()
}

// Release gives back attempts that have not started; see [WorkSource].
func (w *Writer) Release(ctx context.Context, req ReleaseRequest) error {
	if len(req.Refs) > maxRefs {
		return bad("refs", "are too many")
	}
	if err := w.enter(ctx); err != nil {
		return err
	}
	for _, ref := range req.Refs {
		w.release(ref, "released")
	}
	w.unlockAndKick()
	return w.still()
}

// release takes an attempt back that its owner did not start. w is locked.
func (w *Writer) release(ref LeaseRef, cause string) {
	it, err := w.owned(ref)
	if err != nil || it.place == inRunning && !it.rec.Rerun {
		return
	}
	next := it.rec.next()
	if next.Status == Running {
		next.Status = Pending
	}
	w.rules.release(next, w.moment(), cause)
	w.change(w.room(1), it, next)
}

func clipText(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && s[n]&0xc0 == 0x80 {
		n--
	}
	return s[:n]
}
