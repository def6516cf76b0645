package executor

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"

	"go.opentelemetry.io/otel/trace"

	"github.com/apbus/apbus/executor/approval"
	"github.com/apbus/apbus/executor/middleware"
	"github.com/apbus/apbus/executor/registry"
	"github.com/apbus/apbus/module"
	"github.com/apbus/apbus/schema"
)

// Executor runs governed calls. Make one with [New]. It may be used from several
// goroutines at once; what it was configured with may be replaced at any time and
// counts for calls that begin afterwards.
type Executor struct {
	reg      *registry.Registry
	set      atomic.Pointer[settings]
	log      *slog.Logger
	redactor *schema.Redactor
	until    func(module.PipelineState) bool
	remote   Remote
	observer Observer
	events   func(module.Event)
	chain    *middleware.List
	pending  []middleware.Middleware // of WithMiddleware, until New has a logger
	choice   strategyChoice          // of the options, until New has made it
	spans    trace.Tracer            // of steps; nil for none

	acl      atomic.Pointer[Authorizer]
	approver atomic.Pointer[Approver]
	policy   atomic.Pointer[approval.Policy]
	strategy atomic.Pointer[Strategy]

	roots  sync.Map // *module.Context of a root call under way, to *atomic.Bool
	warned sync.Map // warning and module ID, of warnings given once
	debt   debts
	traced atomic.Int64 // calls under way that somebody traces
}

var _ module.Executor = (*Executor)(nil)

// New makes an executor over the modules of reg. It is also the local, bus-free
// way to use Apbus. A setting out of its range, a middleware that cannot be
// registered and an invalid policy are refused with GENERAL_INVALID_INPUT.
func New(reg *registry.Registry, cfg Config, opts ...Option) (*Executor, error) {
	if reg == nil {
		return nil, module.Errorf(module.CodeInvalidInput, "executor needs a registry")
	}
	set, err := cfg.resolve()
	if err != nil {
		return nil, err
	}
	x := &Executor{reg: reg}
	x.set.Store(&set)
	for _, o := range opts {
		o(x)
	}
	if err := x.prepare(); err != nil {
		return nil, err
	}
	x.warnUnlimited(set)
	x.warnUnwired()
	return x, nil
}

// Configure replaces every setting for calls that begin from now on; calls that are
// under way keep theirs. A setting out of its range is GENERAL_INVALID_INPUT and
// changes nothing.
func (x *Executor) Configure(cfg Config) error {
	set, err := cfg.resolve()
	if err != nil {
		return err
	}
	x.set.Store(&set)
	x.warnUnlimited(set)
	return nil
}

// Config returns the settings in force, each of them filled in.
func (x *Executor) Config() Config {
	s := *x.set.Load()
	return Config{
		DefaultTimeout: &s.timeout, GlobalTimeout: &s.global, GracePeriod: &s.grace, ACLTimeout: &s.acl,
		MaxCallDepth: s.depth, MaxModuleRepeat: s.repeat, MaxMergeDepth: s.merge,
	}
}

// warnUnlimited tells of limits that are switched off (core-executor seed, Timeout
// Specification).
func (x *Executor) warnUnlimited(set settings) {
	if set.timeout == 0 {
		x.log.Warn("module timeout is disabled", "setting", "executor.default_timeout")
	}
	if set.global == 0 {
		x.log.Warn("global timeout is disabled", "setting", "executor.global_timeout")
	}
}

// prepare fills in what no option gave.
func (x *Executor) prepare() error {
	if x.log == nil {
		x.log = slog.Default()
	}
	if err := x.choose(); err != nil {
		return err
	}
	if x.redactor == nil {
		r, err := schema.NewRedactor(schema.RedactOptions{})
		if err != nil {
			return module.Errorf(module.CodeInternal, "default redactor: %w", err)
		}
		x.redactor = r
	}
	if err := x.policy.Load().Validate(); err != nil {
		return err
	}
	x.chain = middleware.NewList(x.log)
	for _, m := range x.pending {
		if err := x.chain.Use(m); err != nil {
			return err
		}
	}
	x.pending = nil
	return nil
}

// strategyChoice is what the options say about the strategy.
type strategyChoice struct {
	explicit   *Strategy
	name       *string
	configured func() (*Strategy, error)
}

// choose takes the strategy of an option, else the configured one, else the
// standard one.
func (x *Executor) choose() error {
	var s *Strategy
	var err error
	switch c := x.choice; {
	case c.explicit != nil:
		s = c.explicit
	case c.name != nil:
		s, err = LookupStrategy(*c.name)
	case c.configured != nil:
		s, err = c.configured()
	default:
		s = Standard()
	}
	x.choice = strategyChoice{}
	if err != nil {
		return err
	}
	x.strategy.Store(s)
	s.notices.log(x.log)
	return nil
}

// Call runs one governed call of the module id and returns its bare output. A
// Context carried by ctx is the parent (see module.WithContext); without one the
// call is a root with a fresh Context. inputs may be nil and are not modified; they
// must not be modified by anybody else while the module may read them, which one
// that was abandoned (see Debt) may do after Call has returned.
//
// The error is INVALID_MODULE_ID or GENERAL_INVALID_INPUT when the call could not
// begin, and otherwise a [*StepError] around the coded error. When ctx ends the
// call ends: see the package documentation.
func (x *Executor) Call(ctx context.Context, id string, inputs map[string]any, opts ...module.CallOption) (map[string]any, error) {
	p := x.pipeline(id, x.strategy.Load())
	for _, o := range opts {
		o(&p.opts)
	}
	if err := p.admit(inputs); err != nil {
		return nil, err
	}
	p.parent = module.FromContext(ctx)
	defer x.enterRoot(p.parent)()
	if x.traced.Load() > 0 {
		return p.runTraced(ctx)
	}
	return p.run(ctx)
}

// enterRoot notices one Context that two top-level calls use at once: they share
// its data, which is hardly what was meant (core-executor seed, Edge Cases).
func (x *Executor) enterRoot(c *module.Context) (leave func()) {
	if c == nil || len(c.ChainView()) > 0 {
		return func() {}
	}
	warned, shared := x.roots.LoadOrStore(c, new(atomic.Bool))
	if shared {
		if warned.(*atomic.Bool).CompareAndSwap(false, true) {
			x.log.Warn("one context is used by two calls at once", "trace_id", c.TraceID())
		}
		return func() {}
	}
	return func() { x.roots.Delete(c) }
}

// SetACL replaces the ACL; nil removes it.
func (x *Executor) SetACL(a Authorizer) {
	if a == nil {
		x.acl.Store(nil)
		return
	}
	x.acl.Store(&a)
	x.warnUnwired()
}

// SetApproval replaces the approval handler; nil removes it.
func (x *Executor) SetApproval(a Approver) {
	if a == nil {
		x.approver.Store(nil)
		return
	}
	x.approver.Store(&a)
	x.warnUnwired()
}

// SetPolicy replaces the execution policy; nil removes it.
func (x *Executor) SetPolicy(p *approval.Policy) error {
	if err := p.Validate(); err != nil {
		return err
	}
	x.policy.Store(p)
	return nil
}

// SetStrategy replaces the strategy for calls that begin from now on; nil is
// GENERAL_INVALID_INPUT. s must not change any more. ACL, approval handler and policy
// of the executor apply to the gates it has (decision D-129).
func (x *Executor) SetStrategy(s *Strategy) error {
	if s == nil {
		return module.Errorf(module.CodeInvalidInput, "strategy is nil")
	}
	x.strategy.Store(s)
	s.notices.log(x.log)
	x.warnUnwired()
	return nil
}

// warnUnwired tells of a gate that is configured and never asked (protocol
// §6.6.3.2).
func (x *Executor) warnUnwired() {
	running := x.strategy.Load()
	if x.acl.Load() != nil && running.find(kindACL) == nil {
		x.log.Warn("an acl is attached, but the strategy has no acl step", "strategy", running.Name())
	}
	if x.approver.Load() != nil && running.find(kindApproval) == nil {
		x.log.Warn("an approval handler is attached, but the strategy has no approval step", "strategy", running.Name())
	}
}

// Use registers a middleware for calls that begin from now on.
func (x *Executor) Use(m middleware.Middleware, opts ...middleware.UseOption) error {
	return x.chain.Use(m, opts...)
}

// Remove takes out the first registration of this very middleware.
func (x *Executor) Remove(m middleware.Middleware) bool { return x.chain.Remove(m) }

// Strategy returns the running strategy.
func (x *Executor) Strategy() *Strategy { return x.strategy.Load() }

// Registry returns the registry.
func (x *Executor) Registry() *registry.Registry { return x.reg }

// Descriptors returns the descriptors of the modules of this process, sorted by
// ID. Their maps must not be modified.
func (x *Executor) Descriptors() []module.Descriptor { return x.reg.Descriptors() }

// OnChange tells when the list of modules changed; see registry.Registry.OnChange.
func (x *Executor) OnChange(notify func()) (stop func()) { return x.reg.OnChange(notify) }

// first reports whether a warning about a module is given for the first time.
func (x *Executor) first(warning, id string) bool {
	_, seen := x.warned.LoadOrStore([2]string{warning, id}, struct{}{})
	return !seen
}
