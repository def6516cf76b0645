package registry

import (
	"context"
	"time"

	"github.com/apbus/apbus/module"
)

// ReloadOptions configures [Registry.Reload]. The zero value is valid.
type ReloadOptions struct {
	// Wait is how long to wait for the module's calls; nil means [DefaultWait].
	Wait *time.Duration
	// Factory makes the successor in place of the one that was declared.
	Factory Factory
}

// Reloaded is what a reload did.
type Reloaded struct {
	PreviousVersion, NewVersion string
	// Clean is false when calls were still running in the old module.
	Clean bool
}

// Reload replaces a module by its successor: the old one becomes invisible, its
// calls end, OnSuspend and OnUnload run, the factory makes the new one, which is
// checked like any other registration, OnLoad and, where the old one handed over
// a state, OnResume run, and only then is the new one visible (protocol §12.7,
// decision D-123). In between a call finds no module, and the ID stays taken.
//
// A successor that cannot be made, has another ID, is refused or fails to load is
// RELOAD_FAILED; the old module is then loaded again, takes its state back and is
// visible as before (decision D-112). details.restored says whether that worked.
// A module that is not there is MODULE_NOT_FOUND. Like unregistering, reloading a
// module from inside one of its own calls waits for that very call.
func (r *Registry) Reload(ctx context.Context, id string, o ReloadOptions) (Reloaded, error) {
	old := r.withdraw(ctx, id)
	if old == nil {
		return Reloaded{}, NotFound(id)
	}
	wait := DefaultWait
	if o.Wait != nil {
		wait = *o.Wait
	}
	factory := old.declared.Factory
	if o.Factory != nil {
		factory = o.Factory
	}
	clean, state, _ := r.retire(ctx, old, wait) // a failed unload is logged and stops nothing
	done := Reloaded{PreviousVersion: old.Descriptor.EffectiveVersion(), Clean: clean}

	next, err := r.successor(ctx, old, factory)
	if err == nil {
		err = r.load(ctx, next)
	}
	if err == nil {
		r.resume(ctx, next, state)
		r.show(ctx, next)
		done.NewVersion = next.Descriptor.EffectiveVersion()
		return done, nil
	}
	restored := r.restore(context.WithoutCancel(ctx), old, state)
	return done, module.Errorf(module.CodeReloadFailed, "module %s was not reloaded: %w", id, err).
		WithDetails(map[string]any{"module_id": id, "restored": restored})
}

// successor makes and checks the module that takes the place of old.
func (r *Registry) successor(ctx context.Context, old *Entry, factory Factory) (*Entry, error) {
	id, m := old.Descriptor.ID, old.Module
	if factory != nil {
		err := guard(module.CodeModuleLoadError, id, "being made", func() (err error) {
			m, err = factory(ctx)
			return err
		})
		switch {
		case err != nil:
			return nil, err
		case m == nil:
			return nil, module.Errorf(module.CodeModuleLoadError, "the factory of module %s made none", id)
		}
	}
	next, err := r.prepare(m, old.declared, old.internal)
	if err != nil {
		return nil, err
	}
	if next.Descriptor.ID != id {
		return nil, module.Errorf(module.CodeModuleLoadError, "the factory of module %s made module %s", id, next.Descriptor.ID)
	}
	return next, nil
}

func (r *Registry) resume(ctx context.Context, e *Entry, state map[string]any) {
	m, ok := e.Module.(module.Resumer)
	if !ok || state == nil {
		return
	}
	id := e.Descriptor.ID
	if err := guard(module.CodeInternal, id, "resuming", func() error { return m.OnResume(ctx, state) }); err != nil {
		r.log.LogAttrs(ctx, levelError, "module resume failed", moduleAttr(id), causeAttr(err))
	}
}

// restore brings a module back whose successor failed. Its entry is a new one,
// since the old is closed for calls.
func (r *Registry) restore(ctx context.Context, old *Entry, state map[string]any) bool {
	id := old.Descriptor.ID
	back := &Entry{
		Module: old.Module, Descriptor: old.Descriptor, Input: old.Input, Output: old.Output,
		Previewer: old.Previewer, Preflighter: old.Preflighter, Streamer: old.Streamer,
		Source: old.Source, declared: old.declared, internal: old.internal, discreet: old.discreet, idle: make(chan struct{}),
	}
	if err := r.load(ctx, back); err != nil {
		r.unreserve(id)
		r.log.LogAttrs(ctx, levelError, "module lost: neither its successor nor the module itself can be loaded", moduleAttr(id))
		return false
	}
	r.resume(ctx, back, state)
	r.show(ctx, back)
	return true
}
