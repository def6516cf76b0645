package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/apbus/apbus/bindings"
	"github.com/apbus/apbus/executor"
	"github.com/apbus/apbus/executor/registry"
	"github.com/apbus/apbus/loop"
	"github.com/apbus/apbus/module"
	"github.com/apbus/apbus/schema"
)

const (
	// evalLimit bounds one run of an evalset.
	evalLimit = 5 * time.Minute
	// evalCase bounds one case whose module has no limit of its own.
	evalCase = 30 * time.Second
)

// runSources has the programs run the text that is live.
func (l *learned) runSources(ctx context.Context, items []*loop.Item) {
	live := map[string]*loop.Item{}
	for _, i := range items {
		if i.Type == loop.ItemCode {
			live[i.Name] = i
		}
	}
	for id, m := range l.bound.revisable() {
		i := live[id]
		if i == nil {
			if l.sources[id] != "" {
				m.RunSource("")
				delete(l.sources, id)
				l.log.Info("program as declared again", "module_id", id)
			}
			continue
		}
		path, err := l.write(i.Hash, i.Text("source"))
		if err != nil {
			l.complain(ctx, i, "a revised program cannot be written down", err)
			continue
		}
		// Again each time: the binding may have been read anew.
		m.RunSource(path)
		if l.sources[id] != i.Hash {
			l.sources[id] = i.Hash
			l.log.Info("program revised", "module_id", id)
		}
	}
}

// write keeps a program text in a file of its own.
func (l *learned) write(hash, source string) (string, error) {
	if l.dir == "" { // a node that is killed leaves it, so there is none that nobody needs
		dir, err := os.MkdirTemp("", "apbus-node-*") // only its owner may look
		if err != nil {
			return "", fmt.Errorf("make a folder for program texts: %w", err)
		}
		l.dir = dir
	}
	path := filepath.Join(l.dir, hash)
	if old, err := os.ReadFile(path); err == nil && string(old) == source { //nolint:gosec // a name of hex digits
		return path, nil
	}
	const private = 0o600
	return path, os.WriteFile(path, []byte(source), private)
}

// tryRevisions runs the evalset of each approved code revision of a module of this
// node, once, and journals what it came to: only then can it be applied. A program
// that nobody has approved is never run.
func (l *learned) tryRevisions(ctx context.Context, items []*loop.Item) error {
	mods := l.bound.revisable()
	if len(mods) == 0 {
		return nil
	}
	cases, _, err := l.engine.Cases(ctx)
	if err != nil {
		return err
	}
	for _, c := range cases {
		if c.Status.State != loop.StateApproved || c.Status.Intent != "" || c.Rec.EvalsetHash == "" || len(c.Rec.Proposal.Ops) != 1 {
			continue
		}
		m := mods[c.Rec.Proposal.Ops[0].Name]
		if m == nil || l.tried[c.Hash] {
			continue
		}
		evalset := evalsetOf(items, c.Rec.EvalsetHash)
		if evalset == nil {
			continue // replaced since; the gate says so
		}
		if err := l.try(ctx, c, m, evalset); err != nil {
			return err
		}
	}
	return nil
}

func evalsetOf(items []*loop.Item, hash string) *loop.Item {
	for _, i := range items {
		if i.Type == loop.ItemEvalset && i.Hash == hash {
			return i
		}
	}
	return nil
}

// try runs the cases of an evalset, unless another node does or has.
func (l *learned) try(ctx context.Context, c *loop.Case, m *bindings.Module, evalset *loop.Item) error {
	unlock, err := l.store.Lock(ctx, "eval."+c.Hash, evalLimit)
	if errors.Is(err, loop.ErrLocked) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() {
		if err := unlock(context.WithoutCancel(ctx)); err != nil {
			l.log.Debug("a lock is left to expire", "cause", err)
		}
	}()
	if l.tried[c.Hash], err = l.engine.Evaluated(ctx, c); err != nil || l.tried[c.Hash] {
		return err
	}
	source, _ := c.Rec.Proposal.Ops[0].Fields["source"].(string)
	path, err := l.write("try-"+c.Hash, source)
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(path) }() // the folder goes anyway
	ctx, stop := context.WithTimeoutCause(ctx, evalLimit, errors.New("the evalset takes too long"))
	defer stop()
	passed, failed, err := l.evaluate(ctx, m.WithSource(path), evalset)
	if err != nil {
		return err
	}
	l.log.Info("evalset run on a revised program", "module_id", m.ID(), "passed", passed, "failed", failed)
	return l.engine.JournalEval(ctx, loop.EvalRun{
		Evalset: evalset.Hash, Candidate: c.Hash, RunID: l.name + "." + rand.Text(), AtMS: time.Now().UnixMilli(), Passed: passed, Failed: failed,
	})
}

// evaluate makes the calls of an evalset in an executor of their own, where schemas
// and limits hold as in any other and nothing else can be called.
func (l *learned) evaluate(ctx context.Context, m *bindings.Module, evalset *loop.Item) (passed, failed int, err error) {
	reg := registry.New(registry.Options{Logger: l.log})
	if err := reg.Register(m.Registrable()); err != nil { //nolint:contextcheck // nothing else is in it that would be waited for
		return 0, 0, fmt.Errorf("try a revised program: %w", err)
	}
	x, err := executor.New(reg, executor.Config{}, executor.WithLogger(l.log))
	if err != nil {
		return 0, 0, fmt.Errorf("try a revised program: %w", err)
	}
	cases, _ := evalset.Fields["cases"].([]any)
	for _, item := range cases {
		c, _ := item.(map[string]any)
		if l.passes(ctx, x, m.ID(), c) {
			passed++
			continue
		}
		if ctx.Err() != nil {
			return 0, 0, context.Cause(ctx)
		}
		failed++
	}
	return passed, failed, nil
}

func (l *learned) passes(ctx context.Context, x *executor.Executor, id string, c map[string]any) bool {
	inputs, ok := c["inputs"].(map[string]any)
	want, also := c["output"].(map[string]any)
	if !ok || !also {
		return false
	}
	ctx, stop := context.WithTimeoutCause(ctx, evalCase, errors.New("the case takes too long"))
	defer stop()
	got, err := x.Call(ctx, id, inputs)
	if err != nil {
		l.log.Debug("a case of an evalset failed", "module_id", id, "code", string(module.CodeOf(err)))
		return false
	}
	return schema.ContentHash(got) == schema.ContentHash(want)
}
