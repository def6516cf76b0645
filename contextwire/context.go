package contextwire

import (
	"log/slog"
	"strings"

	"github.com/apbus/apbus/module"
)

// Bounds of the text in a Context, beside [Limits].
const (
	maxChain   = 1024
	maxTraceID = 256
)

// The keys of a Context's wire form (protocol §5.7).
const (
	keyVersion        = "_context_version"
	keyTraceID        = "trace_id"
	keyCallerID       = "caller_id"
	keyCallChain      = "call_chain"
	keyIdentity       = "identity"
	keyData           = "data"
	keyRedactedInputs = "redacted_inputs"
	keyRedactedOutput = "redacted_output"
)

// ContextMap returns the wire form of c: _context_version, trace_id, caller_id
// and identity (both may be null), call_chain, data, and redacted_inputs and
// redacted_output when they are set. Reading the redacted copies makes them, which
// walks the whole value; requests leave them out. Keys of data that start with
// "_" stay here, and a value without a form on the wire is skipped with a WARN
// that names its key (protocol §5.7).
func ContextMap(c *module.Context) map[string]any {
	data := c.Data().Public()
	for k, v := range data {
		n, err := module.Normalize(v)
		if err == nil {
			_, err = Append(nil, MsgPack, []any{n})
		}
		if err != nil {
			warnSkipped(k, err)
			delete(data, k)
			continue
		}
		data[k] = n
	}
	m := map[string]any{
		keyVersion: int64(ContextVersion), keyTraceID: c.TraceID(), keyCallerID: nil,
		keyCallChain: listOf(c.ChainView()), keyIdentity: nil, keyData: data,
	}
	if id := c.CallerID(); id != "" {
		m[keyCallerID] = id
	}
	if id := c.Identity(); id != nil {
		m[keyIdentity] = id.Map()
	}
	if r := c.RedactedInputs(); r != nil {
		m[keyRedactedInputs] = r
	}
	if r := c.RedactedOutput(); r != nil {
		m[keyRedactedOutput] = r
	}
	return m
}

func warnSkipped(key string, err error) {
	slog.Default().Warn("context data value has no form on the wire, skipped",
		slog.String("key", key), slog.String("code", string(module.CodeOf(err))))
}

// context writes c as a request carries it: [ContextMap] without the redacted
// copies, straight from c.
func (w *writer) context(c *module.Context, depth int) {
	w.beginMap(6)
	w.field(true, keyVersion)
	w.integer(ContextVersion)
	w.field(false, keyTraceID)
	w.text(c.TraceID())
	w.field(false, keyCallerID)
	if id := c.CallerID(); id != "" {
		w.text(id)
	} else {
		w.null()
	}
	w.field(false, keyCallChain)
	writeList(w, c.ChainView(), depth+1, (*writer).textValue)
	w.field(false, keyIdentity)
	w.identity(c.Identity(), depth+1)
	w.field(false, keyData)
	if data := c.Data(); data.Len() > 0 {
		w.sparseMap(data.Public(), depth+1, warnSkipped)
	} else {
		w.beginMap(0)
		w.endMap()
	}
	w.endMap()
}

// identity writes what [module.Identity.Map] gives, without making it.
func (w *writer) identity(id *module.Identity, depth int) {
	if id == nil {
		w.null()
		return
	}
	w.beginMap(4)
	w.field(true, "id")
	w.text(id.ID())
	w.field(false, "type")
	w.text(id.Type())
	w.field(false, "roles")
	writeList(w, id.RolesView(), depth+1, (*writer).textValue)
	w.field(false, "attrs")
	w.mapValue(id.AttrsView(), depth+1)
	w.endMap()
}

// EncodeContext writes [ContextMap] in ct, as for storing a task.
func EncodeContext(c *module.Context, ct ContentType) ([]byte, error) {
	if c.RedactedInputs() != nil || c.RedactedOutput() != nil {
		return Encode(ct, ContextMap(c))
	}
	w := newWriter(make([]byte, 0, 192), ct, false)
	w.context(c, 0)
	if w.err != nil {
		return nil, w.err
	}
	return w.buf, nil
}

// The text around the trace ID of a Context that has nothing else, which is that of
// most tasks.
const (
	bareBegin = `{"_context_version":1,"trace_id":"`
	bareEnd   = `","caller_id":null,"call_chain":[],"identity":null,"data":{}}`
	bareID    = 32
)

// bareTrace is the trace ID of such a Context, "" for any other.
func bareTrace(body []byte) string {
	if len(body) != len(bareBegin)+bareID+len(bareEnd) || string(body[:len(bareBegin)]) != bareBegin || string(body[len(bareBegin)+bareID:]) != bareEnd {
		return ""
	}
	id := string(body[len(bareBegin) : len(bareBegin)+bareID])
	if !module.ValidTraceID(id) {
		return ""
	}
	return id
}

// DecodeContext reads what [EncodeContext] wrote.
func DecodeContext(body []byte, ct ContentType, lim Limits) (*module.Context, error) {
	if ct == JSON && lim == (Limits{}) {
		if id := bareTrace(body); id != "" {
			return module.RestoreContext(module.ContextWire{TraceID: id, CallChain: []string{}, Data: map[string]any{}}), nil
		}
	}
	m, err := DecodeMap(ct, body, lim)
	if err != nil {
		return nil, err
	}
	return ContextFromMap(m)
}

// ContextFromMap rebuilds a Context from its wire form and takes over m. The
// trace ID is kept as it is, whatever its form; only a missing one is replaced. A
// version above [ContextVersion] is read as far as it is understood, with a WARN,
// and unknown keys are ignored. Data keys that start with "_" are dropped. Wrong
// shapes are BUS_BAD_MESSAGE.
func ContextFromMap(m map[string]any) (*module.Context, error) { return restoreContext(m, nil) }

// sampledFlags are the trace flags of a trace that names none.
const sampledFlags = "01"

// restoreContext is [ContextFromMap] with the message's trace headers: they give
// the trace ID when m has none, and the flags and state of the trace when m names
// the same one.
func restoreContext(m map[string]any, tp *module.TraceParent) (*module.Context, error) {
	r := &record{what: "context", m: m}
	if v := r.integer(keyVersion, 0, 1<<31-1); v > ContextVersion {
		slog.Default().Warn("context has a newer version, reading what is known", slog.Int64("version", v))
	}
	w := module.ContextWire{TraceID: r.text(keyTraceID), CallerID: r.text(keyCallerID), CallChain: r.texts(keyCallChain)}
	if len(w.TraceID) > maxTraceID {
		r.fail(keyTraceID, "is too long")
	}
	if len(w.CallerID) > module.MaxIDLength {
		r.fail(keyCallerID, "is too long")
	}
	if len(w.CallChain) > maxChain {
		r.fail(keyCallChain, "has too many items")
	}
	for _, id := range w.CallChain {
		if id == "" || len(id) > module.MaxIDLength {
			r.fail(keyCallChain, "has an item that is empty or too long")
			break
		}
	}
	if im := r.mapping(keyIdentity); im != nil {
		var err error
		if w.Identity, err = module.RestoreIdentityMap(im); err != nil {
			r.fail(keyIdentity, "is malformed")
		}
	}
	w.Data = withoutPrivate(r.mapping(keyData))
	w.RedactedInputs, w.RedactedOutput = r.mapping(keyRedactedInputs), r.mapping(keyRedactedOutput)
	if r.err != nil {
		return nil, r.err
	}
	return contextFromWire(w, tp), nil
}

// contextFromWire restores a Context and gives it what the trace headers say.
func contextFromWire(w module.ContextWire, tp *module.TraceParent) *module.Context {
	if w.TraceID == "" {
		if tp != nil && module.ValidTraceID(tp.TraceID) {
			w.TraceID = tp.TraceID
		} else {
			w.TraceID = module.NewTraceID()
		}
	}
	c := module.RestoreContext(w)
	if tp != nil && tp.TraceID == w.TraceID {
		if tp.Flags != "" && tp.Flags != sampledFlags { // which is what no flags mean
			c.Data().Set(module.DataTraceFlags, tp.Flags)
		}
		if len(tp.State) > 0 {
			c.Data().Set(module.DataTraceState, tp.State)
		}
	}
	return c
}

// mapping reads an optional map; nil when it is absent or null.
func (r *record) mapping(key string) map[string]any {
	switch v := r.m[key].(type) {
	case nil:
	case map[string]any:
		return v
	default:
		r.fail(key, "is not a map")
	}
	return nil
}

// withoutPrivate drops the keys that must not have crossed.
func withoutPrivate(m map[string]any) map[string]any {
	for k := range m {
		if strings.HasPrefix(k, "_") {
			delete(m, k)
		}
	}
	return m
}
