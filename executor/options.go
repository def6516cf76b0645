package executor

import (
	"context"
	"log/slog"

	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/executor/acl"
	"github.com/apbus/apbus/executor/approval"
	"github.com/apbus/apbus/executor/middleware"
	"github.com/apbus/apbus/module"
	"github.com/apbus/apbus/schema"
)

// Authorizer decides who may call what; *acl.Policy is one. It must be safe for
// concurrent use, and return when ctx is done, which [Config].ACLTimeout brings
// about. See [AuthorizerHints] for what saves time.
type Authorizer interface {
	Authorize(ctx context.Context, q acl.Query) acl.Decision
}

// AuthorizerHints is an [Authorizer] that knows what its rules need at present.
// Without hints a check runs in a goroutine of its own and sees the arguments.
type AuthorizerHints interface {
	// MayBlock reports whether Authorize runs foreign code or waits for anything;
	// when not, it is called without a timer.
	MayBlock() bool
	// NeedsArguments reports whether Authorize looks at Query.ArgumentKeys.
	NeedsArguments() bool
}

var (
	_ Authorizer      = (*acl.Policy)(nil)
	_ AuthorizerHints = (*acl.Policy)(nil)
	_ Approver        = approval.Handler(nil)
)

// AuthorizerFunc is a function as an [Authorizer].
type AuthorizerFunc func(ctx context.Context, q acl.Query) acl.Decision

// Authorize calls f.
func (f AuthorizerFunc) Authorize(ctx context.Context, q acl.Query) acl.Decision { return f(ctx, q) }

// Approver answers approval requests; every approval.Handler is one.
type Approver interface {
	RequestApproval(ctx context.Context, r *approval.Request) (*approval.Result, error)
	CheckApproval(ctx context.Context, approvalID string, r *approval.Request) (*approval.Result, error)
}

// Remote reaches modules of other processes; *bus.Client is one. Request.Context
// is the parent's: its chain does not hold the target, which the owner appends.
// Both methods must return as soon as ctx is done.
type Remote interface {
	Invoke(ctx context.Context, req *contextwire.Request) (*contextwire.Reply, error)
	Check(ctx context.Context, req *contextwire.Request) (*module.PreflightResult, error)
}

// RemoteStreamer is a [Remote] that can stream. Every chunk goes to send, in order;
// after an error of send it must stop and return. The reply's output is the merged
// value. Without it a stream of another node's module is GENERAL_NOT_IMPLEMENTED.
type RemoteStreamer interface {
	InvokeStream(ctx context.Context, req *contextwire.Request, send func(module.Chunk) error) (*contextwire.Reply, error)
}

// Option configures [New].
type Option func(*Executor)

// WithACL attaches an ACL; without one every call is allowed.
func WithACL(a Authorizer) Option { return func(x *Executor) { x.acl.Store(&a) } }

// WithApproval attaches an approval handler.
func WithApproval(a Approver) Option { return func(x *Executor) { x.approver.Store(&a) } }

// WithPolicy attaches an execution policy, which must not change afterwards.
func WithPolicy(p *approval.Policy) Option { return func(x *Executor) { x.policy.Store(p) } }

// WithMiddleware registers middlewares in the order given.
func WithMiddleware(m ...middleware.Middleware) Option {
	return func(x *Executor) { x.pending = append(x.pending, m...) }
}

// WithRemote reaches modules that are not registered here; without one they are
// MODULE_NOT_FOUND.
func WithRemote(r Remote) Option { return func(x *Executor) { x.remote = r } }

// WithLogger replaces slog.Default().
func WithLogger(l *slog.Logger) Option { return func(x *Executor) { x.log = l } }

// WithRedactor replaces the redactor of the default names.
func WithRedactor(r *schema.Redactor) Option { return func(x *Executor) { x.redactor = r } }

// WithStrategy replaces the standard strategy. It must not change once a call ran.
// It outranks [WithPipeline]; of it and [WithStrategyName] the later counts.
func WithStrategy(s *Strategy) Option {
	return func(x *Executor) { x.choice.explicit, x.choice.name = s, nil }
}

// WithStrategyName selects a preset or a strategy of [RegisterStrategy]; [New]
// refuses an unknown name with STRATEGY_NOT_FOUND.
func WithStrategyName(name string) Option {
	return func(x *Executor) { x.choice.explicit, x.choice.name = nil, &name }
}

// WithPipeline takes the strategy from a decoded `pipeline:` section unless an
// option names one; see [StrategyFromConfig], whose errors [New] returns.
func WithPipeline(section map[string]any, types *StepTypes) Option {
	return func(x *Executor) {
		x.choice.configured = func() (*Strategy, error) { return StrategyFromConfig(section, types) }
	}
}

// WithRunUntil stops every call after the step for which stop returns true, as
// [module.CallUntil] does for one (core-executor seed, Unified run_until Pattern).
// stop must be safe for concurrent use.
func WithRunUntil(stop func(module.PipelineState) bool) Option {
	return func(x *Executor) { x.until = stop }
}

// WithEvents hands over what operators should know: denials, decisions, policy
// overrides and streams whose end was found wrong. notify runs in the call's own
// goroutine, so it must not block; it must be safe for concurrent use. The
// registry's own events are an option of the registry.
func WithEvents(notify func(module.Event)) Option { return func(x *Executor) { x.events = notify } }

// WithObserver tells o how every call on a module of this process ended.
func WithObserver(o Observer) Option { return func(x *Executor) { x.observer = o } }
