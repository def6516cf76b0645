package executor

import (
	"fmt"
	"maps"
	"math"
	"slices"
)

// overlayKeys are the fields of a step that a configuration may set. What a step
// requires and provides is its own (protocol §5.16).
func overlayKeys() []string { return []string{"match_modules", "ignore_errors", "pure", "timeout_ms"} }

// stepEntry is one entry of `steps`.
type stepEntry struct {
	where   string
	name    string
	handler bool
	make    StepFactory
	config  map[string]any
	anchor  string
	before  bool
	fields  map[string]any
}

func (c *pipelineConfig) entry(i int, raw any) stepEntry {
	e := stepEntry{where: fmt.Sprintf("steps[%d]", i)}
	m := c.object(e.where, raw)
	c.checkKeys(e.where, m, append(overlayKeys(), "name", "type", "handler", "config", "after", "before")...)
	if e.name = c.text(e.where, m, "name"); e.name == "" {
		c.complain(e.where + ": name is missing")
	} else {
		e.where += " " + quoted(e.name)
	}
	if c.types != nil && c.types.MaxNameLength > 0 && len(e.name) > c.types.MaxNameLength {
		c.complain(fmt.Sprintf("%s: name is longer than %d", e.where, c.types.MaxNameLength))
	}
	e.config = c.object(e.where+".config", m["config"])
	e.fields = m
	c.overlay(e.where, &Step{}, m)
	if _, e.handler = m["handler"]; !e.handler {
		kind := c.text(e.where, m, "type")
		if e.make = c.types.factory(kind); kind == "" {
			c.complain(e.where + ": type is missing")
		} else if e.make == nil {
			c.complain(e.where + ": type " + quoted(kind) + " is not registered")
		}
	}
	// Where both are given, after wins.
	if e.anchor = c.text(e.where, m, "after"); e.anchor == "" {
		e.anchor, e.before = c.text(e.where, m, "before"), true
	}
	if e.anchor == "" {
		c.complain(e.where + ": neither after nor before says where it belongs")
	}
	return e
}

// overlay puts the step fields that are given into a step.
func (c *pipelineConfig) overlay(where string, s *Step, fields map[string]any) {
	reject := func(key string) {
		c.complain(where + ": " + key + " is not allowed, it would weaken the gate")
	}
	if v, ok := fields["match_modules"]; ok {
		s.MatchModules = c.strings(where+".match_modules", v)
		if s.kind.gate() && s.MatchModules != nil {
			reject("match_modules")
		}
	}
	if v, ok := c.flag(where, fields, "ignore_errors"); ok {
		s.IgnoreErrors = v
		if s.kind.gate() && v {
			reject("ignore_errors")
		}
	}
	if v, ok := c.flag(where, fields, "pure"); ok {
		s.Pure = v
		if s.kind == kindApproval && v {
			reject("pure")
		}
	}
	if v, ok := fields["timeout_ms"]; ok {
		n, whole := wholeNumber(v)
		switch {
		case !whole || n < 0:
			c.complain(where + ": timeout_ms is not a number of milliseconds")
		case c.types != nil && c.types.MaxTimeoutMS > 0 && n > c.types.MaxTimeoutMS:
			c.complain(fmt.Sprintf("%s: timeout_ms is above %d", where, c.types.MaxTimeoutMS))
		default:
			s.TimeoutMS = n
		}
	}
}

// The readers below return the zero value for null and for what is of the wrong
// type, about which they complain.

func (c *pipelineConfig) checkKeys(where string, m map[string]any, known ...string) {
	for _, k := range slices.Sorted(maps.Keys(m)) {
		if !slices.Contains(known, k) {
			c.complain(where + ": unknown key " + quoted(k))
		}
	}
}

func (c *pipelineConfig) object(where string, v any) map[string]any {
	m, ok := v.(map[string]any)
	if !ok && v != nil {
		c.complain(where + " is not a map")
	}
	return m
}

func (c *pipelineConfig) list(where string, v any) []any {
	list, ok := v.([]any)
	if !ok && v != nil {
		c.complain(where + " is not a list")
	}
	return list
}

func (c *pipelineConfig) strings(where string, v any) []string {
	if given, ok := v.([]string); ok {
		return given
	}
	list := c.list(where, v)
	if list == nil {
		return nil
	}
	out := make([]string, len(list))
	for i, e := range list {
		s, ok := e.(string)
		if !ok {
			c.complain(where + " is not a list of strings")
		}
		out[i] = s
	}
	return out
}

func (c *pipelineConfig) text(where string, m map[string]any, key string) string {
	s, ok := m[key].(string)
	if !ok && m[key] != nil {
		c.complain(where + ": " + key + " is not a string")
	}
	return s
}

func (c *pipelineConfig) flag(where string, m map[string]any, key string) (value, given bool) {
	v, given := m[key]
	if !given {
		return false, false
	}
	value, ok := v.(bool)
	if !ok {
		c.complain(where + ": " + key + " is neither true nor false")
	}
	return value, ok
}

// wholeNumber reads an integer in whatever type a decoder gave it.
func wholeNumber(v any) (int, bool) {
	switch n := v.(type) {
	case int:
		return n, true
	case int64:
		return int(n), int64(int(n)) == n
	case uint64:
		return int(n), n <= math.MaxInt32
	case float64:
		return int(n), n == math.Trunc(n) && math.Abs(n) <= math.MaxInt32
	}
	return 0, false
}

func quoted(s string) string { return fmt.Sprintf("%q", s) }
