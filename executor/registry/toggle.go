package registry

import (
	"maps"
	"slices"
)

// SetEnabled switches a module off for calls, which then fail at lookup with
// MODULE_DISABLED, or on again, and reports what it was before. The switch
// belongs to the ID in this registry: it survives a reload and an
// unregistration, and may be set before the module is there.
func (r *Registry) SetEnabled(id string, enabled bool) (was bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	was = r.Enabled(id)
	if was == enabled {
		return was
	}
	next := map[string]struct{}{}
	if old := r.disabled.Load(); old != nil {
		next = maps.Clone(*old)
	}
	if enabled {
		delete(next, id)
	} else {
		next[id] = struct{}{}
	}
	if len(next) == 0 {
		r.disabled.Store(nil)
	} else {
		r.disabled.Store(&next)
	}
	return was
}

// Enabled reports whether the ID is not switched off, registered or not.
func (r *Registry) Enabled(id string) bool {
	set := r.disabled.Load()
	if set == nil {
		return true
	}
	_, off := (*set)[id]
	return !off
}

// Disabled lists the IDs that are switched off, sorted.
func (r *Registry) Disabled() []string {
	set := r.disabled.Load()
	if set == nil {
		return nil
	}
	return slices.Sorted(maps.Keys(*set))
}
