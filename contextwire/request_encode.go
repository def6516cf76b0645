package contextwire

import (
	"crypto/rand"
	"encoding/hex"
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
	var e Encoder
	return e.Request(r, ct)
}

// EncodeRequestHeader writes only what [EncodeRequest] writes as headers, for a
// request whose body was encoded before: another attempt of a call whose body is
// in the object store. The request must not be bare.
func EncodeRequestHeader(r *Request, ct ContentType) (Header, error) {
	c := r.Context
	if c == nil {
		c = module.NewContext(module.ContextOptions{TraceParent: r.TraceParent})
	}
	var h headerWriter
	if err := requestHeader(&h, r, ct); err != nil {
		return nil, err
	}
	setTrace(&h, c, r.TraceParent)
	return h.finish(), nil
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

// setTrace adds the trace headers of a call made with c, so that they mirror its
// trace ID; none when that is no W3C trace ID. from gives parent span, flags and
// state when it belongs to the same trace; else the span is fresh and the rest is
// what the Context's data keeps.
func setTrace(h *headerWriter, c *module.Context, from *module.TraceParent) {
	id := c.TraceID()
	if !module.ValidTraceID(id) {
		return
	}
	tp := module.TraceParent{TraceID: id}
	if from != nil && from.TraceID == id {
		tp = *from
	} else if data := c.Data(); data.Len() > 0 {
		if flags, ok := data.Get(module.DataTraceFlags); ok {
			tp.Flags, _ = flags.(string)
		}
		if state, ok := data.Get(module.DataTraceState); ok {
			tp.State, _ = state.([]module.TraceState)
		}
	}
	h.put(HeaderTraceParent, traceLine(&tp))
	if len(tp.State) == 0 {
		return
	}
	if state := tp.StateHeader(); isPrintable(state) {
		h.put(HeaderTraceState, state)
	}
}

// traceLine is the traceparent header: a span or flags that are none are replaced, by
// a fresh span and those of a trace that names none.
func traceLine(tp *module.TraceParent) string {
	line := make([]byte, 0, 55)
	line = append(line, "00-"...)
	line = append(line, tp.TraceID...)
	line = append(line, '-')
	if isLowerHex(tp.ParentID, 16) {
		line = append(line, tp.ParentID...)
	} else {
		var span [8]byte
		_, _ = rand.Read(span[:]) // documented never to fail
		line = hex.AppendEncode(line, span[:])
	}
	line = append(line, '-')
	if isLowerHex(tp.Flags, 2) {
		line = append(line, tp.Flags...)
	} else {
		line = append(line, sampledFlags...)
	}
	return string(line)
}

// formatMillis rounds up, so that time left is never sent as none.
func formatMillis(d time.Duration) string {
	ms := d / time.Millisecond
	if d%time.Millisecond > 0 {
		ms++
	}
	return strconv.FormatInt(int64(ms), 10)
}
