package plan

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/apbus/apbus/schema"
)

// Redaction hides what is sensitive from the journal. What a schema marks as sensitive
// in one place is hidden in all places of a run: a value that a node was given may come
// from the plan's inputs or from another node, whose schemas do not know of it.
type Redaction struct {
	Redactor *schema.Redactor
	// Schemas are the schemas of a module, by which these inputs and its output are
	// redacted; with nil for inputs, any. Where they are not known, known is false, and
	// no value of the run is kept. It must be safe for concurrent use.
	Schemas func(moduleID string, inputs map[string]any) (input, output *schema.Compiled, known bool)
}

const (
	// shortSecret is the length under which a sensitive value is looked for as a word
	// of its own only.
	shortSecret = 4
	// maxSecrets is how many sensitive values of one run are looked for elsewhere; of a
	// run with more no values are kept.
	maxSecrets = 256
)

// hiding is the redaction of one run: copies of the plan's inputs and of the output of
// each step, from which more and more is taken out.
type hiding struct {
	h       *Redaction
	p       *Plan
	t       *Trace
	mask    string
	inputs  map[string]any // nil when nothing of it may be kept
	outputs []map[string]any
	secrets map[string]bool
	// long takes the secrets out of a text once all are known, short are those that it
	// leaves.
	long  *strings.Replacer
	short []string
}

// fill puts what may be kept of a run's values into its record.
func (h *Redaction) fill(r *RunRecord, p *Plan, t *Trace) {
	if h == nil || h.Redactor == nil || h.Schemas == nil || t.TooMuch {
		return
	}
	w := &hiding{h: h, p: p, t: t, mask: h.Redactor.Replacement(), outputs: make([]map[string]any, len(t.Steps)), secrets: map[string]bool{}}
	if !w.all() {
		return
	}
	budget := maxRunValues
	w.prepare()
	if kept, ok := w.keep(w.inputs, &budget); ok {
		r.Inputs, r.InputsLeftOut = kept, false
	}
	for i := range min(len(w.outputs), len(r.Steps)) {
		if kept, ok := w.keep(w.outputs[i], &budget); ok {
			r.Steps[i].Output, r.Steps[i].LeftOut = kept, false
		}
	}
	r.Mask = w.mask
}

// all takes out what is sensitive, false where that cannot be told.
func (w *hiding) all() bool {
	w.inputs = w.redact(nil, w.t.Inputs)
	for i, s := range w.t.Steps {
		in, out, known := w.h.Schemas(s.Tool, s.Inputs)
		if !known || strings.HasPrefix(s.Tool, IDPrefix) { // what the nodes of that plan hide is not known here
			return false
		}
		w.outputs[i] = w.redact(out, s.Output)
		w.given(s, in)
		if len(w.secrets) > maxSecrets {
			return false
		}
	}
	return true
}

// redact returns a copy without what a schema, a name or a pattern makes sensitive,
// and notes that.
func (w *hiding) redact(c *schema.Compiled, v map[string]any) map[string]any {
	if v == nil {
		return nil
	}
	shown := w.h.Redactor.Redact(c, v)
	w.note(v, shown)
	return shown
}

// given takes what a node's inputs hide out of where it came from.
func (w *hiding) given(s Step, in *schema.Compiled) {
	shown := w.redact(in, s.Inputs)
	bindings, bound := w.p.Bindings[s.Node]
	if !bound {
		if _, own := w.t.Inputs[s.Node].(map[string]any); own {
			w.hide(&w.inputs, []string{s.Node}, shown)
		} else {
			w.hide(&w.inputs, nil, shown)
		}
		return
	}
	for name, from := range bindings {
		path, ok := parsePath(from)
		v, there := shown[name]
		if !ok || !there {
			continue
		}
		if path[0] == stateInput {
			w.hide(&w.inputs, path[1:], v)
			continue
		}
		for i := range w.t.Steps {
			if o := &w.t.Steps[i]; o.Node == path[0] && o.Generation == s.Reads[path[0]] && o.Outcome == OutcomeOK {
				w.hide(&w.outputs[i], path[1:], v)
			}
		}
	}
}

// hide masks under path of a tree what is masked in shown, which is of the same value.
func (w *hiding) hide(tree *map[string]any, path []string, shown any) {
	if *tree == nil {
		return
	}
	if len(path) == 0 {
		*tree, _ = w.both(*tree, shown).(map[string]any)
		return
	}
	at := *tree
	for _, seg := range path[:len(path)-1] {
		next, ok := at[seg].(map[string]any)
		if !ok {
			return // masked above
		}
		at = next
	}
	last := path[len(path)-1]
	if v, there := at[last]; there {
		at[last] = w.both(v, shown)
	}
}

// both joins two redacted copies of one value: masked is what is masked in either.
func (w *hiding) both(a, b any) any {
	if a == w.mask || b == w.mask {
		return w.mask
	}
	switch a := a.(type) {
	case map[string]any:
		m, ok := b.(map[string]any)
		if !ok {
			return w.mask
		}
		for key, v := range a {
			a[key] = w.both(v, m[key])
		}
		return a
	case []any:
		l, ok := b.([]any)
		if !ok || len(l) != len(a) {
			return w.mask
		}
		for i, v := range a {
			a[i] = w.both(v, l[i])
		}
		return a
	}
	return a
}

// note collects the values that are in raw and not in shown.
func (w *hiding) note(raw, shown any) {
	switch x := raw.(type) {
	case map[string]any:
		s, _ := shown.(map[string]any)
		for key, v := range x {
			w.note(v, s[key])
		}
	case []any:
		s, _ := shown.([]any)
		for i, v := range x {
			if i < len(s) {
				w.note(v, s[i])
			} else {
				w.note(v, nil)
			}
		}
	case string:
		if x != shown && x != "" {
			w.secrets[x] = true
			if q := strconv.Quote(x); q[1:len(q)-1] != x {
				w.secrets[q[1:len(q)-1]] = true
			}
		}
	default:
		if text, ok := numberText(raw); ok && raw != shown {
			w.secrets[text] = true
		}
	}
}

func numberText(v any) (string, bool) {
	switch n := whole(v).(type) {
	case int64:
		return strconv.FormatInt(n, 10), true
	case uint64:
		return strconv.FormatUint(n, 10), true
	case float64:
		return strconv.FormatFloat(n, 'f', -1, 64), true
	}
	return "", false
}

// prepare sorts the secrets: where several begin at one place the longest is meant.
func (w *hiding) prepare() {
	var pairs []string
	for _, s := range slices.SortedFunc(maps.Keys(w.secrets), func(a, b string) int {
		return cmp.Or(cmp.Compare(len(b), len(a)), cmp.Compare(a, b))
	}) {
		if len(s) < shortSecret {
			w.short = append(w.short, s)
			continue
		}
		pairs = append(pairs, s, w.mask)
	}
	w.long = strings.NewReplacer(pairs...)
}

// keep is a redacted value without the sensitive values of the rest of the run, if it
// is small enough to be kept.
func (w *hiding) keep(v map[string]any, budget *int) (map[string]any, bool) {
	if v == nil {
		return nil, false
	}
	if roughSize(v, min(MaxRunValue, *budget)) < 0 {
		return nil, false
	}
	kept, _ := w.scrub(v).(map[string]any)
	*budget -= roughSize(kept, maxRunLooked)
	return kept, true
}

func (w *hiding) scrub(v any) any {
	switch x := v.(type) {
	case string:
		return w.scrubText(x)
	case map[string]any:
		out := make(map[string]any, len(x))
		for key, e := range x {
			out[w.scrubText(key)] = w.scrub(e)
		}
		return out
	case []any:
		out := make([]any, len(x))
		for i, e := range x {
			out[i] = w.scrub(e)
		}
		return out
	}
	if text, ok := numberText(v); ok && w.secrets[text] {
		return w.mask
	}
	return v
}

// scrubText takes secrets out of a text. One with a secret that is too short to be
// replaced without garbling the rest is masked as a whole.
func (w *hiding) scrubText(text string) string {
	if text == w.mask {
		return text
	}
	for _, s := range w.short {
		if hasWord(text, s) {
			return w.mask
		}
	}
	return w.long.Replace(text)
}

// hasWord reports whether word is in text with neither letter nor digit beside it.
func hasWord(text, word string) bool {
	for from := 0; ; {
		i := strings.Index(text[from:], word)
		if i < 0 {
			return false
		}
		at, end := from+i, from+i+len(word)
		before, _ := utf8.DecodeLastRuneInString(text[:at])
		after, _ := utf8.DecodeRuneInString(text[end:])
		if !wordRune(before) && !wordRune(after) {
			return true
		}
		from = end
	}
}

func wordRune(r rune) bool { return r != utf8.RuneError && (unicode.IsLetter(r) || unicode.IsDigit(r)) }

// roughSize is about how long the JSON form of v is, -1 as soon as that is more than
// most.
func roughSize(v any, most int) int {
	size := 8
	add := func(e any, more int) bool {
		n := roughSize(e, most-size-more)
		if n < 0 {
			return false
		}
		size += n + more
		return true
	}
	switch x := v.(type) {
	case string:
		size = len(x) + 2
	case map[string]any:
		size = 2
		for key, e := range x {
			if !add(e, len(key)+4) {
				return -1
			}
		}
	case []any:
		size = 2
		for _, e := range x {
			if !add(e, 1) {
				return -1
			}
		}
	}
	if size > most {
		return -1
	}
	return size
}
