package schema

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// ecmaSpace is what \s means in ECMA-262, as the inside of an RE2 class.
const ecmaSpace = `\t\n\v\f\r \x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000}\x{feff}`

// compileRegexp reads an ECMA-262 pattern with RE2. The escapes RE2 spells
// otherwise are rewritten; look-around, back-references and repeat counts above
// 1000 stay errors.
func compileRegexp(pattern string) (jsonschema.Regexp, error) {
	re, err := regexp.Compile(translateRegexp(pattern))
	if err != nil {
		return nil, err
	}
	return ecmaRegexp{re, pattern}, nil
}

// ecmaRegexp shows the pattern as its author wrote it.
type ecmaRegexp struct {
	re     *regexp.Regexp
	source string
}

func (e ecmaRegexp) MatchString(s string) bool { return e.re.MatchString(s) }
func (e ecmaRegexp) String() string            { return e.source }

func translateRegexp(p string) string {
	if !strings.Contains(p, `\`) && !strings.Contains(p, "[") {
		return p
	}
	var b strings.Builder
	inClass := false
	for i := 0; i < len(p); i++ {
		switch c := p[i]; {
		case c == '\\' && i+1 < len(p):
			n := translateEscape(&b, p[i:], inClass)
			i += n - 1
		case c == '[' && !inClass:
			inClass = true
			switch {
			case strings.HasPrefix(p[i:], "[^]"): // any character
				b.WriteString(`[\x{0}-\x{10ffff}]`)
				inClass = false
				i += 2
			case strings.HasPrefix(p[i:], "[]"): // no character
				b.WriteString(`[^\x{0}-\x{10ffff}]`)
				inClass = false
				i++
			default:
				b.WriteByte(c)
			}
		case c == '[':
			b.WriteString(`\[`)
		case c == ']' && inClass:
			inClass = false
			b.WriteByte(c)
		default:
			b.WriteByte(c)
		}
	}
	return b.String()
}

// translateEscape writes the escape at the start of p and returns its length.
func translateEscape(b *strings.Builder, p string, inClass bool) int {
	switch p[1] {
	case 's':
		if inClass {
			b.WriteString(ecmaSpace)
		} else {
			b.WriteString("[" + ecmaSpace + "]")
		}
		return 2
	case 'S':
		if !inClass {
			b.WriteString("[^" + ecmaSpace + "]")
			return 2
		}
	case 'u':
		if len(p) >= 6 && isHex(p[2:6]) {
			b.WriteString(`\x{` + p[2:6] + `}`)
			return 6
		}
		if end := strings.IndexByte(p, '}'); strings.HasPrefix(p, `\u{`) && end > 3 && isHex(p[3:end]) {
			b.WriteString(`\x{` + p[3:end] + `}`)
			return end + 1
		}
	case 'c':
		if len(p) >= 3 && (p[2]|0x20) >= 'a' && (p[2]|0x20) <= 'z' {
			fmt.Fprintf(b, `\x%02x`, p[2]&0x1f)
			return 3
		}
	case '0':
		if len(p) == 2 || p[2] < '0' || p[2] > '9' {
			b.WriteString(`\x00`)
			return 2
		}
	case 'b':
		if inClass {
			b.WriteString(`\x08`)
			return 2
		}
	}
	b.WriteString(p[:2])
	return 2
}

func isHex(s string) bool {
	for i := range len(s) {
		if c := s[i]; !(c >= '0' && c <= '9') && !(c|0x20 >= 'a' && c|0x20 <= 'f') {
			return false
		}
	}
	return s != ""
}
