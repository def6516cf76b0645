package system

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/apbus/apbus/module"
	"github.com/apbus/apbus/schema"
)

// maxKeyDepth bounds the segments of a key.
const maxKeyDepth = 16

// Settings is a configuration at run time: values under dot paths such as
// executor.default_timeout. The public settings have their defaults and are held
// to their constraints; other keys belong to the application and take any value.
// Whoever should follow a change asks again or registers with
// [Settings.OnChange]: nothing is applied by the settings themselves.
type Settings struct {
	rules map[string]*schema.Compiled

	mu       sync.RWMutex
	root     map[string]any // replaced along the path of a change, never changed
	watchers []*settingWatcher
}

type settingWatcher struct{ notify func(key string, value any) }

// NewSettings makes settings of the defaults with base, nested maps, on top. A
// value that breaks its constraint is CONFIG_INVALID.
func NewSettings(base map[string]any) (*Settings, error) {
	s := &Settings{rules: map[string]*schema.Compiled{}, root: map[string]any{}}
	for _, k := range knownSettings() {
		rule, err := schema.Compile(k.rule)
		if err != nil {
			return nil, module.Errorf(module.CodeInternal, "rule of %s: %w", k.key, err)
		}
		s.rules[k.key] = rule
		s.root = with(s.root, strings.Split(k.key, "."), k.value)
	}
	normal, err := module.NormalizeMap(base)
	if err != nil {
		return nil, module.Errorf(module.CodeConfigInvalid, "configuration has no JSON form: %w", err)
	}
	root := overlay(s.root, normal)
	if err := s.check(root); err != nil {
		return nil, err
	}
	s.root = root
	return s, nil
}

// Get returns the value under a dot path and whether there is one. Maps and lists
// must not be modified.
func (s *Settings) Get(key string) (any, bool) {
	s.mu.RLock()
	root := s.root
	s.mu.RUnlock()
	return at(root, key)
}

func (s *Settings) text(key string) string {
	v, _ := s.Get(key)
	t, _ := v.(string)
	return t
}

// Set replaces the value under a dot path, making the objects on the way, and
// returns what was there, nil for nothing. A malformed key and a value without a
// JSON form are GENERAL_INVALID_INPUT; a value that breaks a constraint, its own or
// that of a key below or above, is CONFIG_INVALID and changes nothing. The error
// never quotes the value.
func (s *Settings) Set(key string, value any) (old any, err error) {
	path, err := keyPath(key)
	if err != nil {
		return nil, err
	}
	normal, err := module.Normalize(value)
	if err != nil {
		return nil, err
	}
	old, watchers, err := s.set(key, path, normal)
	if err != nil {
		return nil, err
	}
	for _, w := range watchers {
		w.notify(key, normal)
	}
	return old, nil
}

func (s *Settings) set(key string, path []string, value any) (old any, watchers []*settingWatcher, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range path[1:] {
		above := strings.Join(path[:i+1], ".")
		if v, there := at(s.root, above); there {
			if _, isObject := v.(map[string]any); !isObject {
				return nil, nil, invalid(key, above+" is no section")
			}
		}
	}
	old, _ = at(s.root, key)
	root := with(s.root, path, value)
	if err := s.check(root); err != nil {
		return nil, nil, err
	}
	s.root = root
	return old, s.watchers, nil
}

// OnChange arranges for notify to be called after each [Settings.Set], in its
// goroutine. The returned function takes it off again.
func (s *Settings) OnChange(notify func(key string, value any)) (stop func()) {
	w := &settingWatcher{notify}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.watchers = append(slices.Clone(s.watchers), w)
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.watchers = slices.DeleteFunc(slices.Clone(s.watchers), func(o *settingWatcher) bool { return o == w })
	}
}

// All returns every setting, nested. The maps must not be modified.
func (s *Settings) All() map[string]any {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.root
}

// check holds every known key to its rule. A known key that is gone, because
// something above it was replaced, counts as a broken constraint.
func (s *Settings) check(root map[string]any) error {
	for _, key := range slices.Sorted(maps.Keys(s.rules)) {
		v, there := at(root, key)
		if !there {
			return invalid(key, "it is missing")
		}
		if err := s.rules[key].Validate(v); err != nil {
			why := "it is not as it must be"
			if ve, ok := errors.AsType[*schema.ValidationError](err); ok && len(ve.Violations) > 0 {
				why = ve.Violations[0].Message
			}
			return invalid(key, why)
		}
	}
	return nil
}

func invalid(key, why string) *module.Error {
	return module.Errorf(module.CodeConfigInvalid, "setting %s: %s", key, why).WithDetail("key", key)
}

// keyPath splits a key and refuses what is none.
func keyPath(key string) ([]string, error) {
	path := strings.Split(key, ".")
	bad := len(path) > maxKeyDepth || slices.ContainsFunc(path, func(p string) bool {
		return p == "" || strings.ContainsFunc(p, func(r rune) bool { return r <= ' ' || r == 0x7f })
	})
	if bad {
		return nil, module.Errorf(module.CodeInvalidInput, "key must be names joined by dots, at most %d", maxKeyDepth)
	}
	return path, nil
}

func at(root map[string]any, key string) (any, bool) {
	var v any = root
	for name := range strings.SplitSeq(key, ".") {
		m, ok := v.(map[string]any)
		if !ok {
			return nil, false
		}
		if v, ok = m[name]; !ok {
			return nil, false
		}
	}
	return v, true
}

// with returns root with value under path; what lies on the path is copied.
func with(root map[string]any, path []string, value any) map[string]any {
	out := maps.Clone(root)
	if out == nil {
		out = map[string]any{}
	}
	if len(path) == 1 {
		out[path[0]] = value
		return out
	}
	below, _ := out[path[0]].(map[string]any)
	out[path[0]] = with(below, path[1:], value)
	return out
}

// overlay lays top over base, object by object.
func overlay(base, top map[string]any) map[string]any {
	out := maps.Clone(base)
	for k, v := range top {
		below, isObject := out[k].(map[string]any)
		above, alsoObject := v.(map[string]any)
		if isObject && alsoObject {
			out[k] = overlay(below, above)
			continue
		}
		out[k] = v
	}
	return out
}
