package registry

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/apbus/apbus/module"
)

// DefaultWait is how long [Registry.Unregister] waits for the calls of a module
// (protocol §12.7.4).
const DefaultWait = 5 * time.Second

const levelError = slog.LevelError

// timestampForm is ISO 8601 in UTC, to the millisecond.
const timestampForm = "2006-01-02T15:04:05.000Z"

// Unregister is [Registry.SafeUnregister] with [DefaultWait]. It reports whether
// the module was there, whatever became of its calls; an absent one is no error.
func (r *Registry) Unregister(ctx context.Context, id string) bool {
	e := r.withdraw(ctx, id)
	if e == nil {
		return false
	}
	_, _, _ = r.retire(ctx, e, DefaultWait) // a failed OnUnload is logged and stops nothing
	r.unreserve(id)
	return true
}

// SafeUnregister makes a module invisible at once, waits at most wait, or until
// ctx ends, for the calls that hold it, and then runs its OnSuspend and OnUnload.
// Calls that started go on to their end. clean is false when calls were still running and
// the module was unloaded under them, which is logged as an error. An absent
// module is clean. Until it returns the ID stays taken. err is the error of
// OnUnload, which never stops the unregistration (algorithm A21).
//
// A module that unregisters itself from inside a call waits for that very call,
// and so for the whole of wait.
func (r *Registry) SafeUnregister(ctx context.Context, id string, wait time.Duration) (clean bool, err error) {
	e := r.withdraw(ctx, id)
	if e == nil {
		return true, nil
	}
	defer r.unreserve(id)
	clean, _, err = r.retire(ctx, e, wait)
	return clean, err
}

// withdraw makes the module invisible and refuses new calls; nil when absent.
func (r *Registry) withdraw(ctx context.Context, id string) *Entry {
	e := r.hide(id)
	if e == nil {
		return nil
	}
	e.close()
	r.changed()
	r.call(CallbackUnregister, e)
	r.emitChange(ctx, module.EventModuleUnregistered, id)
	return e
}

func (r *Registry) hide(id string) *Entry {
	r.mu.Lock()
	defer r.mu.Unlock()
	v, ok := r.visible.LoadAndDelete(id)
	if !ok {
		return nil
	}
	r.visibleN--
	r.reserved[id] = struct{}{}
	return v.(*Entry)
}

// retire waits for the calls of an invisible module, suspends and unloads it. Its
// ID stays taken. The hooks keep the values of ctx but not its end: they must run
// even when the wait was cut short.
func (r *Registry) retire(ctx context.Context, e *Entry, wait time.Duration) (clean bool, state map[string]any, err error) {
	id := e.Descriptor.ID
	clean = e.await(ctx, wait)
	if !clean {
		r.log.LogAttrs(ctx, levelError, "module unloaded while calls are running",
			moduleAttr(id), slog.Int("in_flight", e.InFlight()))
	}
	ctx = context.WithoutCancel(ctx)
	state = r.suspend(ctx, e)
	u, ok := e.Module.(module.Unloader)
	if !ok {
		return clean, state, nil
	}
	if err = guard(module.CodeInternal, id, "unloading", func() error { return u.OnUnload(ctx) }); err != nil {
		r.log.LogAttrs(ctx, levelError, "module unload failed", moduleAttr(id), causeAttr(err))
	}
	return clean, state, err
}

// suspend asks the module what its successor should know; nil for nothing.
func (r *Registry) suspend(ctx context.Context, e *Entry) (state map[string]any) {
	s, ok := e.Module.(module.Suspender)
	if !ok {
		return nil
	}
	id := e.Descriptor.ID
	err := guard(module.CodeInternal, id, "suspending", func() (err error) {
		state, err = s.OnSuspend(ctx)
		if err != nil || state == nil {
			return err
		}
		state, err = module.NormalizeMap(state)
		return err
	})
	if err != nil {
		r.log.LogAttrs(ctx, levelError, "module suspend failed", moduleAttr(id), causeAttr(err))
		return nil
	}
	return state
}

// await reports whether nobody holds the closed entry any more.
func (e *Entry) await(ctx context.Context, wait time.Duration) bool {
	select {
	case <-e.idle:
		return true
	default:
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-e.idle:
		return true
	case <-timer.C:
	case <-ctx.Done():
	}
	select {
	case <-e.idle:
		return true
	default:
		return false
	}
}

func moduleAttr(id string) slog.Attr { return slog.String("module_id", id) }

func timeAttr(t time.Time) slog.Attr {
	return slog.String("timestamp", t.UTC().Format(timestampForm))
}

// causeAttr adds the stack where a panic is behind err.
func causeAttr(err error) slog.Attr {
	if p, ok := errors.AsType[*panicError](err); ok {
		return slog.Group("cause", slog.String("error", err.Error()), slog.String("stack", string(p.stack)))
	}
	return slog.String("cause", err.Error())
}
