package system

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"

	"github.com/apbus/apbus/module"
)

// OverridesStore keeps what control modules changed over a restart, as one map
// (decision D-47): settings under their dot paths, and under [DisabledKey] the
// list of modules that are switched off. Values are unmasked, so a store needs the
// care of a secret.
type OverridesStore interface {
	// Load returns the map, empty when nothing was ever saved. The caller may
	// change it.
	Load(ctx context.Context) (map[string]any, error)
	// Save replaces the whole map.
	Save(ctx context.Context, overrides map[string]any) error
}

// DisabledKey is where overrides list the modules that are switched off.
const DisabledKey = "sys_modules.control.disabled"

// MemoryOverrides is an [OverridesStore] that lasts as long as the process. The
// zero value is empty and ready.
type MemoryOverrides struct {
	mu   sync.Mutex
	kept map[string]any
}

var _ OverridesStore = (*MemoryOverrides)(nil)

// Load returns a copy of what was saved.
func (o *MemoryOverrides) Load(context.Context) (map[string]any, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return module.NormalizeMap(maps.Clone(o.kept))
}

// Save keeps a copy.
func (o *MemoryOverrides) Save(_ context.Context, overrides map[string]any) error {
	normal, err := module.NormalizeMap(overrides)
	if err != nil {
		return err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.kept = maps.Clone(normal)
	return nil
}

// applyOverrides brings settings and switches to where an earlier process left
// them. What does not fit any more is logged and left out.
func (m *Modules) applyOverrides(ctx context.Context) {
	if m.overrides == nil {
		return
	}
	kept, err := m.overrides.Load(ctx)
	if err != nil {
		m.log.Error("cannot load the overrides", slog.Any("cause", err))
		return
	}
	for _, key := range slices.Sorted(maps.Keys(kept)) {
		switch {
		case key == DisabledKey:
			ids, _ := kept[key].([]any)
			for _, v := range ids {
				if id, ok := v.(string); ok {
					m.reg.SetEnabled(id, false)
				}
			}
		case restricted(key):
			m.log.Warn("an override of a restricted setting is ignored", slog.String("key", key))
		default:
			if _, err := m.settings.Set(key, kept[key]); err != nil {
				m.log.Warn("an override is ignored", slog.String("key", key), slog.Any("cause", err))
			}
		}
	}
}

// keep stores one override, nil taking it away. It is best effort: the change
// itself stands. The caller has the turn.
func (m *Modules) keep(ctx context.Context, key string, value any) {
	if m.overrides == nil {
		return
	}
	kept, err := m.overrides.Load(ctx)
	if err == nil {
		if kept == nil {
			kept = map[string]any{}
		}
		if kept[key] = value; key == DisabledKey && value == nil {
			delete(kept, key)
		}
		err = m.overrides.Save(ctx, kept)
	}
	if err != nil {
		m.log.Warn("a change is not kept over a restart", slog.String("key", key), slog.Any("cause", err))
	}
}

// take waits for the right to change things.
func (m *Modules) take(ctx context.Context) (giveBack func(), err error) {
	select {
	case m.turn <- struct{}{}:
		return func() { <-m.turn }, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}
