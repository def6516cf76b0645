package task

import (
	"bytes"
	"encoding/json"
	"slices"
	"strconv"

	"github.com/apbus/apbus/module"
)

// The messages that every task needs are written and read by hand: what
// encoding/json writes for the same types, and read only in the form in which it is
// written here. Whoever carries them falls back to encoding/json for any other form.
// Values that are somebody's JSON are not looked into while they are read: whoever
// uses them decodes them strictly.

// AppendJSON appends the JSON of s.
func (s *Submission) AppendJSON(b []byte) ([]byte, error) {
	if s.Priority != nil || s.Retry != nil || s.Timeouts != nil || len(s.Context) > 0 && !json.Valid(s.Context) {
		rest, err := json.Marshal(s) // also for its error
		return append(b, rest...), err
	}
	w := recordWriter{slices.Grow(b, 160+len(s.ModuleID)+len(s.Inputs)+len(s.Context)+len(s.IdempotencyKey))}
	at := len(b)
	w.str("module_id", s.ModuleID)
	if len(s.Inputs) > 0 {
		if !json.Valid(s.Inputs) {
			return b, bad("inputs", "must be JSON")
		}
		w.raw("inputs", s.Inputs, false)
	}
	w.text("idempotency_key", s.IdempotencyKey)
	w.text("run_at", s.RunAt)
	w.text("on_crash", string(s.OnCrash))
	w.text("concurrency_key", s.ConcurrencyKey)
	w.flag("detached", s.Detached)
	w.text("parent_task_id", s.ParentTaskID)
	w.raw("context", s.Context, false)
	w.b[at] = '{'
	return append(w.b, '}'), nil
}

// ReadJSON reads what AppendJSON writes for each submission; false leaves r in any
// state.
func (r *SubmitRequest) ReadJSON(b []byte) bool {
	p := indexReader{b}
	ok := p.literal(`{"tasks":[`) && p.list(func() bool {
		r.Tasks = append(r.Tasks, Submission{})
		s := &r.Tasks[len(r.Tasks)-1]
		return p.object(func(key []byte) bool {
			switch string(key) {
			case "module_id":
				return p.text(&s.ModuleID)
			case "inputs":
				return p.raw(&s.Inputs)
			case "idempotency_key":
				return p.text(&s.IdempotencyKey)
			case "run_at":
				return p.text(&s.RunAt)
			case "on_crash":
				return p.text((*string)(&s.OnCrash))
			case "concurrency_key":
				return p.text(&s.ConcurrencyKey)
			case "detached":
				s.Detached = true
				return p.literal("true")
			case "parent_task_id":
				return p.text(&s.ParentTaskID)
			case "context":
				return p.raw(&s.Context)
			}
			return false
		})
	})
	return ok && p.literal("}") && len(p.b) == 0
}

// AppendJSON appends the JSON of a.
func (a SubmitAnswer) AppendJSON(b []byte) ([]byte, error) {
	w := recordWriter{append(slices.Grow(b, 32+192*len(a.Receipts)), `{"receipts":[`...)}
	for i := range a.Receipts {
		if i > 0 {
			w.b = append(w.b, ',')
		}
		at := len(w.b)
		v := &a.Receipts[i]
		if r := v.Receipt; r != nil {
			w.str("task_id", r.TaskID)
			w.str("status", string(r.Status))
			w.str("detail", string(r.Detail))
			w.key("deduplicated")
			w.b = strconv.AppendBool(w.b, r.Deduplicated)
			w.str("durability", r.Durability)
		}
		if err := w.failure(v.Error); err != nil {
			return b, err
		}
		w.close(at)
	}
	return append(w.b, "]}"...), nil
}

// ReadJSON reads what AppendJSON writes; false leaves a in any state.
func (a *SubmitAnswer) ReadJSON(b []byte) bool {
	p := indexReader{b}
	ok := p.literal(`{"receipts":[`) && p.list(func() bool {
		a.Receipts = append(a.Receipts, Verdict{})
		v := &a.Receipts[len(a.Receipts)-1]
		return p.object(func(key []byte) bool {
			if string(key) == "error" {
				return p.failure(&v.Error)
			}
			if v.Receipt == nil {
				v.Receipt = new(Receipt)
			}
			switch string(key) {
			case "task_id":
				return p.text(&v.TaskID)
			case "status":
				return p.text((*string)(&v.Status))
			case "detail":
				return p.text((*string)(&v.Detail))
			case "deduplicated":
				return p.bool(&v.Deduplicated)
			case "durability":
				return p.text(&v.Durability)
			}
			return false
		})
	})
	return ok && p.literal("}") && len(p.b) == 0
}

// AppendJSON appends the JSON of a.
func (a ClaimAnswer) AppendJSON(b []byte) ([]byte, error) {
	if a.Grants == nil {
		a.Grants = []Grant{}
	}
	size := 64
	for i := range a.Grants {
		g := &a.Grants[i]
		size += 256 + len(g.Context) + len(g.Inputs) + len(g.Checkpoint) + len(g.ModuleID)
	}
	w := recordWriter{append(slices.Grow(b, size), `{"grants":[`...)}
	for i := range a.Grants {
		if i > 0 {
			w.b = append(w.b, ',')
		}
		at := len(w.b)
		g := &a.Grants[i]
		w.ref(g.LeaseRef)
		w.str("module_id", g.ModuleID)
		w.str("call", g.Call)
		w.raw("context", g.Context, false)
		w.raw("inputs", g.Inputs, false)
		w.key("confirm")
		w.b = strconv.AppendBool(w.b, g.Confirm)
		w.int("lease_ms", g.LeaseMS)
		w.intOr("attempt_ms", g.AttemptMS)
		w.text("approval_token", g.ApprovalToken)
		w.text("idempotency_key", g.IdempotencyKey)
		w.raw("checkpoint", g.Checkpoint, false)
		w.int("priority", int64(g.Priority))
		w.close(at)
	}
	w.b = append(w.b, ']')
	w.int("waited_ms", a.WaitedMS)
	return append(w.b, '}'), nil
}

// ReadJSON reads what AppendJSON writes; false leaves a in any state. The values that
// are somebody's JSON are parts of b.
func (a *ClaimAnswer) ReadJSON(b []byte) bool {
	p := indexReader{b}
	a.Grants = []Grant{}
	ok := p.literal(`{"grants":[`) && p.list(func() bool {
		a.Grants = append(a.Grants, Grant{})
		g := &a.Grants[len(a.Grants)-1]
		return p.object(func(key []byte) bool {
			switch string(key) {
			case "module_id":
				return p.text(&g.ModuleID)
			case "call":
				return p.text(&g.Call)
			case "context":
				return p.part(&g.Context)
			case "inputs":
				return p.part(&g.Inputs)
			case "confirm":
				return p.bool(&g.Confirm)
			case "lease_ms":
				return number64(&p, &g.LeaseMS)
			case "attempt_ms":
				return number64(&p, &g.AttemptMS)
			case "approval_token":
				return p.text(&g.ApprovalToken)
			case "idempotency_key":
				return p.text(&g.IdempotencyKey)
			case "checkpoint":
				return p.part(&g.Checkpoint)
			case "priority":
				return number64(&p, &g.Priority)
			}
			return p.ref(&g.LeaseRef, key)
		})
	})
	return ok && p.literal(`,"waited_ms":`) && number64(&p, &a.WaitedMS) && p.literal("}") && len(p.b) == 0
}

// AppendJSON appends the JSON of r.
func (r *FinishReport) AppendJSON(b []byte) ([]byte, error) {
	if r.ResultRef != nil || r.Progress != nil || len(r.Result) > 0 && !json.Valid(r.Result) {
		rest, err := json.Marshal(r) // also for its error
		return append(b, rest...), err
	}
	w := recordWriter{slices.Grow(b, 224+len(r.Result))}
	at := len(b)
	w.ref(r.LeaseRef)
	w.str("node", r.Node)
	w.str("outcome", r.Outcome)
	w.raw("result", r.Result, false)
	if err := w.failure(r.Error); err != nil {
		return b, err
	}
	w.text("cause", r.Cause)
	w.close(at)
	return w.b, nil
}

// ReadJSON reads what AppendJSON writes for each report; false leaves r in any state.
func (r *FinishAllRequest) ReadJSON(b []byte) bool {
	p := indexReader{b}
	ok := p.literal(`{"reports":[`) && p.list(func() bool {
		r.Reports = append(r.Reports, FinishReport{})
		rep := &r.Reports[len(r.Reports)-1]
		return p.object(func(key []byte) bool {
			switch string(key) {
			case "node":
				return p.text(&rep.Node)
			case "outcome":
				return p.text(&rep.Outcome)
			case "result":
				return p.raw(&rep.Result)
			case "error":
				return p.failure(&rep.Error)
			case "cause":
				return p.text(&rep.Cause)
			}
			return p.ref(&rep.LeaseRef, key)
		})
	})
	return ok && p.literal("}") && len(p.b) == 0
}

// AppendJSON appends the JSON of a.
func (a FinishAllAnswer) AppendJSON(b []byte) ([]byte, error) {
	w := recordWriter{append(slices.Grow(b, 32+32*len(a.Verdicts)), `{"verdicts":[`...)}
	for i := range a.Verdicts {
		if i > 0 {
			w.b = append(w.b, ',')
		}
		at := len(w.b)
		v := &a.Verdicts[i]
		w.str("status", string(v.Status))
		w.text("detail", string(v.Detail))
		if err := w.failure(v.Error); err != nil {
			return b, err
		}
		w.close(at)
	}
	return append(w.b, "]}"...), nil
}

// ReadJSON reads what AppendJSON writes; false leaves a in any state.
func (a *FinishAllAnswer) ReadJSON(b []byte) bool {
	p := indexReader{b}
	ok := p.literal(`{"verdicts":[`) && p.list(func() bool {
		a.Verdicts = append(a.Verdicts, FinishVerdict{})
		v := &a.Verdicts[len(a.Verdicts)-1]
		return p.object(func(key []byte) bool {
			switch string(key) {
			case "status":
				return p.text((*string)(&v.Status))
			case "detail":
				return p.text((*string)(&v.Detail))
			case "error":
				return p.failure(&v.Error)
			}
			return false
		})
	})
	return ok && p.literal("}") && len(p.b) == 0
}

func (w *recordWriter) ref(r LeaseRef) {
	w.str("task_id", r.TaskID)
	w.int("attempt", int64(r.Attempt))
	w.int("epoch", r.Epoch)
}

// close ends the object that began at a position with a comma or not at all.
func (w *recordWriter) close(at int) {
	if len(w.b) == at {
		w.b = append(w.b, '{', '}')
		return
	}
	w.b[at] = '{'
	w.b = append(w.b, '}')
}

func (w *recordWriter) failure(f *Failure) error {
	if f == nil {
		return nil
	}
	body, err := json.Marshal(f)
	if err != nil {
		return module.Errorf(module.CodeInternal, "an error has no form in JSON: %w", err)
	}
	w.key("error")
	w.b = append(w.b, body...)
	return nil
}

func (p *indexReader) ref(r *LeaseRef, key []byte) bool {
	switch string(key) {
	case "task_id":
		return p.text(&r.TaskID)
	case "attempt":
		return number64(p, &r.Attempt)
	case "epoch":
		return number64(p, &r.Epoch)
	}
	return false
}

func (p *indexReader) failure(to **Failure) bool {
	var raw json.RawMessage
	return p.raw(&raw) && json.Unmarshal(raw, to) == nil
}

func (p *indexReader) bool(to *bool) bool {
	*to = p.literal("true")
	return *to || p.literal("false")
}

// list reads the elements of a list that has begun, and its end.
func (p *indexReader) list(element func() bool) bool {
	if p.byte(']') {
		return true
	}
	for {
		if !element() {
			return false
		}
		if p.byte(']') {
			return true
		}
		if !p.byte(',') {
			return false
		}
	}
}

// object reads an object whose members are known. A key that comes twice is not what
// is written here.
func (p *indexReader) object(member func(key []byte) bool) bool {
	if !p.byte('{') {
		return false
	}
	if p.byte('}') {
		return true
	}
	for {
		key, ok := p.string()
		if !ok || !p.byte(':') || !member(key) {
			return false
		}
		if p.byte('}') {
			return true
		}
		if !p.byte(',') {
			return false
		}
	}
}

// raw copies a value without reading it.
func (p *indexReader) raw(to *json.RawMessage) bool {
	if !p.part(to) {
		return false
	}
	*to = bytes.Clone(*to)
	return true
}

// part takes a value without reading it: up to its end as far as brackets and quotes
// show it.
func (p *indexReader) part(to *json.RawMessage) bool {
	depth := 0
	for i := 0; i < len(p.b); i++ {
		switch p.b[i] {
		case '"':
			end := stringEnd(p.b[i:])
			if end < 0 {
				return false
			}
			i += end
		case '{', '[':
			depth++
			continue
		case '}', ']':
			depth--
		case ',', ':':
			if depth == 0 {
				return false
			}
			continue
		default:
			if depth == 0 { // a number or a literal is not what is expected here
				return false
			}
			continue
		}
		if depth == 0 {
			*to = json.RawMessage(p.b[: i+1 : i+1])
			p.b = p.b[i+1:]
			return true
		}
		if depth < 0 {
			return false
		}
	}
	return false
}

// stringEnd is the place of the closing quote of the string that b begins with, -1
// for none.
func stringEnd(b []byte) int {
	for at := 1; ; {
		n := bytes.IndexByte(b[at:], '"')
		if n < 0 {
			return -1
		}
		slashes := 0
		for at+n-1-slashes >= at && b[at+n-1-slashes] == '\\' {
			slashes++
		}
		if slashes%2 == 0 {
			return at + n
		}
		at += n + 1
	}
}
