package bus

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/apbus/apbus/module"
)

// DefaultPrefix and DefaultNamespace are the first and fourth part of every
// subject unless configured otherwise.
const (
	DefaultPrefix    = "apbus"
	DefaultNamespace = "default"
)

// queueGroup is the one queue group name of every implementation; two names on
// one subject would run a call twice.
const queueGroup = "apbus"

// subjects builds the subjects of one namespace (wire protocol, section 1).
type subjects struct {
	base string // "apbus.v1."
	ns   string
}

func newSubjects(prefix, ns string) (subjects, error) {
	if prefix == "" {
		prefix = DefaultPrefix
	}
	if ns == "" {
		ns = DefaultNamespace
	}
	for token := range strings.SplitSeq(prefix, ".") {
		if !isToken(token, 64) {
			return subjects{}, fmt.Errorf("subject prefix %q: want dot-separated tokens of [a-z0-9_-]", prefix)
		}
	}
	if !isToken(ns, 32) {
		return subjects{}, fmt.Errorf("namespace %q: want 1 to 32 characters of [a-z0-9_-]", ns)
	}
	return subjects{base: prefix + ".v1.", ns: ns}, nil
}

// isToken reports whether s is one subject token of lower-case letters, digits,
// "_" and "-" with at most limit characters.
func isToken(s string, limit int) bool {
	if s == "" || len(s) > limit {
		return false
	}
	for i := range len(s) {
		c := s[i]
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '_' && c != '-' {
			return false
		}
	}
	return true
}

// ValidateNodeID reports whether id can name a node: 1 to 64 characters of
// [a-z0-9_-].
func ValidateNodeID(id string) error {
	if !isToken(id, 64) {
		return module.Errorf(module.CodeInvalidInput, "node id %q: want 1 to 64 characters of [a-z0-9_-]", id)
	}
	return nil
}

const (
	kindCall  = "call."
	kindCheck = "check."
)

// any is the subject that every host of the module listens to in the queue group.
func (s subjects) any(kind, moduleID string) string {
	return s.base + kind + s.ns + "._." + moduleID
}

// major is the same for one major version.
func (s subjects) major(kind string, major int, moduleID string) string {
	return s.base + kind + s.ns + "." + strconv.Itoa(major) + "." + moduleID
}

// directed is the subject that only one process listens to.
func (s subjects) directed(kind, node, boot, moduleID string) string {
	return s.base + kind + s.ns + ".@." + node + "." + boot + "." + moduleID
}

// cancelModule reaches every host of the module.
func (s subjects) cancelModule(moduleID string) string {
	return s.base + "cancel." + s.ns + "." + moduleID
}

// cancelAll reaches every process of the namespace.
func (s subjects) cancelAll() string { return s.base + "cancel." + s.ns + "._all" }

// node is a control subject of one process.
func (s subjects) node(node, boot, verb string) string {
	return s.base + "node." + s.ns + "." + node + "." + boot + "." + verb
}

// moduleOf returns what follows the tokens before it in a call or check
// subject: kind.ns._.<module>, kind.ns.<major>.<module> or
// kind.ns.@.<node>.<boot>.<module>.
func (s subjects) moduleOf(subject, kind string) string {
	rest, ok := strings.CutPrefix(subject, s.base+kind+s.ns+".")
	if !ok {
		return ""
	}
	target, rest, _ := strings.Cut(rest, ".")
	if target == "@" {
		_, rest, _ = strings.Cut(rest, ".")
		_, rest, _ = strings.Cut(rest, ".")
	}
	return rest
}

// reserved lists the subject spaces that no stream may capture, because the
// stream's acknowledgement would arrive as the first reply.
func (s subjects) reserved() []string {
	return []string{s.base + "call.>", s.base + "check.>", s.base + "cancel.>", s.base + "node.>"}
}

// subjectsOverlap reports whether some subject matches both patterns.
func subjectsOverlap(a, b string) bool {
	at, bt := strings.Split(a, "."), strings.Split(b, ".")
	for i := 0; ; i++ {
		switch {
		case i == len(at) || i == len(bt):
			return len(at) == len(bt)
		case at[i] == ">" || bt[i] == ">":
			return true
		case at[i] != bt[i] && at[i] != "*" && bt[i] != "*":
			return false
		}
	}
}
