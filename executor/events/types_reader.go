package events

import (
	"maps"
	"math"
	"slices"
	"time"

	"github.com/apbus/apbus/module"
)

// reader takes keys out of a configuration and keeps the first error. Whole numbers
// may come as any number type.
type reader struct {
	config map[string]any
	under  string // what the keys are below
	err    error
}

func (r *reader) refuse(key string) {
	if r.err == nil {
		r.err = module.Errorf(module.CodeConfigInvalid, "events subscriber: %s%s is missing, unknown or not as it should be", r.under, key).
			WithDetails(map[string]any{"key": r.under + key})
	}
}

func (r *reader) adopt(other *reader) {
	if r.err == nil {
		r.err = other.err
	}
}

// rest refuses what nobody took, the first key by name.
func (r *reader) rest() {
	if keys := slices.Sorted(maps.Keys(r.config)); len(keys) > 0 {
		r.refuse(keys[0])
	}
}

func (r *reader) take(key string) (v any, ok bool) {
	v, ok = r.config[key]
	delete(r.config, key)
	return v, ok && v != nil
}

// value takes a value of one type.
func value[T any](r *reader, key string, or T) T {
	v, ok := r.take(key)
	if !ok {
		return or
	}
	t, ok := v.(T)
	if !ok {
		r.refuse(key)
		return or
	}
	return t
}

func (r *reader) text(key, or string) string       { return value(r, key, or) }
func (r *reader) flag(key string, or bool) bool    { return value(r, key, or) }
func (r *reader) object(key string) map[string]any { return value[map[string]any](r, key, nil) }

func (r *reader) required(key string) string {
	s := r.text(key, "")
	if s == "" {
		r.refuse(key)
	}
	return s
}

func (r *reader) choice(key, or, other string) string {
	s := r.text(key, or)
	if s != or && s != other {
		r.refuse(key)
	}
	return s
}

func (r *reader) number(key string, or float64) float64 {
	v, ok := r.take(key)
	if !ok {
		return or
	}
	switch n := v.(type) {
	case float64:
		return n
	case int:
		return float64(n)
	case int64:
		return float64(n)
	case uint64:
		return float64(n)
	}
	r.refuse(key)
	return or
}

// size takes a whole number that is not negative.
func (r *reader) size(key string) int64 {
	n := r.number(key, 0)
	if n < 0 || n != math.Trunc(n) || n > 1<<53 {
		r.refuse(key)
		return 0
	}
	return int64(n)
}

// maxCount bounds counts and milliseconds: about 24 days.
const maxCount = math.MaxInt32

func (r *reader) count(key string) (n int, set bool) {
	if r.config[key] == nil {
		delete(r.config, key)
		return 0, false
	}
	size := r.size(key)
	if size > maxCount {
		r.refuse(key)
		return 0, true
	}
	return int(size), true
}

func (r *reader) millis(key string, or time.Duration) time.Duration {
	n, set := r.count(key)
	if !set {
		return or
	}
	return time.Duration(n) * time.Millisecond
}

// list takes a list of texts; nil when it is absent, empty when it is empty.
func (r *reader) list(key string) []string {
	v, ok := r.take(key)
	if !ok {
		return nil
	}
	if texts, ok := v.([]string); ok {
		return append([]string{}, texts...)
	}
	items, ok := v.([]any)
	if !ok {
		r.refuse(key)
		return nil
	}
	out := make([]string, 0, len(items))
	for _, item := range items {
		s, ok := item.(string)
		if !ok {
			r.refuse(key)
			return nil
		}
		out = append(out, s)
	}
	return out
}

func (r *reader) texts(key string) map[string]string {
	m := r.object(key)
	if m == nil {
		return nil
	}
	out := make(map[string]string, len(m))
	for k, v := range m {
		s, ok := v.(string)
		if !ok {
			r.refuse(key)
			return nil
		}
		out[k] = s
	}
	return out
}
