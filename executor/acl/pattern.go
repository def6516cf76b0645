package acl

import (
	"strings"

	"github.com/apbus/apbus/schema"
)

// Tokens with a meaning of their own in pattern lists.
const (
	tokenOr  = "$or"
	tokenNot = "$not"
	// External stands for the null caller.
	External = "@external"
	// System matches callers whose identity is of type "system".
	System = "@system"
)

// patternFault says what is wrong with the shape of a pattern list, "" when it
// is well formed (protocol §6.2.1).
func patternFault(list []string) string {
	if len(list) == 0 {
		return "is empty"
	}
	for i, p := range list {
		if p == "" {
			return "has an empty pattern"
		}
		if i > 0 && (p == tokenOr || p == tokenNot) {
			return p + " may only stand first"
		}
	}
	switch {
	case list[0] == tokenOr && len(list) < 2:
		return "has $or without a pattern"
	case list[0] == tokenNot && len(list) != 2:
		return "needs exactly one pattern after $not"
	}
	return ""
}

// operands splits a well-formed list.
func operands(list []string) (patterns []string, negated bool) {
	switch list[0] {
	case tokenOr:
		return list[1:], false
	case tokenNot:
		return list[1:], true
	}
	return list, false
}

// neverMatches reports a well-formed list that matches no legal ID. It is judged
// on the whole list.
func neverMatches(list []string, targets bool) bool {
	patterns, negated := operands(list)
	for _, p := range patterns {
		switch {
		case negated:
			return strings.Trim(p, "*") == ""
		case !targets || p != External:
			return false
		}
	}
	return true
}

type patternKind uint8

const (
	kindAny patternKind = iota
	kindExact
	kindPrefix
	kindSuffix
	kindGlob
	kindExternal
	kindSystem
	kindNothing
)

// pattern is one pattern, classified so that the common ones cost a comparison.
type pattern struct {
	kind patternKind
	text string
}

func compilePattern(p string, targets bool) pattern {
	switch {
	case p == External && targets:
		return pattern{kind: kindNothing}
	case p == External:
		return pattern{kind: kindExternal}
	case p == System && !targets:
		return pattern{kind: kindSystem}
	case strings.Trim(p, "*") == "":
		return pattern{kind: kindAny}
	}
	switch stars := strings.Count(p, "*"); {
	case stars == 0:
		return pattern{kindExact, p}
	case stars == 1 && p[len(p)-1] == '*':
		return pattern{kindPrefix, p[:len(p)-1]}
	case stars == 1 && p[0] == '*':
		return pattern{kindSuffix, p[1:]}
	}
	return pattern{kindGlob, p}
}

func (p *pattern) matches(id string, q *Query) bool {
	switch p.kind {
	case kindAny:
		return true
	case kindExact:
		return p.text == id
	case kindPrefix:
		return strings.HasPrefix(id, p.text)
	case kindSuffix:
		return strings.HasSuffix(id, p.text)
	case kindGlob:
		return schema.MatchPattern(p.text, id)
	case kindExternal:
		return q.CallerID == ""
	case kindSystem:
		return q.Context != nil && q.Context.Identity() != nil && q.Context.Identity().Type() == "system"
	}
	return false
}

// patternSet is a compiled pattern list.
type patternSet struct {
	patterns []pattern
	negated  bool
}

func compilePatterns(list []string, targets bool) patternSet {
	texts, negated := operands(list)
	s := patternSet{patterns: make([]pattern, len(texts)), negated: negated}
	for i, p := range texts {
		s.patterns[i] = compilePattern(p, targets)
	}
	return s
}

func (s *patternSet) matches(id string, q *Query) bool {
	for i := range s.patterns {
		if s.patterns[i].matches(id, q) {
			return !s.negated
		}
	}
	return s.negated
}
