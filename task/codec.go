package task

import (
	"encoding/json"
	"fmt"
	"strconv"
)

// encodeRecord writes what the log keeps: the JSON of a record, with what the index
// needs first, so that a writer that takes over need not read the rest (see
// decodeIndex). It is written by hand because every transition of every task passes
// here.
func encodeRecord(r *Record) []byte {
	return appendRecord(make([]byte, 0, 640+len(r.Inputs)+len(r.Context)+len(r.Result)+len(r.Checkpoint)+140*len(r.Timeline)), r)
}

// appendRecord is encodeRecord onto b.
func appendRecord(b []byte, r *Record) []byte {
	at := len(b)
	w := recordWriter{b}
	w.head(r)
	w.raw("context", r.Context, true) // always there: the index ends here
	w.raw("inputs", r.Inputs, true)
	w.raw("result", r.Result, true)
	w.raw("checkpoint", r.Checkpoint, false)
	w.rest(r)
	w.b[at] = '{'
	return append(w.b, '}')
}

type recordWriter struct{ b []byte }

func (w *recordWriter) head(r *Record) {
	w.int("v", int64(r.V))
	w.str("task_id", r.TaskID)
	w.str("module_id", r.ModuleID)
	w.str("status", string(r.Status))
	w.text("detail", string(r.Detail))
	w.int("order", r.Order)
	w.int("number", r.Number)
	w.stamp("submitted_at", r.SubmittedAt)
	w.stampOr("restarted_at", r.RestartedAt)
	w.stamp("started_at", r.StartedAt)
	w.stamp("completed_at", r.CompletedAt)
	w.stampOr("ready_at", r.ReadyAt)
	w.stampOr("expires_at", r.ExpiresAt)
	w.int("priority", int64(r.Priority))
	w.int("attempt", int64(r.Attempt))
	w.key("timeouts")
	w.b = append(w.b, `{"queue_wait_ms":`...)
	w.b = strconv.AppendInt(w.b, r.Timeouts.QueueWaitMS, 10)
	w.b = append(w.b, `,"attempt_ms":`...)
	w.b = strconv.AppendInt(w.b, r.Timeouts.AttemptMS, 10)
	w.b = append(w.b, `,"total_ms":`...)
	w.b = strconv.AppendInt(w.b, r.Timeouts.TotalMS, 10)
	w.b = append(w.b, '}')
	w.text("idempotency_key", r.IdempotencyKey)
	w.text("input_digest", r.InputDigest)
	w.text("concurrency_key", r.ConcurrencyKey)
	w.text("parent_task_id", r.Parent)
	w.flag("detached", r.Detached)
	w.text("approval_id", r.ApprovalID)
	if l := r.Lease; l != nil {
		w.any("lease", l)
	}
}

func (w *recordWriter) rest(r *Record) {
	if r.Error == nil {
		w.raw("error", nil, true)
	} else {
		w.any("error", r.Error)
	}
	w.int("retry_count", int64(r.RetryCount))
	w.int("max_retries", int64(r.MaxRetries))
	w.text("run_at", r.RunAt)
	w.text("schedule", r.Schedule)
	w.key("retry")
	w.b = append(w.b, `{"max_retries":`...)
	w.b = strconv.AppendInt(w.b, int64(r.Retry.MaxRetries), 10)
	w.b = append(w.b, `,"retry_delay_ms":`...)
	w.b = strconv.AppendInt(w.b, r.Retry.RetryDelayMS, 10)
	w.b = append(w.b, `,"backoff_multiplier":`...)
	w.b = strconv.AppendFloat(w.b, r.Retry.BackoffMultiplier, 'g', -1, 64)
	w.b = append(w.b, `,"max_retry_delay_ms":`...)
	w.b = strconv.AppendInt(w.b, r.Retry.MaxRetryDelayMS, 10)
	w.b = append(w.b, '}')
	w.str("on_crash", string(r.OnCrash))
	w.flag("rerun", r.Rerun)
	w.text("last_owner", r.LastOwner)
	w.intOr("last_epoch", r.LastEpoch)
	w.intOr("void_epoch", r.VoidEpoch)
	w.int("deliveries", int64(r.Deliveries))
	if r.CancelRequested != nil {
		w.any("cancel_requested", r.CancelRequested)
	}
	w.flag("approved", r.Approved)
	if r.Progress != nil {
		w.any("progress", r.Progress)
	}
	if r.ResultRef != nil {
		w.any("result_ref", r.ResultRef)
	}
	w.key("timeline")
	w.b = append(w.b, '[')
	for i := range r.Timeline {
		if i > 0 {
			w.b = append(w.b, ',')
		}
		w.transition(&r.Timeline[i])
	}
	w.b = append(w.b, ']')
	w.intOr("timeline_dropped", int64(r.TimelineDropped))
}

func (w *recordWriter) transition(t *Transition) {
	at := len(w.b)
	w.int("number", t.Number)
	w.stamp("at", t.At)
	w.str("status", string(t.Status))
	w.text("detail", string(t.Detail))
	w.text("actor", t.Actor)
	w.text("node", t.Node)
	w.intOr("attempt", int64(t.Attempt))
	w.text("cause", t.Cause)
	w.b[at] = '{'
	w.b = append(w.b, '}')
}

// key begins a member with a comma, which the first one of an object turns into its
// brace.
func (w *recordWriter) key(k string) {
	w.b = append(append(append(w.b, ',', '"'), k...), '"', ':')
}

func (w *recordWriter) int(k string, v int64) {
	w.key(k)
	w.b = strconv.AppendInt(w.b, v, 10)
}

func (w *recordWriter) intOr(k string, v int64) {
	if v != 0 {
		w.int(k, v)
	}
}

func (w *recordWriter) flag(k string, v bool) {
	if v {
		w.key(k)
		w.b = append(w.b, "true"...)
	}
}

func (w *recordWriter) stamp(k string, v Stamp) {
	w.key(k)
	w.b = v.append(w.b)
}

func (w *recordWriter) stampOr(k string, v Stamp) {
	if v != 0 {
		w.stamp(k, v)
	}
}

func (w *recordWriter) text(k, v string) {
	if v != "" {
		w.str(k, v)
	}
}

func (w *recordWriter) str(k, v string) {
	for i := range len(v) {
		if c := v[i]; c < 0x20 || c == '"' || c == '\\' || c >= 0x7f {
			w.any(k, v)
			return
		}
	}
	w.key(k)
	w.b = append(append(append(w.b, '"'), v...), '"')
}

func (w *recordWriter) raw(k string, v json.RawMessage, always bool) {
	switch {
	case len(v) > 0:
		w.key(k)
		w.b = append(w.b, v...)
	case always:
		w.key(k)
		w.b = append(w.b, "null"...)
	}
}

// any writes what is rare.
func (w *recordWriter) any(k string, v any) {
	w.key(k)
	b, err := json.Marshal(v)
	if err != nil {
		// Everything in a record was checked on its way in.
		panic(fmt.Sprintf("a part of a task record has no JSON form: %v", err))
	}
	w.b = append(w.b, b...)
}

// decodeRecord reads what encodeRecord wrote, also of a newer version as far as it
// is understood.
func decodeRecord(b []byte) (*Record, error) {
	r := new(Record)
	if err := json.Unmarshal(b, r); err != nil {
		return nil, err
	}
	for _, raw := range []*json.RawMessage{&r.Context, &r.Inputs, &r.Result, &r.Checkpoint} {
		if string(*raw) == "null" {
			*raw = nil
		}
	}
	if r.Timeline == nil {
		r.Timeline = []Transition{}
	}
	return r, r.whole()
}

// whole reports whether the index can do with r.
func (r *Record) whole() error {
	if r.V < 1 || r.V <= RecordVersion && (!r.Status.Valid() || !r.Detail.Valid() || r.ModuleID == "" || r.Order <= 0 || r.Number <= 0 ||
		r.Priority < 0 || r.Priority >= priorities || r.Status == Running && r.Lease == nil) {
		return fmt.Errorf("the record is incomplete")
	}
	return nil
}
