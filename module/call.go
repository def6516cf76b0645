package module

import (
	"context"
	"time"
)

// Executor runs calls. A Context is bound to the one that runs its tree.
// Implementations are pointers, since binding compares them.
type Executor interface {
	// Call runs one governed call. ctx may carry a Context (see [WithContext]
	// and [FromContext]), which becomes the parent.
	Call(ctx context.Context, id string, inputs map[string]any, opts ...CallOption) (map[string]any, error)
}

// Call makes a nested call from inside a module to any module, in this process
// or on another node; the two behave the same. in is a map, a struct or nil.
// The call ends early when ctx does. Outside a call it fails with
// CONTEXT_BINDING_ERROR.
func Call(ctx context.Context, id string, in any, opts ...CallOption) (map[string]any, error) {
	c := FromContext(ctx)
	if c == nil || c.executor == nil {
		return nil, Errorf(CodeContextBindingError, "nested call of %s outside a call", quoteID(id))
	}
	inputs, err := ToMap(in)
	if err != nil {
		return nil, err
	}
	return c.executor.Call(ctx, id, inputs, opts...)
}

// CallAs is [Call] with a typed output. An output that does not fit Out is
// MODULE_EXECUTE_ERROR: it is not the fault of the inputs.
func CallAs[Out any](ctx context.Context, id string, in any, opts ...CallOption) (Out, error) {
	var out, none Out
	m, err := Call(ctx, id, in, opts...)
	if err != nil {
		return none, err
	}
	if err := FromMap(m, &out); err != nil {
		return none, Errorf(CodeModuleExecuteError, "the output of %s is not as expected: %w", quoteID(id), err)
	}
	return out, nil
}

// CallOptions are the overrides of one call; see the CallX functions.
type CallOptions struct {
	Identity    *Identity
	TraceParent *TraceParent
	// Timeout limits this call in place of the module's own limit; nil keeps it.
	Timeout *time.Duration
	// VersionHint is a constraint such as "^2.1" on the module's version.
	VersionHint string
	// RunUntil stops the pipeline after the step for which it returns true; the
	// result accumulated so far is returned (core-executor seed, 1.4). It never
	// crosses the bus.
	RunUntil func(PipelineState) bool
	// Progress receives what the module reports. It may be called from several
	// goroutines and must not block.
	Progress func(ProgressReport)
	// Node is the only node that may run the call, which then goes over the bus even
	// to this process.
	Node string
}

// PipelineState is what predicates and step middleware see of a running pipeline.
type PipelineState struct {
	// StepName is the step that the state belongs to.
	StepName string
	// Outputs holds the outputs of completed steps by name.
	Outputs map[string]any
	Context *Context
}

// CallOption sets one of the [CallOptions].
type CallOption func(*CallOptions)

// CallIdentity makes the call act for id.
func CallIdentity(id *Identity) CallOption { return func(o *CallOptions) { o.Identity = id } }

// CallTraceParent makes the call part of another trace.
func CallTraceParent(tp *TraceParent) CallOption { return func(o *CallOptions) { o.TraceParent = tp } }

// CallTimeout replaces the module's own limit for this call; zero disables it,
// negative is GENERAL_INVALID_INPUT.
func CallTimeout(d time.Duration) CallOption { return func(o *CallOptions) { o.Timeout = &d } }

// CallVersion asks for a module version by constraint, such as "^2.1".
func CallVersion(hint string) CallOption { return func(o *CallOptions) { o.VersionHint = hint } }

// CallUntil stops the pipeline early; see [CallOptions.RunUntil].
func CallUntil(stop func(PipelineState) bool) CallOption {
	return func(o *CallOptions) { o.RunUntil = stop }
}

// CallProgress has f told how far the module is; see [CallOptions.Progress]. What
// comes from another node comes at most ten times a second, and no more once the
// call has ended.
func CallProgress(f func(ProgressReport)) CallOption {
	return func(o *CallOptions) { o.Progress = f }
}

// CallNode sends the call to one node, by its ID. One that no live process has is
// BUS_NO_RESPONDERS with the ID in details.node, one that does not host the module
// MODULE_NOT_FOUND.
func CallNode(id string) CallOption { return func(o *CallOptions) { o.Node = id } }

// ProgressReport is how far a module has come.
type ProgressReport struct {
	Done  float64
	Total float64 // 0 when unknown
	Note  string
}

// Progress tells whoever waits for the call how far it is. It never blocks on a
// slow reader and does nothing when nobody listens, or when done or total is not a
// finite number.
func Progress(ctx context.Context, done, total float64, note string) {
	finite := done-done == 0 && total-total == 0
	if c := FromContext(ctx); c != nil && c.progress != nil && finite {
		c.progress(ProgressReport{Done: done, Total: total, Note: note})
	}
}
