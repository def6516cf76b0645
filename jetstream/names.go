package jetstream

import (
	"fmt"
	"strings"

	"github.com/apbus/apbus/module"
)

const (
	// DefaultPrefix is the first part of every subject.
	DefaultPrefix = "apbus"
	// DefaultNamespace is where work goes that names no other.
	DefaultNamespace = "default"
	// DefaultStream is the stream of the default namespace; that of another one has
	// _ and its name at the end.
	DefaultStream = "APBUS_TASKS"

	maxNamespace = 32
	// maxKey keeps a subject far below the server's limit for a protocol line.
	maxKey = 1024
)

// kinds are the first tokens of the keys of the log.
var kinds = [...]string{"task", "result", "schedule", "queue"}

// names makes the subjects of one namespace.
type names struct{ base string }

func newNames(prefix, namespace string) (names, error) {
	if prefix == "" {
		prefix = DefaultPrefix
	}
	if namespace == "" {
		namespace = DefaultNamespace
	}
	for token := range strings.SplitSeq(prefix, ".") {
		if token == "" || strings.ContainsAny(token, " \t\r\n*>") {
			return names{}, module.Errorf(module.CodeConfigInvalid, "subject prefix %q", prefix)
		}
	}
	if !validNamespace(namespace) {
		return names{}, module.Errorf(module.CodeConfigInvalid, "namespace %q: want 1 to %d of a-z, 0-9, _ and -", namespace, maxNamespace)
	}
	return names{prefix + ".v1.task." + namespace}, nil
}

func validNamespace(ns string) bool {
	if ns == "" || len(ns) > maxNamespace {
		return false
	}
	for _, c := range []byte(ns) {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '_' && c != '-' {
			return false
		}
	}
	return true
}

// streamName returns the name of a namespace's stream.
func streamName(namespace string) string {
	if namespace == "" || namespace == DefaultNamespace {
		return DefaultStream
	}
	return DefaultStream + "_" + namespace
}

// captured are the subjects of the stream.
func (n names) captured() []string {
	subjects := make([]string, 0, len(kinds)+1)
	for _, kind := range kinds {
		subjects = append(subjects, n.base+"."+kind+".>")
	}
	return append(subjects, n.lead())
}

// lead is where the leader is named.
func (n names) lead() string { return n.base + ".lead" }

// rpc is where the writer is asked.
func (n names) rpc(verb string) string { return n.base + ".rpc." + verb }

// writer is where a new writer says that it is there.
func (n names) writer() string { return n.base + ".evt.writer" }

// signal is where a process hears about the attempts it runs.
func (n names) signal(node, boot string) string { return n.base + ".sig." + node + "." + boot }

// entry returns the subject of a key.
func (n names) entry(key string) (string, error) {
	kind, rest, ok := strings.Cut(key, ".")
	if !ok || rest == "" || !isKind(kind) || len(key) > maxKey {
		return "", fmt.Errorf("key %.64q of the task log: want one of %s, a dot, and a name of at most %d bytes",
			key, strings.Join(kinds[:], ", "), maxKey)
	}
	return n.base + "." + kind + "." + escape(rest), nil
}

// key is the reverse of entry; ok is false for any other subject.
func (n names) key(subject string) (key string, ok bool) {
	key, ok = strings.CutPrefix(subject, n.base)
	if !ok || key == "" || key[0] != '.' {
		return "", false
	}
	key = key[1:]
	kind, rest, ok := strings.Cut(key, ".")
	if !ok || !isKind(kind) {
		return "", false
	}
	text, ok := unescape(rest)
	if !ok {
		return "", false
	}
	if text == rest { // as in every task
		return key, true
	}
	return kind + "." + text, true
}

func isKind(token string) bool {
	for _, kind := range kinds {
		if token == kind {
			return true
		}
	}
	return false
}

const hexDigits = "0123456789ABCDEF"

// plain reports whether a byte stands for itself in a subject.
func plain(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c == '-'
}

// escape writes any text as subject tokens, so that two texts never share a
// subject: letters, digits, _ and - as they are, a dot where it separates two
// tokens, everything else as = and two hex digits.
func escape(s string) string {
	simple := s != ""
	for i := 0; i < len(s) && simple; i++ {
		simple = plain(s[i]) || separates(s, i)
	}
	if simple {
		return s
	}
	var b strings.Builder
	for i := range len(s) {
		if c := s[i]; plain(c) || separates(s, i) {
			b.WriteByte(c)
		} else {
			b.WriteByte('=')
			b.WriteByte(hexDigits[c>>4])
			b.WriteByte(hexDigits[c&15])
		}
	}
	return b.String()
}

// separates reports whether a dot at i has a token on both sides.
func separates(s string, i int) bool {
	return s[i] == '.' && i > 0 && i < len(s)-1 && s[i-1] != '.'
}

// unescape takes only what escape writes, so that no two subjects are one key.
func unescape(s string) (string, bool) {
	if !strings.Contains(s, "=") {
		return s, escape(s) == s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] != '=' {
			b.WriteByte(s[i])
			continue
		}
		if i+2 >= len(s) {
			return "", false
		}
		high, low := strings.IndexByte(hexDigits, s[i+1]), strings.IndexByte(hexDigits, s[i+2])
		if high < 0 || low < 0 {
			return "", false
		}
		b.WriteByte(byte(high<<4 | low))
		i += 2
	}
	text := b.String()
	return text, escape(text) == s
}
