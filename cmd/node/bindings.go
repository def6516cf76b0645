package main

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/apbus/apbus/bindings"
	"github.com/apbus/apbus/executor/registry"
	"github.com/apbus/apbus/internal/settings"
	"github.com/apbus/apbus/module"
)

// bindingsPoll is how often the binding files are looked at.
const bindingsPoll = 500 * time.Millisecond

// bound are the modules of the binding files.
type bound struct {
	files []string
	opts  bindings.Options
	reg   *registry.Registry
	log   *slog.Logger
	seen  []stamp

	mu   sync.Mutex // of mods, which watch alone changes
	mods map[string]*bindings.Module
}

// revisable are the modules whose program text can be replaced, by ID.
func (b *bound) revisable() map[string]*bindings.Module {
	list := map[string]*bindings.Module{}
	if b == nil {
		return list
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for id, m := range b.mods {
		if m.Revisable() {
			list[id] = m
		}
	}
	return list
}

// set notes the module of an ID, nil for none.
func (b *bound) set(id string, m *bindings.Module) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if m == nil {
		delete(b.mods, id)
		return
	}
	b.mods[id] = m
}

// bind reads the binding files and registers their modules; without files there is
// nothing to follow.
func bind(ctx context.Context, files []string, spec settings.Spec, reg *registry.Registry, log *slog.Logger) (*bound, error) {
	if len(files) == 0 {
		return nil, nil
	}
	b := &bound{
		files: files, opts: bindings.Options{Env: spec.Env, Logger: log}, reg: reg, log: log, mods: map[string]*bindings.Module{},
	}
	b.seen = b.stamps()
	mods, err := bindings.Load(b.files, b.opts)
	if err != nil {
		return nil, settings.Usagef("--bindings: %w", err)
	}
	for _, m := range mods {
		if err := b.add(ctx, m); err != nil {
			return nil, fmt.Errorf("register %s of %s: %w", m.ID(), m.File(), err)
		}
	}
	return b, nil
}

func (b *bound) stamps() []stamp {
	list := make([]stamp, len(b.files))
	for i, f := range b.files {
		list[i] = stampOf(f)
	}
	return list
}

func (b *bound) add(ctx context.Context, m *bindings.Module) error {
	if err := b.reg.RegisterDeclared(ctx, m.Registrable(), registry.Declaration{Source: m.File()}); err != nil {
		return err
	}
	b.set(m.ID(), m)
	return nil
}

// watch reads the files again whenever one of them changed, until ctx is done.
// Files with a fault leave everything as it is.
func (b *bound) watch(ctx context.Context) {
	tick := time.NewTicker(bindingsPoll)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		now, changed := b.stamps(), false
		for i := range now {
			changed = changed || now[i] != b.seen[i]
		}
		if changed {
			b.seen = now
			b.reload(ctx)
		}
	}
}

// reload makes the modules those of the files.
func (b *bound) reload(ctx context.Context) {
	mods, err := bindings.Load(b.files, b.opts)
	if err != nil {
		b.log.Error("cannot read the changed bindings, the old ones stay in force", "cause", err)
		return
	}
	wanted := make(map[string]bool, len(mods))
	for _, m := range mods {
		wanted[m.ID()] = true
	}
	for id := range b.mods {
		if !wanted[id] {
			b.reg.Unregister(ctx, id)
			b.set(id, nil)
			b.log.Info("binding removed", "module_id", id)
		}
	}
	for _, m := range mods {
		if err := b.replace(ctx, m); err != nil {
			b.log.Error("binding not changed", "module_id", m.ID(), "cause", err)
		}
	}
}

// replace puts m in the place of what is there. What callers cannot see is changed
// under them; a new description, schema, annotation or limit is another module, and
// the calls of the old one end first.
func (b *bound) replace(ctx context.Context, m *bindings.Module) error {
	id := m.ID()
	old := b.mods[id]
	switch {
	case old == nil:
		if err := b.add(ctx, m); err != nil {
			return err
		}
		b.log.Info("binding added", "module_id", id)
		return nil
	case old.Same(m):
		return nil
	case old.Adopt(m):
		b.log.Info("binding runs something else", "module_id", id)
		return nil
	}
	_, err := b.reg.Reload(ctx, id, registry.ReloadOptions{
		Factory: func(context.Context) (module.Module, error) { return m.Registrable(), nil },
	})
	if err != nil {
		return err
	}
	b.set(id, m)
	b.log.Info("binding changed", "module_id", id)
	return nil
}
