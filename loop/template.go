package loop

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/module"
)

// evidenceTemplate is how DISCOVER is shown the evidence of one type, in the place of
// the built-in text: words, and $names that stand for parts of the record.
//
//	$outcome $code in $duration from $caller: $message
//
// Names are module, version, caller, outcome, code, duration, attempt, retries,
// message, by and text. An item template:<type> holds it, where type is one of those
// of evidence.
type evidenceTemplate struct{ parts []templatePart }

// templatePart is text, or the name of what stands there.
type templatePart struct{ text, name string }

// parseTemplate reads a template of at most [MaxEvidenceText] characters.
func parseTemplate(name, body string) (*evidenceTemplate, error) {
	bad := func(why string) error { return module.Errorf(module.CodeLoopInvalid, "template: %s", why) }
	switch {
	case !slices.Contains(EvidenceTypes(), Type(name)):
		return nil, bad("it is named as no type of evidence")
	case chars(body) > MaxEvidenceText:
		return nil, bad("it is too long")
	case !isClean(body):
		return nil, bad("it is not one line")
	}
	t := &evidenceTemplate{}
	text, rest, more := strings.Cut(body, "$")
	t.parts = append(t.parts, templatePart{text: text})
	named := false
	for more {
		end := strings.IndexFunc(rest, func(r rune) bool { return r < 'a' || r > 'z' })
		if end < 0 {
			end = len(rest)
		}
		name := rest[:end]
		if _, ok := templateValue(&Record{Evidence: &contextwire.Evidence{}}, name, false); !ok {
			return nil, bad("it names what no record has")
		}
		named = true
		t.parts = append(t.parts, templatePart{name: name})
		text, rest, more = strings.Cut(rest[end:], "$")
		t.parts = append(t.parts, templatePart{text: text})
	}
	if !named {
		return nil, bad("it shows nothing of the record")
	}
	return t, nil
}

// render is a record as the template shows it.
func (t *evidenceTemplate) render(r *Record, anonymous bool) string {
	var b strings.Builder
	for _, p := range t.parts {
		b.WriteString(p.text)
		if p.name != "" {
			value, _ := templateValue(r, p.name, anonymous)
			b.WriteString(value)
		}
	}
	return b.String()
}

// templateValue is the part of a record that a name stands for.
func templateValue(r *Record, name string, anonymous bool) (value string, known bool) {
	e := r.Evidence
	switch name {
	case "module":
		value = e.ModuleID
	case "version":
		value = e.Version
	case "caller":
		value = cmp.Or(e.CallerID, "@external")
	case "outcome":
		value = e.Outcome
	case "code":
		value = string(e.Code)
	case "duration":
		value = strconv.FormatInt(e.Duration.Milliseconds(), 10) + "ms"
	case "attempt":
		value = strconv.Itoa(cmp.Or(e.TaskAttempt, e.Attempt))
	case "retries":
		value = strconv.Itoa(e.Retries)
	case "message":
		value = e.Message
	case "by":
		if !anonymous {
			value = cmp.Or(e.By, e.Role)
		}
	case "text":
		value = e.Text
	default:
		return "", false
	}
	return value, true
}

// evidenceTemplates are the live templates by the type that they are for; one that
// cannot be read is as none.
func (p *pass) evidenceTemplates() map[Type]*evidenceTemplate {
	live := make(map[Type]*evidenceTemplate)
	for _, i := range p.items {
		if !i.Live || i.Type != ItemTemplate {
			continue
		}
		if t, err := parseTemplate(i.Name, i.Text("body")); err == nil {
			live[Type(i.Name)] = t
		}
	}
	return live
}
