package loop

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// Cap cuts s to at most limit characters (not bytes), never inside one.
func Cap(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	n := 0
	for i := range s {
		if n == limit {
			return s[:i]
		}
		n++
	}
	return s
}

// chars counts the characters of s.
func chars(s string) int { return utf8.RuneCountInString(s) }

// clean makes s one line that shows what it holds: control characters, line and
// paragraph separators become spaces, format characters (zero width, bidirectional
// overrides, tags) vanish, invalid UTF-8 becomes U+FFFD, ends are trimmed.
func clean(s string) string {
	plain := true
	for i := range len(s) {
		if c := s[i]; c < ' ' || c >= 0x7f {
			plain = false
			break
		}
	}
	if plain {
		return strings.TrimSpace(s)
	}
	return strings.TrimSpace(strings.Map(func(r rune) rune {
		switch {
		case unicode.Is(unicode.Cf, r), unicode.Is(unicode.Variation_Selector, r):
			return -1
		case unicode.IsControl(r), unicode.Is(unicode.Zl, r), unicode.Is(unicode.Zp, r):
			return ' '
		}
		return r
	}, s))
}

// cleanText is [clean] for text of several lines, whose line ends and tabs stay.
func cleanText(s string) string {
	s = strings.ReplaceAll(s, "\r\n", "\n")
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n', r == '\t':
			return r
		case unicode.Is(unicode.Cf, r), unicode.IsControl(r):
			return -1
		}
		return r
	}, strings.ToValidUTF8(s, "\uFFFD"))
}

// isClean reports whether s has nothing that [clean] would change but its ends.
func isClean(s string) bool {
	for _, r := range s {
		if r == utf8.RuneError || unicode.IsControl(r) || unicode.Is(unicode.Cf, r) ||
			unicode.Is(unicode.Zl, r) || unicode.Is(unicode.Zp, r) {
			return false
		}
	}
	return true
}

// onlyOf reports whether s is 1 to limit characters, each a letter or digit of
// ASCII or in extra.
func onlyOf(s string, limit int, extra string) bool {
	if s == "" || len(s) > limit {
		return false
	}
	for i := range len(s) {
		c := s[i]
		letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		if !letter && strings.IndexByte(extra, c) < 0 {
			return false
		}
	}
	return true
}

// isHex reports whether s is lower-case hexadecimal.
func isHex(s string) bool {
	for i := range len(s) {
		if c := s[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return s != ""
}

// words are the distinct lower-case runs of letters and digits in s.
func words(s string) map[string]bool {
	set := make(map[string]bool)
	for _, w := range strings.FieldsFunc(strings.ToLower(s), func(r rune) bool {
		return !unicode.IsLetter(r) && !unicode.IsDigit(r)
	}) {
		set[w] = true
	}
	return set
}

// folded is s in lower case with every run of other characters than letters and
// digits as one space: what fingerprints are taken of, so that punctuation does
// not make a new proposal.
func folded(s string) string {
	return strings.Join(strings.FieldsFunc(strings.ToLower(s), func(r rune) bool {
		return !unicode.IsLetter(r) && !unicode.IsDigit(r)
	}), " ")
}

// jaccard is the share of words that two texts have in common, 0 to 1.
func jaccard(a, b map[string]bool) float64 {
	if len(a) == 0 || len(b) == 0 {
		return 0
	}
	both := 0
	for w := range a {
		if b[w] {
			both++
		}
	}
	return float64(both) / float64(len(a)+len(b)-both)
}
