package acl

import (
	"context"
	"fmt"
	"slices"

	"github.com/apbus/apbus/module"
)

// outcome is a truth value of Kleene's three-valued logic.
type outcome uint8

const (
	unsatisfied outcome = iota
	unevaluable
	satisfied
)

func outcomeOf(b bool) outcome {
	if b {
		return satisfied
	}
	return unsatisfied
}

// eval evaluates the tree for one call. Execution faults are appended; only a
// decisive operand ends an AND or OR early, never an unevaluable one.
func (n *condition) eval(ctx context.Context, q *Query, faults *[]fault) outcome {
	switch n.kind {
	case nodeAll:
		result := satisfied
		for i := range n.children {
			if o := n.children[i].eval(ctx, q, faults); o < result {
				if result = o; o == unsatisfied {
					break
				}
			}
		}
		return result
	case nodeOr:
		result := unsatisfied
		for i := range n.children {
			if o := n.children[i].eval(ctx, q, faults); o > result {
				if result = o; o == satisfied {
					break
				}
			}
		}
		return result
	case nodeNot:
		return satisfied - n.children[0].eval(ctx, q, faults)
	case nodeIdentityTypes:
		id := q.Context.Identity()
		return outcomeOf(id != nil && slices.Contains(n.names, id.Type()))
	case nodeRoles:
		id := q.Context.Identity()
		return outcomeOf(id != nil && slices.ContainsFunc(n.names, id.HasRole))
	case nodeMaxCallDepth:
		return outcomeOf(int64(len(q.Context.ChainView())) <= n.limit)
	case nodeHasKey, nodeHasAll, nodeHasNone:
		return n.evalArguments(q, faults)
	default:
		return n.evalCustom(ctx, q, faults)
	}
}

// evalArguments answers from the names of the inputs. Without a projection there
// is no answer; an empty stand-in would satisfy has_none_of.
func (n *condition) evalArguments(q *Query, faults *[]fault) outcome {
	if q.ArgumentKeys == nil {
		*faults = append(*faults, fault{path: n.path, reason: "the call has no argument projection"})
		return unevaluable
	}
	found := 0
	for _, name := range n.names {
		if name != approvalToken && slices.Contains(q.ArgumentKeys, name) {
			found++
		}
	}
	switch n.kind {
	case nodeHasKey:
		return outcomeOf(found > 0)
	case nodeHasAll:
		return outcomeOf(found == len(n.names))
	}
	return outcomeOf(found == 0)
}

func (n *condition) evalCustom(ctx context.Context, q *Query, faults *[]fault) outcome {
	fail := func(f fault) outcome {
		*faults = append(*faults, f)
		return unevaluable
	}
	if ctx.Err() != nil {
		return fail(fault{path: n.path, reason: "the check was ended before the handler ran"})
	}
	ok, panicked, err := n.run(ctx, *q)
	switch {
	case panicked:
		return fail(fault{path: n.path, reason: "handler panicked"})
	case err != nil:
		// The error's own text stays out of decisions and audit entries.
		reason := "handler failed"
		if e := module.AsError(err); e != nil {
			reason = fmt.Sprintf("handler failed with %s", e.Code)
		}
		return fail(fault{path: n.path, reason: reason})
	}
	return outcomeOf(ok)
}

func (n *condition) run(ctx context.Context, q Query) (ok, panicked bool, err error) {
	panicked = true
	defer func() {
		if panicked {
			_ = recover()
		}
	}()
	ok, err = n.handler(ctx, n.value, q)
	panicked = false
	return ok, panicked, err
}
