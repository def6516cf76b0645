package executor

import (
	"context"
	"slices"

	"github.com/apbus/apbus/executor/approval"
	"github.com/apbus/apbus/schema"
)

// The names of the eleven steps (protocol §7.4).
const (
	StepContextCreation  = "context_creation"
	StepCallChainGuard   = "call_chain_guard"
	StepModuleLookup     = "module_lookup"
	StepACLCheck         = "acl_check"
	StepApprovalGate     = "approval_gate"
	StepMiddlewareBefore = "middleware_before"
	StepInputValidation  = "input_validation"
	StepExecute          = "execute"
	StepOutputValidation = "output_validation"
	StepMiddlewareAfter  = "middleware_after"
	StepReturnResult     = "return_result"
)

// Step is one step of a pipeline. It must not change once a strategy has it; it
// may serve many calls at once. A custom step gives Name and Run.
type Step struct {
	Name        string
	Description string
	// Removable and Replaceable say what [Strategy] may do with the step.
	Removable, Replaceable bool
	// MatchModules are A08 patterns; only matching modules run the step. nil is all.
	MatchModules []string
	// IgnoreErrors logs a failure and goes on. A cancellation is never ignored.
	IgnoreErrors bool
	// Pure steps have no effects and also run when a call is validated.
	Pure bool
	// TimeoutMS limits the step in milliseconds, past which it fails with
	// MODULE_TIMEOUT; 0 is no limit. Run sees it as ctx's deadline.
	TimeoutMS int
	// Requires are tokens that earlier steps must provide.
	Requires, Provides []string
	// Run does the work; a nil result means go on. ctx is the call's.
	Run func(ctx context.Context, p *Pipeline) (*StepResult, error)

	kind     stepKind
	acl      Authorizer // of a gate made with its own provider
	approver Approver
	policy   *approval.Policy
}

// stepKind marks the built-in steps. Gates are recognised by it and never by name,
// so that a look-alike is not taken for one (protocol §6.6.5).
type stepKind int

const (
	kindCustom stepKind = iota
	kindContext
	kindGuard
	kindLookup
	kindACL
	kindApproval
	kindBefore
	kindInput
	kindExecute
	kindOutput
	kindAfter
	kindReturn
)

// remote reports whether the caller's side of a remote call runs the step.
func (k stepKind) remote() bool {
	switch k {
	case kindContext, kindGuard, kindLookup, kindExecute, kindReturn:
		return true
	}
	return false
}

// gate reports whether the step enforces; such a step cannot be weakened.
func (k stepKind) gate() bool { return k == kindACL || k == kindApproval }

// matches reports whether the step runs for a module.
func (s *Step) matches(moduleID string) bool {
	return s.MatchModules == nil || slices.ContainsFunc(s.MatchModules, func(pattern string) bool {
		return schema.MatchPattern(pattern, moduleID)
	})
}

// Action is what happens after a step.
type Action int

// The actions.
const (
	Continue Action = iota
	SkipTo          // go on at a later step
	Abort           // fail with PIPELINE_ABORT
)

// StepResult is what a step may say beyond "go on".
type StepResult struct {
	Action Action
	// Target is the step that SkipTo goes to; it must come later.
	Target string
	// Explanation, Confidence (0 to 1) and Alternatives are for the trace; setting
	// Confidence marks a decision point.
	Explanation  string
	Confidence   *float64
	Alternatives []string
}
