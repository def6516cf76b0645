package contextwire

import (
	"log/slog"
	"time"

	"github.com/apbus/apbus/module"
)

// Request is one call on its way to the module's owner.
type Request struct {
	// CallID names the call (see [NewCallID]); Attempt counts the client's own
	// retries from 1, and 0 is sent as 1.
	CallID  string
	Attempt int
	// Root and Parent are call IDs, empty at the root.
	Root, Parent string
	// ModuleID is in the subject, not in the message.
	ModuleID string
	// Budget is the time left; 0 means that the caller set none. It is sent in
	// milliseconds, rounded up.
	Budget time.Duration
	Stream bool
	// Version is a constraint such as "^2.1", empty for any.
	Version string
	// Trace asks for the PipelineTrace with the terminal frame.
	Trace          bool
	IdempotencyKey string
	// Bare marks a request without an envelope: JSON inputs and nothing else.
	Bare bool
	// Context is the parent's: its chain does not hold ModuleID yet.
	Context *module.Context
	Inputs  map[string]any
	// Progress is local and never encoded.
	Progress func(module.ProgressReport)
	// Accepted tells which process has taken the call, as soon as it is known and
	// before anything that comes from the module; again when another attempt was
	// needed. A call that ends at once may do without. It is local and never encoded.
	Accepted func(node, boot string)
	// Node is the only node that may run the call, "" for any. It is local and never
	// encoded: where the message goes says it.
	Node string

	// Credit is the stream window; zero means [DefaultCredit].
	Credit Credit
	// ContentType is what the request came in, Accept what the answer must be in.
	// Sending, ContentType is set by the argument of [EncodeRequest] and an empty
	// Accept means the same type.
	ContentType, Accept ContentType
	// BodyRef says that the body is in the object store.
	BodyRef *BodyRef
	// TraceParent mirrors the headers traceparent and tracestate. Sending, it
	// gives the parent span when it belongs to the Context's trace.
	TraceParent *module.TraceParent
}

// Reply is the successful end of a call.
type Reply struct {
	Output map[string]any
	// Node and Boot name the process that ran the call, empty when it was this one.
	Node, Boot string
	Attempt    int
	// Trace is the PipelineTrace in its wire form, where [Request].Trace asked for
	// one. It also comes with a failed call, whose Reply has nothing else.
	Trace map[string]any
}

// LogValue shows what identifies the request and never its inputs.
func (r *Request) LogValue() slog.Value {
	attrs := []slog.Attr{slog.String("module_id", r.ModuleID)}
	if r.CallID != "" {
		attrs = append(attrs, slog.String("call_id", r.CallID), slog.Int("attempt", r.Attempt))
	}
	if r.Context != nil {
		attrs = append(attrs, slog.String("trace_id", r.Context.TraceID()))
	}
	if r.Bare {
		attrs = append(attrs, slog.Bool("bare", true))
	}
	return slog.GroupValue(attrs...)
}

// Head is what the headers of a request say, before its body is looked at.
type Head struct {
	CallID         string
	Attempt        int
	Root, Parent   string
	ModuleID       string
	Budget         time.Duration
	Stream         bool
	Version        string
	Trace          bool
	IdempotencyKey string
	Bare           bool
	Credit         Credit
	// ContentType is the body's, Accept the answer's; both are always set.
	ContentType, Accept ContentType
	BodyRef             *BodyRef
	TraceParent         *module.TraceParent
	// BudgetExhausted is true when the caller said that no time is left, so that
	// the call is to be answered BUS_BUDGET_EXHAUSTED without running it.
	BudgetExhausted bool
}
