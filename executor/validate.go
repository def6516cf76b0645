package executor

import (
	"context"

	"github.com/apbus/apbus/module"
)

// Validate checks a call without running it: the pure steps, every one of them
// whatever the earlier ones found, and then the module's own preflight and preview.
// Nothing is asked of people, no middleware runs, no denial is announced. The
// result is never nil and its PredictedChanges never null (protocol §12.8).
//
// A caller that the ACL denies learns nothing from the module itself: neither hook
// runs. A module of another node is checked there.
func (x *Executor) Validate(ctx context.Context, id string, inputs map[string]any, opts ...module.CallOption) *module.PreflightResult {
	p := x.pipeline(id, x.strategy.Load())
	p.parent = module.FromContext(ctx)
	for _, o := range opts {
		o(&p.opts)
	}
	return p.validate(ctx, inputs)
}

// The names of the checks of built-in steps and hooks (protocol §12.8.4).
const (
	checkModuleID  = "module_id"
	checkBinding   = "executor_binding"
	checkPreflight = "module_preflight"
	checkPreview   = "module_preview"
)

// checkName is what a step's check is called, "" when the step has none.
func (s *Step) checkName() string {
	switch s.kind {
	case kindContext:
		return "context"
	case kindGuard:
		return "call_chain"
	case kindLookup:
		return "module_lookup"
	case kindACL:
		return "acl"
	case kindApproval:
		return "approval"
	case kindInput:
		return "schema"
	case kindCustom:
		if s.Pure {
			return s.Name
		}
	}
	return ""
}

// unfitForValidation reports whether a step was configured not to be pure. The steps
// that the others stand on and the gates are asked all the same, since without the
// gates' answer a module must not be asked anything.
func (s *Step) unfitForValidation() bool {
	return !s.Pure && (s.kind == kindGuard || s.kind == kindInput)
}

// validation is a run that records instead of failing.
type validation struct {
	*Pipeline
	result *module.PreflightResult
	failed map[string]bool
	// unusable is why the inputs cannot be judged by a schema at all.
	unusable error
	// remoteFailure is why the owner could not be asked.
	remoteFailure error
}

func (p *Pipeline) validate(ctx context.Context, inputs map[string]any) *module.PreflightResult {
	p.dryRun, p.ctx, p.outer = true, ctx, ctx
	v := &validation{
		Pipeline: p, failed: map[string]bool{},
		result: &module.PreflightResult{Valid: true, PredictedChanges: []module.Change{}},
	}
	defer p.release()
	err := module.ValidateID(p.moduleID)
	v.record(checkModuleID, err)
	p.owned = p.owned || err != nil // nobody else is asked about what is no ID
	if p.inputs, err = module.NormalizeMap(inputs); err != nil {
		v.unusable, p.inputs = err, map[string]any{}
	}
	p.raw = p.inputs
	v.record(checkBinding, v.unbound())
	if remote := v.steps(); remote != nil { //nolint:contextcheck // p.ctx is ctx, or what the steps made of it
		return remote
	}
	v.introspect()
	return v.result
}

// unbound checks the parent's executor. A foreign one fails the check and is then
// left aside, so that the other checks can run.
func (v *validation) unbound() error {
	if v.parent == nil || v.parent.Executor() == nil || v.parent.Executor() == module.Executor(v.x) {
		return nil
	}
	v.parent = module.RestoreContext(v.parent.Wire())
	return module.Errorf(module.CodeContextBindingError, "context is bound to another executor")
}

// steps runs the checks in the order of the strategy. It returns a result only
// when the module's owner gave it.
func (v *validation) steps() *module.PreflightResult {
	for _, s := range v.strategy.steps {
		name := s.checkName()
		if name == "" || s.unfitForValidation() || !s.matches(v.moduleID) || (s.kind == kindInput && v.entry == nil) {
			continue
		}
		err := v.check(s)
		if s.kind == kindLookup && err == nil && v.remote {
			if r, ok := v.checkRemote(); ok {
				return r
			}
			err = v.remoteFailure
		}
		v.record(name, err)
		if s.kind == kindContext && v.mctx == nil {
			break // nothing can be checked without a context
		}
	}
	return nil
}

// check runs one step for its verdict.
func (v *validation) check(s *Step) error {
	switch s.kind {
	case kindApproval:
		_, _, err := v.stripToken()
		v.result.RequiresApproval = v.requirement(v.x.policyOf(s)).Needed
		return err
	case kindInput:
		if v.unusable != nil {
			return v.unusable
		}
	}
	r, err := v.runStep(s)
	if err == nil && r != nil && r.Action == Abort {
		return module.Errorf(module.CodePipelineAbort, "%s", r.Explanation)
	}
	return err
}

func (v *validation) record(check string, err error) {
	c := module.PreflightCheck{Check: check, Passed: err == nil}
	if err != nil {
		v.result.Valid = false
		v.failed[check] = true
		c.Error = v.surface(&StepError{Step: check, Err: err})
	}
	v.result.Checks = append(v.result.Checks, c)
}

// checkRemote asks the module's owner.
func (v *validation) checkRemote() (*module.PreflightResult, bool) {
	req, err := v.remoteRequest()
	if err != nil {
		v.remoteFailure = err
		return nil, false
	}
	r, err := v.x.remote.Check(v.ctx, req)
	if err != nil || r == nil {
		if err == nil {
			err = module.Errorf(module.CodeInternal, "module %s: the remote answered nothing", v.moduleID)
		}
		v.remoteFailure = err
		return nil, false
	}
	return r, true
}

// introspect asks the module itself, unless it was not found or its caller may not
// know. A wrong input or a missing approval keeps nothing from a permitted caller.
func (v *validation) introspect() {
	if v.entry == nil || v.failed["acl"] || v.failed["module_lookup"] {
		return
	}
	view := introspection{v.ref()}
	if v.entry.Preflighter != nil {
		v.result.Checks = append(v.result.Checks, module.PreflightCheck{
			Check: checkPreflight, Passed: true, Warnings: view.preflight(v.ctx),
		})
	}
	if v.entry.Previewer == nil {
		return
	}
	changes, warnings, answered := view.preview(v.ctx)
	if !answered {
		return
	}
	v.result.PredictedChanges = append(v.result.PredictedChanges, changes...)
	v.result.Checks = append(v.result.Checks, module.PreflightCheck{Check: checkPreview, Passed: true, Warnings: warnings})
}
