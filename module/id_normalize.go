package module

import "strings"

// NormalizeID turns an ID written in the manner of a language into a module ID
// (algorithm A02): api.HTTPClient becomes api.http_client. Segments are separated
// by "::" where language is "rust" and by "." everywhere else. A segment with an
// upper-case ASCII letter gets an underscore where a word begins and goes to lower
// case; nothing else is touched, and nothing is repaired: a result that is no
// module ID is INVALID_MODULE_ID, with the result in details.normalized.
func NormalizeID(language, local string) (string, error) {
	separator := "."
	if language == "rust" {
		separator = "::"
	}
	segments := strings.Split(local, separator)
	for i, s := range segments {
		segments[i] = snakeCase(s)
	}
	id := strings.Join(segments, ".")
	if err := ValidateID(id); err != nil {
		return "", AsError(err).WithDetail("normalized", id)
	}
	return id, nil
}

// snakeCase marks the words of a segment with underscores: between a lower-case
// letter or digit and an upper-case one, and before the last letter of an acronym
// that a lower-case one follows. A segment without an upper-case letter stays as
// it is.
func snakeCase(s string) string {
	if !strings.ContainsFunc(s, func(r rune) bool { return r >= 'A' && r <= 'Z' }) {
		return s
	}
	var b strings.Builder
	for i := range len(s) {
		c := s[i]
		if isUpper(c) && i > 0 {
			prev := s[i-1]
			ends := i+1 < len(s) && isLower(s[i+1])
			if isLower(prev) || isDigit(prev) || (isUpper(prev) && ends) {
				b.WriteByte('_')
			}
		}
		if isUpper(c) {
			c += 'a' - 'A'
		}
		b.WriteByte(c)
	}
	return b.String()
}

func isUpper(c byte) bool { return c >= 'A' && c <= 'Z' }
func isLower(c byte) bool { return c >= 'a' && c <= 'z' }
func isDigit(c byte) bool { return c >= '0' && c <= '9' }
func isWord(c byte) bool  { return isUpper(c) || isLower(c) || isDigit(c) || c == '_' }
