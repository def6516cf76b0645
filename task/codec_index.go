package task

import (
	"bytes"
	"strconv"
)

// decodeIndex reads from a record into r, which is empty, only what the index needs:
// the members that encodeRecord writes before the context. It returns false when the
// record is not what encodeRecord would write in an ordinary case, so that it has to be
// read as a whole; so are records with a lease, which memory keeps. name is what the
// task ID should be, texts holds text that many records have in common.
func decodeIndex(b []byte, r *Record, name string, texts map[string]string) bool {
	p := recordReader{indexReader{b}, name, texts}
	if !p.byte('{') {
		return false
	}
	for first := true; ; first = false {
		if !first && !p.byte(',') {
			return false
		}
		key, ok := p.string()
		if !ok || !p.byte(':') {
			return false
		}
		if string(key) == "context" {
			return r.whole() == nil
		}
		if !p.member(r, key) {
			return false
		}
	}
}

// recordReader reads records.
type recordReader struct {
	indexReader
	name  string
	texts map[string]string
}

type indexReader struct{ b []byte }

func (p *recordReader) member(r *Record, key []byte) bool {
	switch string(key) {
	case "v":
		return number64(&p.indexReader, &r.V)
	case "task_id":
		s, ok := p.string()
		if r.TaskID = p.name; string(s) != p.name {
			r.TaskID = string(s)
		}
		return ok
	case "module_id":
		return p.common(&r.ModuleID)
	case "status":
		return p.common((*string)(&r.Status))
	case "detail":
		return p.common((*string)(&r.Detail))
	case "order":
		return number64(&p.indexReader, &r.Order)
	case "number":
		return number64(&p.indexReader, &r.Number)
	case "submitted_at":
		return p.stamp(&r.SubmittedAt)
	case "restarted_at":
		return p.stamp(&r.RestartedAt)
	case "started_at":
		return p.stamp(&r.StartedAt)
	case "completed_at":
		return p.stamp(&r.CompletedAt)
	case "ready_at":
		return p.stamp(&r.ReadyAt)
	case "expires_at":
		return p.stamp(&r.ExpiresAt)
	case "priority":
		return number64(&p.indexReader, &r.Priority)
	case "attempt":
		return number64(&p.indexReader, &r.Attempt)
	case "timeouts":
		return p.timeouts(&r.Timeouts)
	case "idempotency_key":
		return p.text(&r.IdempotencyKey)
	case "input_digest":
		return p.text(&r.InputDigest)
	case "concurrency_key":
		return p.common(&r.ConcurrencyKey)
	case "parent_task_id":
		return p.text(&r.Parent)
	case "detached":
		r.Detached = true
		return p.literal("true")
	case "approval_id":
		return p.text(&r.ApprovalID)
	}
	return false
}

func (p *indexReader) timeouts(t *Timeouts) bool {
	return p.literal(`{"queue_wait_ms":`) && number64(p, &t.QueueWaitMS) &&
		p.literal(`,"attempt_ms":`) && number64(p, &t.AttemptMS) &&
		p.literal(`,"total_ms":`) && number64(p, &t.TotalMS) && p.byte('}')
}

func (p *indexReader) byte(c byte) bool {
	if len(p.b) == 0 || p.b[0] != c {
		return false
	}
	p.b = p.b[1:]
	return true
}

func (p *indexReader) literal(s string) bool {
	if len(p.b) < len(s) || string(p.b[:len(s)]) != s {
		return false
	}
	p.b = p.b[len(s):]
	return true
}

// string reads a string of plain ASCII.
func (p *indexReader) string() ([]byte, bool) {
	if !p.byte('"') {
		return nil, false
	}
	end := bytes.IndexByte(p.b, '"')
	if end < 0 {
		return nil, false
	}
	s := p.b[:end]
	for _, c := range s {
		if c < 0x20 || c == '\\' || c >= 0x7f {
			return nil, false
		}
	}
	p.b = p.b[end+1:]
	return s, true
}

func (p *indexReader) text(to *string) bool {
	s, ok := p.string()
	*to = string(s)
	return ok
}

// maxTexts is how many texts are remembered.
const maxTexts = 4096

// common is text for what many records have in common.
func (p *recordReader) common(to *string) bool {
	b, ok := p.string()
	s, known := p.texts[string(b)]
	if !known {
		s = string(b)
		if len(p.texts) < maxTexts && p.texts != nil {
			p.texts[s] = s
		}
	}
	*to = s
	return ok
}

// digits reads the digits of a number.
func (p *indexReader) digits() string {
	n := 0
	for n < len(p.b) && n < 19 && p.b[n] >= '0' && p.b[n] <= '9' {
		n++
	}
	s := string(p.b[:n])
	p.b = p.b[n:]
	return s
}

func number64[T int | int64](p *indexReader, to *T) bool {
	s := p.digits()
	if len(s) > 1 && s[0] == '0' || len(p.b) == 0 || p.b[0] != ',' && p.b[0] != '}' {
		return false
	}
	v, err := strconv.ParseInt(s, 10, 64)
	*to = T(v)
	return err == nil
}

func (p *indexReader) stamp(to *Stamp) bool {
	if p.literal("null") {
		return true
	}
	whole := p.digits()
	if len(whole) == 0 || len(whole) > 10 || len(whole) > 1 && whole[0] == '0' || !p.byte('.') {
		return false
	}
	frac := p.digits()
	if len(frac) == 0 || len(frac) > 6 || len(p.b) == 0 || p.b[0] != ',' {
		return false
	}
	v, err := strconv.ParseInt(whole+frac+"000000"[:6-len(frac)], 10, 64)
	*to = Stamp(v)
	return err == nil && v <= 9e15
}
