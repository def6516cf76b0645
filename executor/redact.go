package executor

import (
	"strconv"

	"github.com/apbus/apbus/module"
	"github.com/apbus/apbus/schema"
)

// scrub keeps sensitive values of the inputs out of an error that foreign code
// made. An error without any is returned as it is, its cause chain intact; where
// the cause's text held one, only the scrubbed text remains of it.
func (r *callRef) scrub(e *module.Error) *module.Error {
	c := *e
	changed := false
	if len(e.Details) > 0 {
		if details, err := module.NormalizeMap(e.Details); err == nil {
			c.Details = details
		} else {
			c.Details, changed = nil, true
		}
	}
	s := scrubber{redactor: r.x.redactor, secrets: r.secrets()}
	if len(s.secrets) == 0 {
		if changed {
			return &c
		}
		return e
	}
	c.Message = s.text(e.Message)
	c.AIGuidance = s.text(e.AIGuidance)
	c.Suggestion = s.text(e.Suggestion)
	if len(c.Details) > 0 {
		if details, ok := s.value(c.Details).(map[string]any); ok {
			c.Details = details
		}
	}
	out := &c
	if cause := e.CauseText(); cause != "" {
		if clean := s.text(cause); clean != cause {
			out = out.WithCauseText(clean)
		}
	}
	if s.hits == 0 && !changed {
		return e
	}
	return out
}

// scrubber replaces secrets in texts and values and counts what it replaced.
type scrubber struct {
	redactor *schema.Redactor
	secrets  []string
	hits     int
}

func (s *scrubber) text(t string) string {
	if t == "" {
		return t
	}
	clean := s.redactor.Scrub(t, s.secrets)
	if clean != t {
		s.hits++
	}
	return clean
}

// value returns v, a value of the JSON data model, without secrets. Containers
// are copied.
func (s *scrubber) value(v any) any {
	switch v := v.(type) {
	case string:
		return s.text(v)
	case int64:
		return s.number(v, strconv.FormatInt(v, 10))
	case uint64:
		return s.number(v, strconv.FormatUint(v, 10))
	case float64:
		return s.number(v, strconv.FormatFloat(v, 'f', -1, 64))
	case map[string]any:
		out := make(map[string]any, len(v))
		for k, e := range v {
			out[s.text(k)] = s.value(e)
		}
		return out
	case []any:
		out := make([]any, len(v))
		for i, e := range v {
			out[i] = s.value(e)
		}
		return out
	}
	return v
}

func (s *scrubber) number(v any, text string) any {
	for _, secret := range s.secrets {
		if secret == text {
			s.hits++
			return s.redactor.Scrub(text, s.secrets)
		}
	}
	return v
}
