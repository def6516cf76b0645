package executor

import (
	"context"

	"github.com/apbus/apbus/module"
)

// guardStep is step 2: first whether the call is wanted at all any more, then the
// shape of its chain.
func guardStep() *Step {
	return &Step{
		Name: StepCallChainGuard, Description: "refuse cancelled calls, deep chains, cycles and repeats",
		Pure: true, Removable: true, Replaceable: true, Requires: []string{"context"}, kind: kindGuard, Run: runGuard,
	}
}

func runGuard(ctx context.Context, p *Pipeline) (*StepResult, error) {
	if ctx.Err() != nil {
		return nil, p.ended(ctx).NotExecuted()
	}
	if err := GuardCallChain(p.moduleID, p.mctx.ChainView(), p.set.depth, p.set.repeat); err != nil {
		return nil, err
	}
	return nil, nil
}

// GuardCallChain is algorithm A20 over a chain that ends with the target itself:
// depth, then cycle, then repeats. A chain of exactly maxDepth passes. It returns
// nil, CALL_DEPTH_EXCEEDED, CIRCULAR_CALL, CALL_FREQUENCY_EXCEEDED, or
// GENERAL_INVALID_INPUT for a limit below one.
func GuardCallChain(moduleID string, chain []string, maxDepth, maxRepeat int) error {
	if maxDepth < 1 || maxRepeat < 1 {
		return module.Errorf(module.CodeInvalidInput, "call-chain limits must be at least 1")
	}
	if len(chain) > maxDepth {
		return module.Errorf(module.CodeCallDepthExceeded, "call chain has %d modules, limit %d", len(chain), maxDepth).
			WithDetails(map[string]any{
				"module_id": moduleID, "depth": int64(len(chain)), "max_depth": int64(maxDepth), "call_chain": chainList(chain),
			})
	}
	count, last := 0, -1
	for i, id := range chain {
		if id == moduleID {
			count++
			if i < len(chain)-1 {
				last = i
			}
		}
	}
	// The last occurrence before the target closes a cycle when another module
	// stands in between; a module that calls itself directly is a repeat.
	if last >= 0 && last < len(chain)-2 {
		return module.Errorf(module.CodeCircularCall, "module %s is called again from below itself", moduleID).
			WithDetails(map[string]any{
				"module_id": moduleID, "call_chain": chainList(chain), "cycle_start": int64(last),
			})
	}
	if count > maxRepeat {
		return module.Errorf(module.CodeCallFrequencyExceeded, "module %s stands %d times in the call chain, limit %d", moduleID, count, maxRepeat).
			WithDetails(map[string]any{
				"module_id": moduleID, "count": int64(count), "max_repeat": int64(maxRepeat), "call_chain": chainList(chain),
			})
	}
	return nil
}

func chainList(chain []string) []any {
	list := make([]any, len(chain))
	for i, id := range chain {
		list[i] = id
	}
	return list
}
