package contextwire

import (
	"strings"
	"time"

	"github.com/apbus/apbus/module"
)

// ParseHead checks everything that the headers of a request say; its cost does
// not depend on the body. subjectModuleID is taken as it is, judging it belongs to
// the executor. Without apbus-version the request is bare: of its headers only
// traceparent and content-type are read, and it gets a fresh call ID.
//
// Errors are BUS_VERSION_UNSUPPORTED, BUS_UNSUPPORTED_TYPE for an unknown
// content-type or accept, BUS_PAYLOAD_TOO_LARGE for a reference to too large a
// body, and BUS_BAD_MESSAGE for malformed values and a header block over its
// limit. A budget that is used up is no error, see [Head.BudgetExhausted]. The
// Head is nil on error.
func ParseHead(subjectModuleID string, h Header, lim Limits) (*Head, error) {
	head := &Head{}
	if err := head.Parse(subjectModuleID, h, lim); err != nil {
		return nil, err
	}
	return head, nil
}

// Parse is [ParseHead] into h, which must be zero. After an error h is of no use.
func (h *Head) Parse(subjectModuleID string, block Header, lim Limits) error {
	lim = lim.withDefaults()
	var fields headerFields // large, and gone when the headers are read
	f := &fields
	if err := f.read(block, lim); err != nil {
		return err
	}
	h.ModuleID, h.Attempt, h.Credit = subjectModuleID, 1, DefaultCredit()
	if f.traceParent.present() {
		h.TraceParent = module.ParseTraceParent(f.traceParent.value, f.traceState.value)
	}
	if !f.version.present() {
		return h.bare(f)
	}
	if n, ok := parseDigits(f.version.value); !ok || n != ProtocolVersion {
		return module.Errorf(module.CodeBusVersionUnsupported, "protocol version is not supported, this is version %d", ProtocolVersion).
			WithDetails(map[string]any{"supported": int64(ProtocolVersion)})
	}
	if err := h.types(f); err != nil {
		return err
	}
	if err := h.values(f); err != nil {
		return err
	}
	if ref := h.BodyRef; ref != nil && ref.Size > int64(lim.MaxBody) {
		return TooLarge(ref.Size, int64(lim.MaxBody))
	}
	return nil
}

func (h *Head) bare(f *headerFields) error {
	h.Bare, h.CallID = true, NewCallID()
	h.ContentType, h.Accept = JSON, JSON
	if f.contentType.present() {
		if ct, ok := ParseContentType(f.contentType.value); !ok || ct != JSON {
			return module.Errorf(module.CodeBusUnsupportedType, "a bare request is %s", JSON)
		}
	}
	return nil
}

func (h *Head) types(f *headerFields) error {
	h.ContentType = JSON
	if f.contentType.present() {
		ct, ok := ParseContentType(f.contentType.value)
		if !ok {
			return unsupportedType()
		}
		h.ContentType = ct
	}
	h.Accept = h.ContentType
	if f.accept.present() {
		ct, ok := parseAccept(f.accept.value, h.ContentType)
		if !ok {
			return module.Errorf(module.CodeBusUnsupportedType, "accept names neither %s nor %s", MsgPack, JSON)
		}
		h.Accept = ct
	}
	return nil
}

func (h *Head) values(f *headerFields) error {
	if h.CallID = f.call.value; !ValidCallID(h.CallID) {
		return refuse("call", "header apbus-call is missing or malformed")
	}
	for _, id := range [...]struct {
		field *headerField
		to    *string
		name  string
	}{{&f.root, &h.Root, HeaderRoot}, {&f.parent, &h.Parent, HeaderParent}} {
		if id.field.present() && !ValidCallID(id.field.value) {
			return malformed("call", id.name)
		}
		*id.to = id.field.value
	}
	if f.attempt.present() {
		n, ok := parseDigits(f.attempt.value)
		if !ok || n < 1 || n > maxAttempt {
			return malformed("attempt", HeaderAttempt)
		}
		h.Attempt = int(n)
	}
	if f.budget.present() {
		ms, ok := parseSigned(f.budget.value)
		if !ok {
			return malformed("budget", HeaderBudget)
		}
		h.Budget, h.BudgetExhausted = time.Duration(min(max(ms, 0), maxMillis))*time.Millisecond, ms <= 0
	}
	if f.mode.present() {
		switch f.mode.value {
		case ModeUnary:
		case ModeStream:
			h.Stream = true
		default:
			return malformed("mode", HeaderMode)
		}
	}
	if f.credit.present() {
		var ok bool
		if h.Credit, ok = ParseCredit(f.credit.value); !ok {
			return malformed("credit", HeaderCredit)
		}
	}
	if h.Version = f.moduleVersion.value; len(h.Version) > maxConstraint || !isPrintable(h.Version) {
		return malformed("module-version", HeaderModuleVersion)
	}
	if h.IdempotencyKey = f.idempotency.value; len(h.IdempotencyKey) > maxIdempotency || !isPrintable(h.IdempotencyKey) {
		return malformed("idempotency", HeaderIdempotency)
	}
	h.Trace = f.trace.value == "1"
	if f.bodyRef.present() {
		var ok bool
		if h.BodyRef, ok = ParseBodyRef(f.bodyRef.value); !ok {
			return malformed("body-ref", HeaderBodyRef)
		}
	}
	return nil
}

func malformed(limit, name string) *module.Error {
	return refuse(limit, "header "+name+" is malformed")
}

// parseSigned is parseDigits with an optional minus sign.
func parseSigned(s string) (int64, bool) {
	rest, negative := strings.CutPrefix(s, "-")
	n, ok := parseDigits(rest)
	if negative {
		n = -n
	}
	return n, ok
}

// DecodeBody reads the body that belongs to h and rebuilds the Context from it
// (see [ContextFromMap]); traceparent gives the trace when the body has none. A
// body that came through the object store is checked against the reference.
// Absent or null inputs are an empty map. Unknown keys are ignored. Errors are
// BUS_PAYLOAD_TOO_LARGE and BUS_BAD_MESSAGE.
func (h *Head) DecodeBody(body []byte, lim Limits) (*Request, error) {
	r := &Request{}
	if err := h.DecodeRequest(r, body, lim); err != nil {
		return nil, err
	}
	return r, nil
}

// DecodeRequest is [Head.DecodeBody] into r. After an error r is of no use.
func (h *Head) DecodeRequest(r *Request, body []byte, lim Limits) error {
	if h.BodyRef != nil {
		if err := lim.CheckSize(len(body)); err != nil {
			return err
		}
		if err := h.BodyRef.Check(body); err != nil {
			return err
		}
	}
	*r = Request{
		CallID: h.CallID, Attempt: h.Attempt, Root: h.Root, Parent: h.Parent, ModuleID: h.ModuleID,
		Budget: h.Budget, Stream: h.Stream, Version: h.Version, Trace: h.Trace,
		IdempotencyKey: h.IdempotencyKey, Bare: h.Bare, Credit: h.Credit,
		ContentType: h.ContentType, Accept: h.Accept, BodyRef: h.BodyRef, TraceParent: h.TraceParent,
	}
	if h.Bare && len(body) == 0 {
		r.Inputs = map[string]any{}
	} else if h.ContentType == MsgPack && lim.CheckSize(len(body)) == nil {
		var ok bool
		if r.Inputs, r.Context, ok = readEnvelope(body, lim.withDefaults(), r.TraceParent); ok {
			return nil
		}
	}
	if r.Inputs == nil {
		m, err := DecodeMap(h.ContentType, body, lim)
		if err != nil {
			return err
		}
		if r.Inputs = m; !h.Bare {
			if err := r.envelope(m); err != nil {
				return err
			}
		}
	}
	if r.Context == nil {
		r.Context = module.NewContext(module.ContextOptions{TraceParent: h.TraceParent})
	}
	return nil
}

// envelope takes context and inputs from m.
func (r *Request) envelope(m map[string]any) error {
	rec := &record{what: "request", m: m}
	inputs, c := rec.mapping("inputs"), rec.mapping("context")
	if rec.err != nil {
		return rec.err
	}
	if inputs == nil {
		inputs = map[string]any{}
	}
	r.Inputs = inputs
	if c == nil {
		return nil
	}
	var err error
	r.Context, err = restoreContext(c, r.TraceParent)
	return err
}
