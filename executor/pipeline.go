package executor

import (
	"context"
	"log/slog"
	"time"

	"github.com/apbus/apbus/cancel"
	"github.com/apbus/apbus/executor/middleware"
	"github.com/apbus/apbus/executor/registry"
	"github.com/apbus/apbus/module"
)

// Pipeline is the state of one call on its way through the steps. Steps run one
// after the other; it is not safe for concurrent use and must not be kept after
// the step has returned.
type Pipeline struct {
	x        *Executor
	set      *settings // as they were when the call began
	strategy *Strategy
	moduleID string
	opts     module.CallOptions
	dryRun   bool // validation only
	owned    bool // this process is the owner or nobody is

	// ctx is handed from step to step: context creation and the start of the clock
	// derive it. It is a field because steps are replaceable and share this state.
	ctx    context.Context
	outer  context.Context // what the caller gave
	parent *module.Context // nil for a root call until context creation
	mctx   *module.Context
	token  *cancel.Token
	bus    *arrival // nil unless the call came over the bus

	entry  *registry.Entry
	held   bool // entry is ours to release
	remote bool // the module lives elsewhere

	raw    map[string]any // the inputs as they came
	inputs map[string]any
	output map[string]any

	aclApproval bool   // the ACL wants an approval
	approved    string // digest of the inputs that were approved, "" for none
	runnable    string // digest of those that may run: approved, and what enrichers made of them
	chain       *middleware.Chain
	call        *middleware.Call // nil without middlewares
	entered     int              // middlewares entered

	sink      func(module.Chunk) error // takes the chunks of a stream; nil for a plain call
	ahead     int                      // how many chunks the module may be ahead of sink
	chunks    int                      // handed to sink
	streamed  bool                     // the module gave its output in chunks, to its end
	postError *module.Error            // what failed after that

	clock     clock
	started   time.Time
	retries   int
	executed  bool
	abandoned bool
	foreign   bool // the error comes from a module, a middleware or a handler
	stop      bool // the rest of the steps is not wanted

	outputs map[string]any // by step name, when somebody looks at them
	trace   *Trace
	nest    *nest // where calls inside this one leave their traces; nil without a trace

	room *frame // what the first run has memory in
}

// frame is what every call needs, in one piece: one large piece costs less than four.
// A module that keeps its context keeps the whole of it.
type frame struct {
	Pipeline
	joint cancel.Joint
	alarm alarm

	joined, armed bool // the first run has taken the joint and the alarm
}

// pipeline makes the state of a call of the module and the room for it.
func (x *Executor) pipeline(moduleID string, s *Strategy) *Pipeline {
	f := &frame{}
	p := &f.Pipeline
	p.room, p.x, p.set, p.moduleID, p.strategy = f, x, x.set.Load(), moduleID, s
	return p
}

// takeJoint is where the token and the context of a run are made.
func (f *frame) takeJoint() *cancel.Joint {
	if f.joined {
		return new(cancel.Joint) // another run, whose forerunner's may still be in use
	}
	f.joined = true
	return &f.joint
}

// takeAlarm is where the alarm of a run is made.
func (f *frame) takeAlarm() *alarm {
	if f.armed {
		return new(alarm)
	}
	f.armed = true
	return &f.alarm
}

// arrival is what comes with a call over the bus.
type arrival struct {
	info   module.CallInfo
	report func(module.ProgressReport)
	budget time.Duration
}

// ModuleID returns the module being called.
func (p *Pipeline) ModuleID() string { return p.moduleID }

// Context returns the call's Context, nil before context creation.
func (p *Pipeline) Context() *module.Context { return p.mctx }

// Descriptor returns the module's descriptor, nil before lookup and for a module
// of another node.
func (p *Pipeline) Descriptor() *module.Descriptor {
	if p.entry == nil {
		return nil
	}
	return p.entry.Descriptor
}

// DryRun reports whether the call is only being validated.
func (p *Pipeline) DryRun() bool { return p.dryRun }

// Inputs returns the inputs as the steps so far left them. The map must not be
// modified.
func (p *Pipeline) Inputs() map[string]any { return p.inputs }

// SetInputs replaces the inputs entirely.
func (p *Pipeline) SetInputs(inputs map[string]any) { p.inputs = inputs }

// Output returns the output, nil before execution. The map must not be modified.
func (p *Pipeline) Output() map[string]any { return p.output }

// SetOutput replaces the output entirely.
func (p *Pipeline) SetOutput(output map[string]any) { p.output = output }

// attrs are the fixed log keys of the call.
func (p *Pipeline) attrs(more ...slog.Attr) []slog.Attr {
	r := p.ref()
	return r.attrs(more...)
}

// panicked is the coded error of a panic in the pipeline's own goroutine.
func (p *Pipeline) panicked(where string, v any, code module.Code) *module.Error {
	r := p.ref()
	return r.panicked(p.ctx, where, v, code)
}
