package loop

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/apbus/apbus/module"
)

// The kinds of [Param].
const (
	ParamBool     = "bool"
	ParamInt      = "int"
	ParamFloat    = "float"
	ParamString   = "str"
	ParamDuration = "duration"
)

// Params are the complete parameters of one pass: bool, int64, float64 or string
// by name. Durations are int64 milliseconds.
type Params map[string]any

// Int returns an int or duration parameter.
func (p Params) Int(name string) int64 { n, _ := p[name].(int64); return n }

// Float returns a float parameter.
func (p Params) Float(name string) float64 { f, _ := p[name].(float64); return f }

// Bool returns a bool parameter.
func (p Params) Bool(name string) bool { b, _ := p[name].(bool); return b }

// Text returns a text parameter.
func (p Params) Text(name string) string { s, _ := p[name].(string); return s }

// Duration returns a duration parameter.
func (p Params) Duration(name string) time.Duration {
	return time.Duration(p.Int(name)) * time.Millisecond
}

// ResolveParams completes given with the defaults of the manifest. It refuses, with
// GENERAL_INVALID_INPUT, a parameter that the manifest does not have, one of another
// kind and one out of range. A float parameter may be given as an integer.
func (m *Manifest) ResolveParams(given map[string]any) (Params, error) {
	out := make(Params, len(m.Params))
	for _, p := range m.Params {
		out[p.Name] = p.Default
	}
	names := make([]string, 0, len(given))
	for name := range given {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		i := slices.IndexFunc(m.Params, func(p Param) bool { return p.Name == name })
		if i < 0 {
			return nil, module.Errorf(module.CodeInvalidInput, "analyzer %s has no parameter %.64q", m.ID, name)
		}
		v, err := m.Params[i].accept(given[name])
		if err != nil {
			return nil, module.Errorf(module.CodeInvalidInput, "analyzer %s: parameter %s %w", m.ID, name, err)
		}
		out[name] = v
	}
	return out, nil
}

func (p *Param) accept(v any) (any, error) {
	if n, ok := v.(int); ok {
		v = int64(n)
	}
	switch p.Kind {
	case ParamBool:
		if b, ok := v.(bool); ok {
			return b, nil
		}
	case ParamInt, ParamDuration:
		if n, ok := v.(int64); ok {
			return n, p.inRange(float64(n))
		}
	case ParamFloat:
		switch n := v.(type) {
		case int64:
			return float64(n), p.inRange(float64(n))
		case float64:
			return n, p.inRange(n)
		}
	case ParamString:
		if s, ok := v.(string); ok {
			if len(s) > p.MaxLen {
				return nil, fmt.Errorf("is longer than %d bytes", p.MaxLen)
			}
			return s, nil
		}
	}
	return nil, fmt.Errorf("is no %s", p.Kind)
}

func (p *Param) inRange(n float64) error {
	if math.IsNaN(n) || n < p.Min || n > p.Max {
		return fmt.Errorf("is not within %g and %g", p.Min, p.Max)
	}
	return nil
}

func intParam(name string, def int64, low, high float64, text string) Param {
	return Param{Name: name, Kind: ParamInt, Default: def, Min: low, Max: high, Description: text}
}

func ratioParam(name string, def float64, text string) Param {
	return Param{Name: name, Kind: ParamFloat, Default: def, Min: 0, Max: 1, Description: text}
}

func floatParam(name string, def, low, high float64, text string) Param {
	return Param{Name: name, Kind: ParamFloat, Default: def, Min: low, Max: high, Description: text}
}

// windowParam is how far back an analyzer looks: a minute to a year.
func windowParam(def time.Duration) Param {
	return durationParam("window_ms", def, "how far back it looks")
}

func durationParam(name string, def time.Duration, text string) Param {
	const year = 365 * 24 * time.Hour
	return Param{
		Name: name, Kind: ParamDuration, Default: def.Milliseconds(),
		Min: float64(time.Second.Milliseconds()), Max: float64(year.Milliseconds()), Description: text,
	}
}
