package contextwire

import (
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// EncodeEvidence writes the record as canonical JSON: keys in byte order, nothing
// absent, equal records in equal bytes. Texts that are too long are cut, text that
// is not UTF-8 is mended, inputs that are too large or have no JSON form are left
// out, so that only a record without type, module or time is refused, with
// BUS_BAD_MESSAGE, and one that is over [MaxEvidence] all the same, with
// BUS_PAYLOAD_TOO_LARGE.
func EncodeEvidence(e *Evidence) ([]byte, error) { return AppendEvidence(make([]byte, 0, 640), e) }

// AppendEvidence is [EncodeEvidence] onto dst. On error dst is returned as it was.
func AppendEvidence(dst []byte, e *Evidence) ([]byte, error) {
	if !e.Type.Valid() || e.At.IsZero() || (e.ModuleID == "" && e.Type != EvidenceNote) {
		return dst, bad("evidence: type, time or module is missing")
	}
	inputs, size := evidenceInputs(e)
	w := evidenceWriter{writer: newWriter(dst, JSON, true), first: true}
	w.buf = append(w.buf, '{')
	w.num("attempt", int64(e.Attempt))
	w.str("boot", e.Boot)
	w.num("budget_ms", e.Budget.Milliseconds())
	w.str("by", e.By)
	w.str("call", e.Call)
	w.strs("call_chain", lastOf(e.CallChain))
	w.str("caller_id", e.CallerID)
	w.num("chunks", int64(e.Chunks))
	w.str("code", string(e.Code))
	if e.Duration >= time.Microsecond {
		w.key("duration_ms")
		w.float(float64(e.Duration.Microseconds()) / 1000)
	}
	w.strs("fields", firstOf(e.Fields))
	w.strs("guidance", firstOf(e.Guidance))
	w.identity(e)
	w.num("input_bytes", int64(size))
	if inputs != nil {
		w.key("inputs")
		w.buf = append(w.buf, inputs...)
	}
	w.flag("made_here", e.MadeHere)
	w.cut("message", e.Message, MaxEvidenceText)
	w.str("mode", e.Mode)
	w.str("module_id", e.ModuleID)
	if e.N > 0 {
		w.key("n")
		w.buf = strconv.AppendUint(w.buf, e.N, 10)
	}
	w.str("node", e.Node)
	w.str("ns", e.NS)
	w.str("origin", e.Origin)
	w.str("outcome", e.Outcome)
	w.str("parent", e.Parent)
	w.num("retries", int64(e.Retries))
	if v, ok := e.Retryable.Bool(); ok {
		w.key("retryable")
		w.boolean(v)
	}
	w.str("role", e.Role)
	w.str("root", e.Root)
	w.str("side", e.Side)
	w.num("task_attempt", int64(e.TaskAttempt))
	w.str("task_id", e.TaskID)
	w.cut("text", e.Text, MaxEvidenceText)
	w.key("time")
	w.buf = append(w.buf, '"')
	w.buf = e.At.UTC().AppendFormat(w.buf, timeLayout)
	w.buf = append(w.buf, '"')
	w.num("timeout_ms", e.Timeout.Milliseconds())
	w.str("trace_id", e.TraceID)
	w.str("type", string(e.Type))
	w.flag("unexecuted", e.Unexecuted)
	w.num("v", EvidenceVersion)
	w.str("version", e.Version)
	w.buf = append(w.buf, '}')
	if w.err != nil {
		return dst, w.err
	}
	if size := len(w.buf) - len(dst); size > MaxEvidence {
		return dst, TooLarge(int64(size), MaxEvidence)
	}
	return w.buf, nil
}

// evidenceInputs is the form of the inputs, or their size when they are not kept.
func evidenceInputs(e *Evidence) (body []byte, size int) {
	if e.Inputs == nil {
		return nil, e.InputBytes
	}
	body, err := encodeValue(JSON, e.Inputs, true)
	if err != nil {
		return nil, e.InputBytes
	}
	if len(body) > MaxEvidenceInputs {
		return nil, len(body)
	}
	return body, 0
}

// evidenceWriter leaves out what is zero.
type evidenceWriter struct {
	*writer
	first bool
}

func (w *evidenceWriter) key(k string) {
	w.field(w.first, k)
	w.first = false
}

func (w *evidenceWriter) num(k string, n int64) {
	if n > 0 {
		w.key(k)
		w.integer(n)
	}
}

func (w *evidenceWriter) flag(k string, b bool) {
	if b {
		w.key(k)
		w.boolean(true)
	}
}

func (w *evidenceWriter) str(k, s string) { w.cut(k, s, maxEvidenceName) }

func (w *evidenceWriter) cut(k, s string, limit int) {
	if s != "" {
		w.key(k)
		w.text(cutText(s, limit))
	}
}

func (w *evidenceWriter) strs(k string, list []string) {
	if len(list) == 0 {
		return
	}
	w.key(k)
	w.buf = append(w.buf, '[')
	for i, s := range list {
		if i > 0 {
			w.buf = append(w.buf, ',')
		}
		w.text(cutText(s, maxEvidenceName))
	}
	w.buf = append(w.buf, ']')
}

func (w *evidenceWriter) identity(e *Evidence) {
	if e.IdentityID == "" && e.IdentityType == "" {
		return
	}
	w.key("identity")
	inner := evidenceWriter{writer: w.writer, first: true}
	w.buf = append(w.buf, '{')
	inner.str("id", e.IdentityID)
	inner.str("type", e.IdentityType)
	w.buf = append(w.buf, '}')
}

// cutText is at most limit bytes of s, whole runes of UTF-8.
func cutText(s string, limit int) string {
	if len(s) > limit {
		for limit > 0 && !utf8.RuneStart(s[limit]) {
			limit--
		}
		s = s[:limit]
	}
	if utf8.ValidString(s) {
		return s
	}
	return strings.ToValidUTF8(s, "\uFFFD")
}

func firstOf(list []string) []string { return list[:min(len(list), MaxEvidenceList)] }

// lastOf keeps the end of a chain, which names the module.
func lastOf(list []string) []string { return list[max(0, len(list)-MaxEvidenceList):] }

// EvidenceTime is at as a record stores it.
func EvidenceTime(at time.Time) time.Time { return at.UTC().Truncate(time.Millisecond) }
