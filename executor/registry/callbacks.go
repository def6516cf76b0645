package registry

import (
	"log/slog"
	"runtime/debug"
	"slices"

	"github.com/apbus/apbus/module"
)

// The events that [Registry.On] takes, and no others (decision D-80).
const (
	CallbackRegister   = "register"
	CallbackUnregister = "unregister"
)

type callback struct {
	fn func(id string, m module.Module)
}

// On arranges for fn to be called after each module that became visible
// ([CallbackRegister]) or invisible ([CallbackUnregister]), a reload being one of
// each, in the goroutine that made the change and never under a lock. A panic in
// it is logged. off takes it away again. Any other event is
// GENERAL_INVALID_INPUT.
func (r *Registry) On(event string, fn func(id string, m module.Module)) (off func(), err error) {
	switch {
	case event != CallbackRegister && event != CallbackUnregister:
		return nil, module.Errorf(module.CodeInvalidInput, "registry event %.64q is none of %s, %s", event, CallbackRegister, CallbackUnregister)
	case fn == nil:
		return nil, module.Errorf(module.CodeInvalidInput, "registry callback is nil")
	}
	c := &callback{fn}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.callbacks[event] = append(slices.Clone(r.callbacks[event]), c)
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.callbacks[event] = slices.DeleteFunc(slices.Clone(r.callbacks[event]), func(o *callback) bool { return o == c })
	}, nil
}

func (r *Registry) call(event string, e *Entry) {
	r.mu.Lock()
	list := r.callbacks[event]
	r.mu.Unlock()
	for _, c := range list {
		r.callOne(c, event, e)
	}
}

func (r *Registry) callOne(c *callback, event string, e *Entry) {
	defer func() {
		if p := recover(); p != nil {
			r.log.Error("registry callback panicked", moduleAttr(e.Descriptor.ID),
				slog.String("event", event), slog.String("stack", string(debug.Stack())))
		}
	}()
	c.fn(e.Descriptor.ID, e.Module)
}
