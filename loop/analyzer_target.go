package loop

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

const (
	maxTargetName = 200
	// maxDrafts bounds what one analyzer gives in one pass; the most severe come first.
	maxDrafts = 100
	// maxListed bounds the names in one argument of a summary.
	maxListed = 10
)

// targetName makes a name fit for a target, whatever it was: [A-Za-z0-9._@:/-], at
// most 200 bytes.
func targetName(s string) string {
	if onlyOf(s, maxTargetName, "._@:/-") {
		return s
	}
	b := []byte(s)
	for i, c := range b {
		if !onlyOf(string(rune(c)), 1, "._@:/-") {
			b[i] = '_'
		}
	}
	if len(b) == 0 {
		return "_"
	}
	return string(b[:min(len(b), maxTargetName)])
}

// shown makes a text fit for an argument of a summary.
func shown(s string) string { return Cap(clean(s), 120) }

// listed makes a list of names fit for an argument; what is too much is counted.
func listed(names []string) []string {
	out := make([]string, 0, min(len(names), maxListed+1))
	for _, n := range names[:min(len(names), maxListed)] {
		out = append(out, shown(n))
	}
	if more := len(names) - maxListed; more > 0 {
		out = append(out, fmt.Sprintf("and %d more", more))
	}
	return out
}

// percent is a share in whole percent.
func percent(share float64) int64 { return int64(share*100 + 0.5) }

// millis is a number of milliseconds as people read it.
func millis(ms float64) string {
	return (time.Duration(ms * float64(time.Millisecond))).Round(time.Millisecond).String()
}

// queryOf tells how evidence of one kind is found with GET /v1/evidence.
func queryOf(types, moduleID, code string, w window) string {
	q := "type=" + types
	if moduleID != "" {
		q += "&module=" + targetName(moduleID)
	}
	if code != "" {
		q += "&code=" + targetName(code)
	}
	return q + "&since=" + time.UnixMilli(w.from).UTC().Format(time.RFC3339)
}

// ordered sorts drafts by severity, then target and template, and cuts what is too
// much.
func ordered(drafts []Draft) []Draft {
	slices.SortStableFunc(drafts, func(a, b Draft) int {
		if d := b.Severity.Rank() - a.Severity.Rank(); d != 0 {
			return d
		}
		if d := strings.Compare(a.Target, b.Target); d != 0 {
			return d
		}
		return strings.Compare(a.Summary.TemplateID, b.Summary.TemplateID)
	})
	return drafts[:min(len(drafts), maxDrafts)]
}

// Render fills the arguments into a template: {name} stands for an argument, lists
// are joined by commas. An argument that is missing reads {name?}; it never fails.
func (s Summary) Render(template string) string {
	var b strings.Builder
	for {
		before, rest, ok := strings.Cut(template, "{")
		b.WriteString(before)
		if !ok {
			return b.String()
		}
		name, after, closed := strings.Cut(rest, "}")
		if !closed {
			b.WriteString("{" + rest)
			return b.String()
		}
		template = after
		switch v := s.Args[name].(type) {
		case nil:
			b.WriteString("{" + name + "?}")
		case []string:
			b.WriteString(strings.Join(v, ", "))
		case []any:
			for i, e := range v {
				if i > 0 {
					b.WriteString(", ")
				}
				fmt.Fprint(&b, e)
			}
		default:
			fmt.Fprint(&b, v)
		}
	}
}

// BuiltinTemplates are the templates of all [Builtin] analyzers by ID.
func BuiltinTemplates() map[string]string {
	all := map[string]string{}
	for _, a := range Builtin() {
		for id, text := range a.Manifest().Templates {
			all[id] = text
		}
	}
	return all
}
