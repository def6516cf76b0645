package loop

import (
	"strings"

	"github.com/apbus/apbus/module"
)

// savedQuery selects evidence: terms that must all hold, each a key and a list of
// values of which one must hold.
//
//	type=call,stream module=pay.* outcome=error,timeout code=MODULE_TIMEOUT
//
// Keys are type, module, caller, code, outcome and ns; a value may end in *.
type savedQuery []queryTerm

type queryTerm struct {
	key    string
	values []string
}

// parseQuery reads a saved query of at most [MaxQueryBodyLen] characters.
func parseQuery(body string) (savedQuery, error) {
	bad := func(why string) error { return module.Errorf(module.CodeLoopInvalid, "query: %s", why) }
	if chars(body) > MaxQueryBodyLen {
		return nil, bad("it is too long")
	}
	var q savedQuery
	for term := range strings.FieldsSeq(body) {
		key, list, ok := strings.Cut(term, "=")
		if !ok || list == "" {
			return nil, bad("a term is key=value")
		}
		switch key {
		case "type", "module", "caller", "code", "outcome", "ns":
		default:
			return nil, bad("unknown key")
		}
		values := strings.Split(list, ",")
		for _, v := range values {
			if !onlyOf(v, MaxTargetLen, "._:@/-*") || strings.Contains(strings.TrimSuffix(v, "*"), "*") {
				return nil, bad("a value cannot be used")
			}
		}
		q = append(q, queryTerm{key, values})
	}
	if len(q) == 0 {
		return nil, bad("it has no term")
	}
	return q, nil
}

// queryBodyAllowed refuses what could close a block or hides a destructive verb,
// whatever reads the text one day.
func queryBodyAllowed(body string) bool {
	if strings.ContainsAny(body, "{}") {
		return false
	}
	for _, token := range strings.FieldsFunc(body, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '_')
	}) {
		switch strings.ToUpper(token) {
		case "FORGET", "PURGE", "DROP", "DEFINE":
			return false
		}
	}
	return true
}

// matches reports whether a record of evidence is selected. No query selects all.
func (q savedQuery) matches(r *Record) bool {
	for _, t := range q {
		var value string
		switch t.key {
		case "type":
			value = string(r.Type)
		case "module":
			value = r.Evidence.ModuleID
		case "caller":
			value = r.Evidence.CallerID
		case "code":
			value = string(r.Evidence.Code)
		case "outcome":
			value = r.Evidence.Outcome
		case "ns":
			value = r.Namespace
		}
		if !t.holds(value) {
			return false
		}
	}
	return true
}

func (t queryTerm) holds(value string) bool {
	for _, v := range t.values {
		if prefix, open := strings.CutSuffix(v, "*"); open && strings.HasPrefix(value, prefix) || v == value {
			return true
		}
	}
	return false
}

// savedQuery is the live query that selects evidence for DISCOVER; nil, which
// selects all, when there is none or it cannot be read.
func (p *pass) savedQuery() savedQuery {
	for _, i := range p.items {
		if i.Live && i.Type == ItemQuery && i.Name == queryDiscover {
			if q, err := parseQuery(i.Text("body")); err == nil {
				return q
			}
		}
	}
	return nil
}
