package schema

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// DefaultReplacement stands for a masked value.
const DefaultReplacement = "***REDACTED***"

// minSecret is the shortest rendering that [Redactor.Values] reports: scrubbing
// "1" or "no" from a text would only garble it.
const minSecret = 4

// DefaultSensitiveKeys returns the 16 names that are masked unless the
// configuration lists its own (obs.redaction.sensitive_keys).
func DefaultSensitiveKeys() []string {
	return []string{
		"_secret_*", "password", "passwd", "secret", "token", "api_key", "apikey", "apiKey", "access_key",
		"private_key", "authorization", "auth", "credential", "cookie", "session", "bearer",
	}
}

// RedactOptions configures a [Redactor]. The zero value applies the default names.
type RedactOptions struct {
	// SensitiveKeys are the names whose values are masked. nil means
	// [DefaultSensitiveKeys]; an empty list turns matching by name off. An entry
	// with '*' or '?' is an A25 pattern over the whole name, any other is a
	// substring; neither looks at case. Substrings also ignore how words are joined:
	// "api_key" finds X-API-KEY and apiKey. Empty entries are ignored.
	SensitiveKeys []string
	// Patterns are regular expressions (RE2) searched in string values, unanchored
	// and without regard to case. Other values are never turned into text.
	Patterns []string
	// Replacement stands for a masked value; empty means DefaultReplacement.
	Replacement string
}

// Redactor masks sensitive values. It is safe for concurrent use.
//
// A value is masked when a schema marks it x-sensitive, when its name is listed,
// or when it is a string that a pattern finds. null stays null. The values of
// trace_id, span_id, caller_id, module_id and target_id are never masked at any
// depth, though what such a value contains is looked at.
type Redactor struct {
	names       *nameMatcher
	patterns    []*regexp.Regexp
	replacement string
}

// NewRedactor prepares a Redactor. A pattern that does not parse is an error that
// names all such patterns; none of them is ever dropped silently.
func NewRedactor(opts RedactOptions) (*Redactor, error) {
	r := &Redactor{replacement: opts.Replacement}
	if r.replacement == "" {
		r.replacement = DefaultReplacement
	}
	keys := opts.SensitiveKeys
	if keys == nil {
		keys = DefaultSensitiveKeys()
	}
	r.names = newNameMatcher(keys)
	var bad []error
	for i, p := range opts.Patterns {
		re, err := regexp.Compile("(?i:" + p + ")")
		if err != nil {
			bad = append(bad, fmt.Errorf("redaction pattern %d: %w", i, err))
			continue
		}
		r.patterns = append(r.patterns, re)
	}
	if len(bad) > 0 {
		return nil, errors.Join(bad...)
	}
	return r, nil
}

// Replacement is what stands for a masked value.
func (r *Redactor) Replacement() string { return r.replacement }

// Redact returns a copy of v with sensitive values replaced, by the marks of c
// (nil for none), by name and by pattern. v is only read and shares nothing with
// the copy. nil gives nil. What cannot be walked in bounded depth and size is
// masked, as is a Go value without a JSON form.
func (r *Redactor) Redact(c *Compiled, v map[string]any) map[string]any {
	if v == nil {
		return nil
	}
	return r.start(c, nil).object(c.markSet(), v, 0)
}

// Values lists how each value that Redact would mask reads in a text: strings
// themselves and as Go and JSON quote them, numbers in decimal; of a masked
// container, everything inside. Renderings shorter than four bytes are left out,
// the longest come first, none twice. Pass the list to [Redactor.Scrub].
func (r *Redactor) Values(c *Compiled, v map[string]any) []string {
	if v == nil {
		return nil
	}
	found := map[string]bool{}
	r.start(c, found).object(c.markSet(), v, 0)
	out := make([]string, 0, len(found))
	for s := range found {
		out = append(out, s)
	}
	slices.SortFunc(out, func(a, b string) int {
		if len(a) != len(b) {
			return len(b) - len(a)
		}
		return strings.Compare(a, b)
	})
	return out
}

// Scrub replaces every occurrence of the secrets in text, the earlier in the list
// winning where two start at one place. Empty secrets are ignored.
func (r *Redactor) Scrub(text string, secrets []string) string {
	pairs := make([]string, 0, 2*len(secrets))
	for _, s := range secrets {
		if s != "" && strings.Contains(text, s) {
			pairs = append(pairs, s, r.replacement)
		}
	}
	if len(pairs) == 0 {
		return text
	}
	return strings.NewReplacer(pairs...).Replace(text)
}

func (r *Redactor) start(c *Compiled, secrets map[string]bool) *redaction {
	return &redaction{r: r, left: maxValueNodes, secrets: secrets, everything: c.markSet().sensitive()}
}

func (c *Compiled) markSet() markSet {
	if c == nil {
		return nil
	}
	return c.marks
}

// redaction is one walk over a value.
type redaction struct {
	r       *Redactor
	left    int
	secrets map[string]bool // renderings of masked values, when wanted

	everything bool // the document itself is marked: no member is shown
}

func (w *redaction) object(ms markSet, obj map[string]any, depth int) map[string]any {
	out := make(map[string]any, len(obj))
	for name, v := range obj {
		out[name] = w.member(ms, name, v, depth)
	}
	return out
}

// member masks in the order protected, marked or named, pattern, inside.
func (w *redaction) member(ms markSet, name string, v any, depth int) any {
	if v == nil {
		return nil
	}
	var sub markSet
	if len(ms) > 0 {
		sub = ms.member(name)
	}
	if isProtected(name) {
		return w.inside(sub, v, depth+1, true)
	}
	if w.everything || sub.sensitive() || w.r.names.match(name) {
		return w.mask(v, depth+1)
	}
	return w.inside(sub, v, depth+1, false)
}

// inside walks a value that its own name does not hide; protected keeps a scalar
// from the patterns.
func (w *redaction) inside(ms markSet, v any, depth int, protected bool) any {
	if w.left--; w.left < 0 || depth > MaxDepth {
		return w.r.replacement
	}
	switch v := v.(type) {
	case nil, bool, int64, float64, uint64, int:
		return v
	case string:
		if !protected && w.matches(v) {
			return w.mask(v, depth)
		}
		return v
	case map[string]any:
		return w.object(ms, v, depth)
	case []any:
		out := make([]any, len(v))
		for i, e := range v {
			var sub markSet
			if len(ms) > 0 {
				sub = ms.item(i)
			}
			if e != nil && sub.sensitive() {
				out[i] = w.mask(e, depth+1)
				continue
			}
			out[i] = w.inside(sub, e, depth+1, false)
		}
		return out
	}
	n, err := Normalize(v)
	if err != nil {
		return w.r.replacement
	}
	return w.inside(ms, n, depth, protected)
}

func (w *redaction) matches(s string) bool {
	for _, re := range w.r.patterns {
		if re.MatchString(s) {
			return true
		}
	}
	return false
}

// mask replaces v and, when wanted, notes how it reads.
func (w *redaction) mask(v any, depth int) any {
	if w.secrets != nil {
		w.note(v, depth)
	}
	return w.r.replacement
}

func (w *redaction) note(v any, depth int) {
	if w.left--; w.left < 0 || depth > MaxDepth {
		return
	}
	switch v := v.(type) {
	case nil, bool:
	case string:
		w.secret(v)
		for _, q := range []string{strconv.Quote(v), string(appendString(nil, v))} {
			w.secret(q[1 : len(q)-1])
		}
	case int64:
		w.secret(strconv.FormatInt(v, 10))
	case uint64:
		w.secret(strconv.FormatUint(v, 10))
	case float64:
		w.secret(strconv.FormatFloat(v, 'g', -1, 64))
		w.secret(strconv.FormatFloat(v, 'f', -1, 64))
	case map[string]any:
		for _, e := range v {
			w.note(e, depth+1)
		}
	case []any:
		for _, e := range v {
			w.note(e, depth+1)
		}
	default:
		if n, err := Normalize(v); err == nil {
			w.note(n, depth+1)
		}
	}
}

func (w *redaction) secret(s string) {
	if len(s) >= minSecret {
		w.secrets[s] = true
	}
}

// isProtected names the fields that correlate records; they are never masked.
func isProtected(name string) bool {
	switch name {
	case "trace_id", "span_id", "caller_id", "module_id", "target_id":
		return true
	}
	return false
}
