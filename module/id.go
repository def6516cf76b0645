package module

import (
	"strings"
	"unicode"
)

// MaxIDLength is the longest module ID, in characters (protocol §2.7).
const MaxIDLength = 192

// ValidateID reports whether id is a well-formed module ID: dot-separated
// segments of lower-case letters, digits and underscores, each starting with a
// letter, at most [MaxIDLength] characters. Reserved first segments are legal
// here, since calling system.* is (core-executor seed, Contract: Executor.call).
// The error has code INVALID_MODULE_ID.
func ValidateID(id string) error {
	switch {
	case id == "":
		return Errorf(CodeInvalidModuleID, "module id is empty")
	case len(id) > MaxIDLength:
		return Errorf(CodeInvalidModuleID, "module id has %d bytes, limit %d", len(id), MaxIDLength)
	case !wellFormedID(id):
		return Errorf(CodeInvalidModuleID, "module id %s is malformed: want dot-separated segments of [a-z][a-z0-9_]*", quoteID(id))
	}
	return nil
}

// wellFormedID matches ^[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)*$ by hand, because
// every call passes through it.
func wellFormedID(id string) bool {
	start := true
	for i := range len(id) {
		c := id[i]
		switch {
		case c >= 'a' && c <= 'z':
			start = false
		case c == '.':
			if start {
				return false
			}
			start = true
		case (c >= '0' && c <= '9') || c == '_':
			if start {
				return false
			}
		default:
			return false
		}
	}
	return !start
}

// quoteID quotes a hostile ID for an error message, shortened and without
// control characters.
func quoteID(id string) string {
	const limit = 64
	var b strings.Builder
	b.WriteByte('"')
	n := 0
	for _, r := range id {
		if n == limit {
			b.WriteString("…")
			break
		}
		if !unicode.IsPrint(r) || r == '"' {
			r = '·'
		}
		b.WriteRune(r)
		n++
	}
	b.WriteByte('"')
	return b.String()
}

// FirstSegment returns the part of id before its first dot.
func FirstSegment(id string) string {
	first, _, _ := strings.Cut(id, ".")
	return first
}

// IsReservedID reports whether the first segment of id is reserved, so that
// only internal registration may use it (protocol §2.5).
func IsReservedID(id string) bool {
	switch FirstSegment(id) {
	case "system", "internal", "core", "apcore", "plugin", "schema", "acl", "ephemeral",
		"class", "def", "import", "return", "if", "else", "for", "while", "true", "false", "null", "none":
		return true
	}
	return false
}
