package module

import "strings"

// NameError says why a name has no canonical form.
type NameError string

// The reasons, in the order in which they are looked for.
const (
	NameNonASCII     NameError = "non_ascii"
	NameEmpty        NameError = "empty_name"
	NameInvalidStart NameError = "invalid_start"
	NameTooLong      NameError = "name_too_long"
)

// CanonicalName is what became of a foreign name. Exactly one of Canonical and
// Err is set.
type CanonicalName struct {
	// Original is the name as it was given.
	Original  string
	Canonical string
	Err       NameError
}

// Map returns the wire form, in which an absent value is null.
func (n CanonicalName) Map() map[string]any {
	return map[string]any{
		"original_name": n.Original, "canonical_name": nullable(n.Canonical), "error": nullable(string(n.Err)),
	}
}

// CanonicalizeName turns the name of a foreign tool, operation or command into
// one segment of a module ID: cat-file becomes cat_file (protocol §2.2.1). Unlike
// [NormalizeID] it repairs: dots, colons and whatever else is no letter, digit or
// underscore separate words within the one segment, and are dropped at the edges.
// Underscores stay as they are. Nothing is cut and no beginning is invented. The
// result may be a reserved word, and two names may have one result.
func CanonicalizeName(name string) CanonicalName {
	failed := func(why NameError) CanonicalName { return CanonicalName{Original: name, Err: why} }
	for i := range len(name) {
		if name[i] >= 0x80 {
			return failed(NameNonASCII)
		}
	}
	trimmed := strings.TrimFunc(name, func(r rune) bool { return !isWord(byte(r)) })
	canonical := joinWords(snakeCase(trimmed))
	switch {
	case canonical == "":
		return failed(NameEmpty)
	case !isLower(canonical[0]):
		return failed(NameInvalidStart)
	case len(canonical) > MaxIDLength:
		return failed(NameTooLong)
	}
	return CanonicalName{Original: name, Canonical: canonical}
}

// joinWords replaces each run of characters that a segment cannot hold by one
// underscore.
func joinWords(s string) string {
	var b strings.Builder
	inRun := false
	for i := range len(s) {
		switch {
		case isWord(s[i]):
			b.WriteByte(s[i])
			inRun = false
		case !inRun:
			b.WriteByte('_')
			inRun = true
		}
	}
	return b.String()
}

// SnakeCaseName names a class as a segment of a module ID where one file holds
// several: HTTPSender becomes http_sender. Everything that is no letter, digit or
// underscore becomes an underscore, runs of them become one, and none is left at
// the edges. The result may be empty or begin with a digit.
func SnakeCaseName(name string) string {
	var b strings.Builder
	for _, r := range snakeCase(name) {
		if r >= 0x80 || !isWord(byte(r)) || r == '_' {
			if b.Len() > 0 && !strings.HasSuffix(b.String(), "_") {
				b.WriteByte('_')
			}
			continue
		}
		b.WriteByte(byte(r))
	}
	return strings.TrimRight(b.String(), "_")
}
