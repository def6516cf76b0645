//go:build conformance

package conformance_test

import (
	"strconv"
	"strings"
)

// node is a value of a fixture that notes which of its parts were read.
type node struct {
	r     *run
	path  string
	v     any
	reads *reads
}

// reads are the paths that were read, whole ones with everything below them.
type reads struct{ seen, whole map[string]bool }

func (s *reads) note(path string, whole bool) {
	if s.seen == nil {
		s.seen, s.whole = make(map[string]bool), make(map[string]bool)
	}
	s.seen[path] = true
	if whole {
		s.whole[path] = true
	}
}

// prose are keys that explain a case to people.
func prose(key string) bool {
	switch key {
	case "description", "note", "notes", "comment", "scenario", "_why", "_note", "divergence_ref",
		"error_class_name_is_not_the_contract", "skip_when_legacy_key_is_null", "skip_if_unrepresentable":
		return true
	}
	return false
}

// unread names every member below v that nobody read.
func (s *reads) unread(path string, v any, name func(path string)) {
	if s.whole[path] {
		return
	}
	switch x := v.(type) {
	case map[string]any:
		for k, e := range x {
			p := path + "." + k
			if path == "" {
				p = k
			}
			switch {
			case prose(k):
			case !s.seen[p]:
				name(p)
			default:
				s.unread(p, e, name)
			}
		}
	case []any:
		for i, e := range x {
			s.unread(path+"["+strconv.Itoa(i)+"]", e, name)
		}
	}
}

func (n *node) object() map[string]any {
	m, ok := n.v.(map[string]any)
	if !ok {
		n.r.Fatalf("driver: %s is no object", n.path)
	}
	return m
}

func (n *node) child(key string) *node {
	p := n.path + "." + key
	if n.path == "" {
		p = key
	}
	n.reads.note(p, false)
	return &node{r: n.r, path: p, v: n.object()[key], reads: n.reads}
}

// has reports whether there is a member, without reading it.
func (n *node) has(key string) bool {
	_, ok := n.object()[key]
	return ok
}

// at reads a member that must be there.
func (n *node) at(key string) *node {
	if !n.has(key) {
		n.r.Fatalf("driver: %s has no %s", n.path, key)
	}
	return n.child(key)
}

// opt reads a member that may be absent, null then.
func (n *node) opt(key string) *node { return n.child(key) }

// keys lists the members that are no prose.
func (n *node) keys() []string {
	var keys []string
	for k := range n.object() {
		if !prose(k) {
			keys = append(keys, k)
		}
	}
	return keys
}

// raw is the value, all of it read.
func (n *node) raw() any {
	n.reads.note(n.path, true)
	return n.v
}

func (n *node) null() bool { return n.v == nil }

func (n *node) str() string {
	s, ok := n.v.(string)
	if !ok {
		n.r.Fatalf("driver: %s is no string", n.path)
	}
	return s
}

// text is a string, "" for null.
func (n *node) text() string {
	if n.null() {
		return ""
	}
	return n.str()
}

func (n *node) flag() bool {
	b, ok := n.v.(bool)
	if !ok && n.v != nil {
		n.r.Fatalf("driver: %s is no boolean", n.path)
	}
	return b
}

// must asserts that an expectation that only says true does so.
func (n *node) must(want bool) {
	if n.flag() != want {
		n.r.Fatalf("driver: %s is not %t; teach the driver", n.path, want)
	}
}

func (n *node) number() int {
	i, ok := n.v.(int64)
	if !ok {
		n.r.Fatalf("driver: %s is no integer", n.path)
	}
	return int(i)
}

func (n *node) list() []*node {
	if n.null() {
		return nil
	}
	l, ok := n.v.([]any)
	if !ok {
		n.r.Fatalf("driver: %s is no list", n.path)
	}
	out := make([]*node, len(l))
	for i, v := range l {
		p := n.path + "[" + strconv.Itoa(i) + "]"
		n.reads.note(p, false)
		out[i] = &node{r: n.r, path: p, v: v, reads: n.reads}
	}
	return out
}

// strs is a list of strings, or one string.
func (n *node) strs() []string {
	if s, ok := n.v.(string); ok {
		return []string{s}
	}
	out := []string{}
	for _, e := range n.list() {
		out = append(out, e.str())
	}
	return out
}

// fields is an object, all of it read; null gives nil.
func (n *node) fields() map[string]any {
	if n.null() {
		return nil
	}
	n.raw()
	return n.object()
}

func (n *node) contains(text string) {
	for _, want := range n.strs() {
		if !strings.Contains(text, want) {
			n.r.Errorf("%s: %q is not in %q", n.path, want, text)
		}
	}
}
