package contextwire

import (
	"math"
	"time"

	"github.com/apbus/apbus/module"
)

// DecodeEvidence reads a record and gives its hash. It refuses a version newer
// than [EvidenceVersion], a body over [MaxEvidence] and every wrong shape, with
// BUS_BAD_MESSAGE or BUS_PAYLOAD_TOO_LARGE; unknown keys are ignored. The strings
// of one record share memory.
func DecodeEvidence(body []byte) (*Evidence, string, error) {
	return decodeEvidence(body, false)
}

// DecodeEvidenceBrief is [DecodeEvidence] for readers of many records who do not look
// at inputs: it leaves them out where it can, which halves the work.
func DecodeEvidenceBrief(body []byte) (*Evidence, string, error) {
	return decodeEvidence(body, true)
}

func decodeEvidence(body []byte, brief bool) (*Evidence, string, error) {
	if quick := (&Evidence{}); len(body) <= MaxEvidence && scanEvidence(body, quick, brief) {
		return quick, EvidenceHash(body), nil
	}
	lim := Limits{MaxBody: MaxEvidence, MaxElements: MaxEvidence / 4, MaxOverhead: 1 << 20}
	r, err := readRecord("evidence", body, JSON, lim)
	if err != nil {
		return nil, "", err
	}
	e, err := readEvidence(r)
	if err != nil {
		return nil, "", err
	}
	return e, EvidenceHash(body), nil
}

func readEvidence(r *record) (*Evidence, error) {
	if v := r.integer("v", 1, math.MaxInt32); r.err == nil && v != EvidenceVersion {
		return nil, bad("evidence: version is not known here")
	}
	e := &Evidence{
		Type: EvidenceType(r.need("type")), At: r.time("time"),
		NS: r.text("ns"), Node: r.text("node"), Boot: r.text("boot"), N: r.unsigned("n"),
		ModuleID: r.text("module_id"), Version: r.text("version"),
		Call: r.text("call"), Attempt: r.count("attempt"), Root: r.text("root"), Parent: r.text("parent"),
		TraceID: r.text("trace_id"), CallerID: r.text("caller_id"), CallChain: r.texts("call_chain"),
		Mode: r.text("mode"), TaskID: r.text("task_id"), TaskAttempt: r.count("task_attempt"),
		Outcome: r.text("outcome"), Code: module.Code(r.text("code")), Message: r.text("message"), Origin: r.text("origin"),
		Unexecuted: r.boolean("unexecuted"), MadeHere: r.boolean("made_here"),
		Duration: r.millis("duration_ms"),
		Timeout:  time.Duration(r.integer("timeout_ms", 0, maxMillis)) * time.Millisecond,
		Budget:   time.Duration(r.integer("budget_ms", 0, maxMillis)) * time.Millisecond,
		Retries:  r.count("retries"), Chunks: r.count("chunks"), InputBytes: r.count("input_bytes"),
		Side: r.text("side"), Fields: r.texts("fields"),
		By: r.text("by"), Role: r.text("role"), Text: r.text("text"), Guidance: r.texts("guidance"),
	}
	switch v := r.m["retryable"].(type) {
	case nil:
	case bool:
		e.Retryable = module.TriOf(v)
	default:
		r.fail("retryable", "is not a boolean")
	}
	switch v := r.m["inputs"].(type) {
	case nil:
	case map[string]any:
		e.Inputs = v
	default:
		r.fail("inputs", "is not a map")
	}
	switch v := r.m["identity"].(type) {
	case nil:
	case map[string]any:
		sub := &record{what: "evidence identity", m: v}
		e.IdentityID, e.IdentityType = sub.text("id"), sub.text("type")
		if r.err == nil {
			r.err = sub.err
		}
	default:
		r.fail("identity", "is not a map")
	}
	if r.err == nil && (!e.Type.Valid() || e.At.IsZero() || (e.ModuleID == "" && e.Type != EvidenceNote)) {
		return nil, bad("evidence: type, time or module is missing")
	}
	return done(r, e)
}

// Map returns the wire form of e with its hash under "hash", for answers to people
// and programs.
func (e *Evidence) Map() (map[string]any, error) {
	body, err := EncodeEvidence(e)
	if err != nil {
		return nil, err
	}
	m, err := DecodeMap(JSON, body, Limits{})
	if err != nil {
		return nil, err
	}
	m["hash"] = EvidenceHash(body)
	return m, nil
}

// unsigned is an integer of 64 bits.
func (r *record) unsigned(key string) uint64 {
	if v, ok := r.m[key].(uint64); ok {
		return v
	}
	return uint64(r.integer(key, 0, math.MaxInt64)) //nolint:gosec // not negative
}

// millis is a number of milliseconds with a fraction, stored to the microsecond.
func (r *record) millis(key string) time.Duration {
	switch v := r.m[key].(type) {
	case nil:
	case float64:
		if v >= 0 && v <= maxMillis {
			return time.Duration(math.Round(v*1000)) * time.Microsecond
		}
		r.fail(key, "is out of range")
	case int64:
		return time.Duration(r.integer(key, 0, maxMillis)) * time.Millisecond
	default:
		r.fail(key, "is not a number")
	}
	return 0
}
