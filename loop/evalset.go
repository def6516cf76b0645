package loop

import (
	"context"
	"time"

	"github.com/apbus/apbus/module"
	"github.com/apbus/apbus/schema"
)

// PutEvalset sets the evalset of a tool: the cases that a code revision must pass.
// It is an act of an administrator, not a recommendation, since the gate cannot
// gate itself. Code revisions that pin the one before must be proposed again. The
// hash of the new item is returned.
func (e *Engine) PutEvalset(ctx context.Context, now time.Time, who Actor, tool string, cases []any) (string, error) {
	if err := who.can(ScopeAdmin); err != nil {
		return "", err
	}
	if !nameOf(tool) || len(cases) == 0 || len(cases) > 1000 {
		return "", module.Errorf(module.CodeLoopInvalid, "an evalset has a tool and 1 to 1000 cases")
	}
	live, err := e.evalsetOf(ctx, tool)
	if err != nil {
		return "", err
	}
	op := Op{Op: OpAdd, Type: ItemEvalset, Name: tool, Fields: map[string]any{"cases": cases}}
	if live != nil {
		op.Op, op.Replaces = OpSupersede, live.Hash
	}
	source := "admin:" + who.ID
	if err := op.check(); err != nil {
		return "", err
	}
	hash := schema.ContentHash([]any{source, now.UnixMilli(), op.Name, op.Replaces, op.Fields})
	if hash == "" {
		return "", module.Errorf(module.CodeLoopInvalid, "the cases have no JSON form")
	}
	return hash, e.knowledge.do(ctx, op, hash, source, now.UnixMilli())
}
