package contextwire

import (
	"strconv"
	"time"

	"github.com/apbus/apbus/module"
)

// Bounds of header values, beside [Limits].
const (
	maxIdempotency = 256
	maxConstraint  = 128
)

// EncodeRequest writes r's headers and body in ct. The body is {context, inputs}:
// the Context's wire form without the redacted copies, and the inputs. A bare
// request is always JSON. The Context is not modified; without one a fresh one is
// sent. Values of the Context's data without a form on the wire are skipped with
// a WARN; a value of that kind among the inputs fails with BUS_BAD_MESSAGE, a
// budget below zero with BUS_BUDGET_EXHAUSTED. The body's size is left to the
// caller, see [Limits.CheckSize]. With a BodyRef the headers refer to the object
// store, and the body returned is what belongs there.
func EncodeRequest(r *Request, ct ContentType) (Header, []byte, error) {
	c := r.Context
	if c == nil {
		c = module.NewContext(module.ContextOptions{TraceParent: r.TraceParent})
	}
	if r.Bare {
		return encodeBareRequest(r, c)
	}
	h, err := envelopeHeader(r, c, ct)
	if err != nil {
		return nil, nil, err
	}
	w := newWriter(make([]byte, 0, 512), ct, false)
	w.beginMap(2)
	w.field(true, "context")
	w.context(c, 1)
	w.field(false, "inputs")
	w.value(r.Inputs, 1)
	w.endMap()
	if w.err != nil {
		return nil, nil, w.err
	}
	return h, w.buf, nil
}

// EncodeRequestHeader writes only what [EncodeRequest] writes as headers, for a
// request whose body was encoded before: another attempt of a call whose body is
// in the object store. The request must not be bare.
func EncodeRequestHeader(r *Request, ct ContentType) (Header, error) {
	c := r.Context
	if c == nil {
		c = module.NewContext(module.ContextOptions{TraceParent: r.TraceParent})
	}
	return envelopeHeader(r, c, ct)
}

func envelopeHeader(r *Request, c *module.Context, ct ContentType) (Header, error) {
	h := newHeaderWriter()
	if err := requestHeader(&h, r, ct); err != nil {
		return nil, err
	}
	setTrace(&h, traceParent(c, r.TraceParent))
	return h.header, nil
}

func encodeBareRequest(r *Request, c *module.Context) (Header, []byte, error) {
	body, err := Encode(JSON, r.Inputs)
	if err != nil {
		return nil, nil, err
	}
	h := newHeaderWriter()
	setTrace(&h, traceParent(c, r.TraceParent))
	return h.header, body, nil
}

func requestHeader(h *headerWriter, r *Request, ct ContentType) error {
	attempt := max(r.Attempt, 1)
	switch {
	case !ValidCallID(r.CallID):
		return refuse("call", "call id is malformed")
	case (r.Root != "" && !ValidCallID(r.Root)) || (r.Parent != "" && !ValidCallID(r.Parent)):
		return refuse("call", "root or parent is not a call id")
	case r.Attempt < 0 || attempt > maxAttempt:
		return refuse("attempt", "attempt is out of range")
	case r.Budget < 0:
		return module.Errorf(module.CodeBusBudgetExhausted, "no time is left for the call").NotExecuted()
	case len(r.Version) > maxConstraint || !isPrintable(r.Version):
		return refuse("module-version", "module version constraint is malformed")
	case len(r.IdempotencyKey) > maxIdempotency || !isPrintable(r.IdempotencyKey):
		return refuse("idempotency", "idempotency key is too long or not printable ASCII")
	}
	h.put(HeaderVersion, versionText)
	h.put(HeaderCall, r.CallID)
	h.put(HeaderAttempt, strconv.Itoa(attempt))
	h.put(HeaderContentType, string(ct))
	h.put(HeaderRoot, r.Root)
	h.put(HeaderParent, r.Parent)
	h.put(HeaderModuleVersion, r.Version)
	h.put(HeaderIdempotency, r.IdempotencyKey)
	if r.Accept != ct {
		h.put(HeaderAccept, string(r.Accept))
	}
	if r.Budget > 0 {
		h.put(HeaderBudget, formatMillis(r.Budget))
	}
	if r.Stream {
		credit := r.Credit
		if credit == (Credit{}) {
			credit = DefaultCredit()
		}
		if credit.Frames < 1 || credit.Bytes < 1 {
			return refuse("credit", "stream window is below 1/1")
		}
		h.put(HeaderMode, ModeStream)
		h.put(HeaderCredit, credit.String())
	}
	if r.Trace {
		h.put(HeaderTrace, "1")
	}
	if r.BodyRef != nil {
		h.put(HeaderBodyRef, r.BodyRef.String())
	}
	return nil
}

func setTrace(h *headerWriter, tp *module.TraceParent) {
	if tp == nil {
		return
	}
	h.put(HeaderTraceParent, tp.Header())
	if state := tp.StateHeader(); isPrintable(state) {
		h.put(HeaderTraceState, state)
	}
}

// formatMillis rounds up, so that time left is never sent as none.
func formatMillis(d time.Duration) string {
	ms := d / time.Millisecond
	if d%time.Millisecond > 0 {
		ms++
	}
	return strconv.FormatInt(int64(ms), 10)
}
