package schema

import (
	"strings"
	"sync"
	"unicode"
)

const (
	// maxCachedNames and maxCachedName bound the memory of name decisions: names
	// can come from data.
	maxCachedNames = 4096
	maxCachedName  = 128
)

// nameMatcher decides by name. Decisions are remembered, since the same names
// come with every call.
type nameMatcher struct {
	globs      []string // lowercase A25 patterns
	substrings []string // lowercase, words joined by '_' or not at all

	mu    sync.RWMutex
	known map[string]bool
}

func newNameMatcher(keys []string) *nameMatcher {
	m := &nameMatcher{known: map[string]bool{}}
	for _, k := range keys {
		switch {
		case k == "":
		case strings.ContainsAny(k, "*?"):
			m.globs = append(m.globs, strings.ToLower(k))
		default:
			flat, split := normalizeName(k)
			m.substrings = append(m.substrings, flat)
			if split != flat {
				m.substrings = append(m.substrings, split)
			}
		}
	}
	return m
}

func (m *nameMatcher) match(name string) bool {
	if len(m.globs) == 0 && len(m.substrings) == 0 {
		return false
	}
	if len(name) > maxCachedName {
		return m.decide(name)
	}
	m.mu.RLock()
	hit, ok := m.known[name]
	m.mu.RUnlock()
	if ok {
		return hit
	}
	hit = m.decide(name)
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.known) >= maxCachedNames {
		clear(m.known)
	}
	m.known[strings.Clone(name)] = hit
	return hit
}

func (m *nameMatcher) decide(name string) bool {
	if len(m.globs) > 0 {
		lower := strings.ToLower(name)
		for _, g := range m.globs {
			if MatchGlob(g, lower) {
				return true
			}
		}
	}
	flat, split := normalizeName(name)
	for _, s := range m.substrings {
		if strings.Contains(flat, s) || strings.Contains(split, s) {
			return true
		}
	}
	return false
}

// normalizeName returns name in lower case with '-' and white space as '_', once
// as it is joined and once with camelCase words split: AccessKey gives accesskey
// and access_key.
func normalizeName(name string) (flat, split string) {
	var f, s strings.Builder
	runes := []rune(name)
	for i, r := range runes {
		if r == '-' || unicode.IsSpace(r) {
			r = '_'
		}
		if i > 0 && unicode.IsUpper(r) && runes[i-1] != '_' && runes[i-1] != '-' {
			prev := runes[i-1]
			startsWord := unicode.IsLower(prev) || unicode.IsDigit(prev)
			endsAcronym := unicode.IsUpper(prev) && i+1 < len(runes) && unicode.IsLower(runes[i+1])
			if startsWord || endsAcronym {
				s.WriteByte('_')
			}
		}
		r = unicode.ToLower(r)
		f.WriteRune(r)
		s.WriteRune(r)
	}
	return f.String(), s.String()
}
