package module

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/apbus/apbus/cancel"
)

// Context is what one call knows about itself and passes to the calls it
// makes (protocol §5.7). It is immutable after creation except by the
// pipeline; reading it needs no lock.
//
// The wire part (trace ID, caller, chain, identity, data and the redacted
// copies) crosses processes; contextwire alone decides how. Executor, token,
// services, deadline and call facts are local and never leave the process.
type Context struct {
	traceID  string
	callerID string
	chain    []string
	identity *Identity
	data     *Data

	executor Executor
	token    *cancel.Token
	services any
	deadline time.Time
	call     *CallInfo // nil outside a bus call; shared by the tree, never changed
	progress func(ProgressReport)

	views   *redactedViews // nil until they are needed; see entered
	carrier *carrier       // room for Carry
}

// ContextOptions are the six inputs of a new Context, no more (core-executor
// seed, Contract: Context.create). The zero value is valid.
type ContextOptions struct {
	// Identity is who the call acts for; nil stays nil.
	Identity *Identity
	// TraceParent gives the trace ID. A malformed one is replaced by a fresh ID
	// with a WARN, never refused.
	TraceParent *TraceParent
	// CancelToken stops the calls made with the Context, inside this process.
	CancelToken *cancel.Token
	// Data is copied at its top level.
	Data map[string]any
	// Services is the caller's own dependency container.
	Services any
	// GlobalDeadline bounds the whole call tree; the zero time means the
	// executor sets it from its global timeout.
	GlobalDeadline time.Time
}

// NewContext makes a Context for a top-level call: no caller, an empty chain.
func NewContext(o ContextOptions) *Context {
	c := &topContext{ownData: Data{values: maps.Clone(o.Data)}}
	c.data = &c.ownData
	c.begin(o)
	return &c.Context
}

// topContext is a Context that begins a tree in this process, with the tree's data,
// in one piece.
type topContext struct {
	Context
	ownData Data
}

func (c *Context) begin(o ContextOptions) {
	c.identity, c.token, c.services, c.deadline = o.Identity, o.CancelToken, o.Services, o.GlobalDeadline
	if tp := o.TraceParent; tp != nil {
		if ValidTraceID(tp.TraceID) {
			c.traceID = tp.TraceID
			if tp.Flags != "" {
				c.data.Set(DataTraceFlags, tp.Flags)
			}
			if len(tp.State) > 0 {
				c.data.Set(DataTraceState, slices.Clone(tp.State))
			}
		} else {
			slog.Default().Warn("trace parent is malformed, using a fresh trace id")
		}
	}
	if c.traceID == "" {
		c.traceID = NewTraceID()
	}
}

// ContextWire is the part of a Context that crosses processes.
type ContextWire struct {
	TraceID   string
	CallerID  string // "" is null
	CallChain []string
	Identity  *Identity
	Data      map[string]any
	// RedactedInputs and RedactedOutput are nil when not set.
	RedactedInputs, RedactedOutput map[string]any
}

// RestoreContext rebuilds a Context from its wire part, as after a hop or from
// a stored task. Executor, token, services and deadline are empty: the
// receiving executor binds itself, makes a fresh token and recomputes the
// deadline. It takes over w's maps and slices, without the data keys that start
// with "_", which nobody may send. The trace ID is kept as it is.
func RestoreContext(w ContextWire) *Context {
	for k := range w.Data {
		if strings.HasPrefix(k, localPrefix) {
			delete(w.Data, k)
		}
	}
	c := &topContext{ownData: Data{values: w.Data}}
	c.traceID, c.callerID, c.chain, c.identity, c.data = w.TraceID, w.CallerID, w.CallChain, w.Identity, &c.ownData
	if w.RedactedInputs != nil {
		c.SetRedactedInputs(func() map[string]any { return w.RedactedInputs })
	}
	if w.RedactedOutput != nil {
		c.SetRedactedOutput(func() map[string]any { return w.RedactedOutput })
	}
	return &c.Context
}

// Wire returns the part of c that may leave the process. Data keys that start
// with "_" are left out; the maps are copies at their top level.
func (c *Context) Wire() ContextWire {
	return ContextWire{
		TraceID: c.traceID, CallerID: c.callerID, CallChain: slices.Clone(c.chain),
		Identity: c.identity, Data: c.data.Public(),
		RedactedInputs: c.RedactedInputs(), RedactedOutput: c.RedactedOutput(),
	}
}

// TraceID returns the trace ID, 32 lower-case hex digits unless a peer sent
// something else.
func (c *Context) TraceID() string { return c.traceID }

// CallerID returns the module that made this call, "" at the top level.
func (c *Context) CallerID() string { return c.callerID }

// CallChain returns a copy of the chain, outermost first; inside a call its
// last element is the module being called.
func (c *Context) CallChain() []string { return slices.Clone(c.chain) }

// ChainView returns the chain itself, which must not be modified.
func (c *Context) ChainView() []string { return c.chain }

// Identity returns who the call acts for, or nil.
func (c *Context) Identity() *Identity { return c.identity }

// Data returns the state shared by the call tree in this process.
func (c *Context) Data() *Data { return c.data }

// Executor returns the bound executor, or nil.
func (c *Context) Executor() Executor { return c.executor }

// Token returns the call's cancel token, or nil outside a call without one.
func (c *Context) Token() *cancel.Token { return c.token }

// Services returns the caller's dependency container, or nil.
func (c *Context) Services() any { return c.services }

// GlobalDeadline returns the end of the call tree's time, zero when none is set.
func (c *Context) GlobalDeadline() time.Time { return c.deadline }

// Call returns the facts of the bus call that this call belongs to.
func (c *Context) Call() CallInfo {
	if c.call == nil {
		return CallInfo{}
	}
	return *c.call
}

// CallInfo is what the bus knows of a call: its ID and its place in the tree
// of calls. A nested call in the same process belongs to the bus call around it.
type CallInfo struct {
	// ID names the call; empty when it did not come over the bus and nobody
	// gave it one.
	ID string
	// Attempt counts the client's own retries from 1; 0 when unknown.
	Attempt int
	// Root and Parent are call IDs, empty at the root.
	Root, Parent string
	// IdempotencyKey is the caller's key, "" when none was given.
	IdempotencyKey string
	// TraceParent is the caller's span as it came with the call, nil for none; it
	// must not be modified. It is the parent of this process's spans, and goes on
	// unchanged with the calls of a process that makes none (W3C trace context).
	TraceParent *TraceParent
}

// Child derives the Context of a nested call to target: same trace, identity,
// executor, token, services, deadline and the same data; the caller is the last
// of the chain (protocol §5.7, A20 input).
func (c *Context) Child(target string) *Context {
	child := &Context{}
	n := len(c.chain)
	c.derive(child, make([]string, n+1), target)
	return child
}

// derive fills in a child of c. chain has room for its chain.
func (c *Context) derive(child *Context, chain []string, target string) {
	child.traceID, child.identity, child.data = c.traceID, c.identity, c.data
	child.executor, child.token, child.services = c.executor, c.token, c.services
	child.deadline, child.call = c.deadline, c.call
	n := copy(chain, c.chain)
	if n > 0 {
		child.callerID = c.chain[n-1]
	}
	chain[n] = target
	child.chain = chain
}

// CallScope is what the pipeline gives a call of its own.
type CallScope struct {
	Token          *cancel.Token
	GlobalDeadline time.Time
	// Call replaces the inherited call facts when it has an ID.
	Call CallInfo
	// Progress receives what the module reports; nil drops it. It is not inherited.
	Progress func(ProgressReport)
	// Identity, when non-nil, replaces the inherited identity.
	Identity *Identity
	// TraceID, when not empty, replaces the inherited trace.
	TraceID string
}

// Enter derives the Context of the call that the pipeline is about to run. It
// is for the executor.
func (c *Context) Enter(target string, s CallScope) *Context {
	e := &entered{}
	n := len(c.chain)
	c.derive(&e.Context, make([]string, n+1), target)
	e.enter(s)
	return &e.Context
}

// entered is the Context of a running call with what it needs besides, in one
// piece.
type entered struct {
	Context
	room struct {
		views   redactedViews
		carrier carrier
	}
}

func (e *entered) enter(s CallScope) {
	c := &e.Context
	c.views, c.carrier = &e.room.views, &e.room.carrier
	c.token, c.deadline, c.progress = s.Token, s.GlobalDeadline, s.Progress
	if s.Call.ID != "" {
		call := s.Call // of its own, so that s need not be on the heap
		c.call = &call
	}
	if s.Identity != nil {
		c.identity = s.Identity
	}
	if s.TraceID != "" {
		c.traceID = s.TraceID
	}
}

// rootCall is what a call without a parent needs, in one piece.
type rootCall struct {
	root  Context
	call  entered
	data  Data
	chain [1]string
}

// EnterRoot is NewContext(o).Enter(target, s) at less cost; root is the Context
// that o describes. It is for the executor.
func EnterRoot(o ContextOptions, target string, s CallScope) (root, call *Context) {
	r := &rootCall{data: Data{values: maps.Clone(o.Data)}}
	r.root.data = &r.data
	r.root.begin(o)
	r.root.derive(&r.call.Context, r.chain[:], target)
	r.call.enter(s)
	return &r.root, &r.call.Context
}

// BindExecutor binds x to the Context, whatever its source: created here,
// restored after a hop or from a store. Binding the same executor again does
// nothing; another one fails with CONTEXT_BINDING_ERROR (core-executor seed,
// Contract: Executor binding to Context). The pipeline binds the Context it
// derived for a call; a Context that several goroutines use must be bound
// before they share it.
func (c *Context) BindExecutor(x Executor) error {
	switch c.executor {
	case nil:
		c.executor = x
		return nil
	case x:
		return nil
	}
	return Errorf(CodeContextBindingError, "context is bound to another executor")
}

type ctxKey struct{}

// WithContext returns a context.Context that carries c, for calls made with it.
func WithContext(ctx context.Context, c *Context) context.Context {
	return context.WithValue(ctx, ctxKey{}, c)
}

// carrier is the context.Context that carries c.
type carrier struct {
	context.Context
	c *Context
}

// Value finds the Context.
func (v *carrier) Value(key any) any {
	if key == (ctxKey{}) {
		return v.c
	}
	return v.Context.Value(key)
}

// Carry is WithContext(ctx, c) at less cost. It is for the executor, which calls it
// once for each Context that it makes.
func (c *Context) Carry(ctx context.Context) context.Context {
	if c.carrier == nil {
		return WithContext(ctx, c)
	}
	*c.carrier = carrier{ctx, c}
	return c.carrier
}

// FromContext returns the Context of the call that ctx belongs to, or nil
// outside a call.
func FromContext(ctx context.Context) *Context {
	c, _ := ctx.Value(ctxKey{}).(*Context)
	return c
}

// LogValue shows what identifies the call and nothing that may be sensitive.
func (c *Context) LogValue() slog.Value {
	attrs := []slog.Attr{slog.String("trace_id", c.traceID)}
	if n := len(c.chain); n > 0 {
		attrs = append(attrs, slog.String("module_id", c.chain[n-1]))
	}
	if c.callerID != "" {
		attrs = append(attrs, slog.String("caller_id", c.callerID))
	}
	if id := c.Call().ID; id != "" {
		attrs = append(attrs, slog.String("call_id", id))
	}
	return slog.GroupValue(attrs...)
}
