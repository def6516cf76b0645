package contextwire

import (
	"math"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/apbus/apbus/module"
)

// decodeJSON reads body in two passes: jsonScan checks limits, jsonBuild the
// grammar while it builds the value.
func decodeJSON(body []byte, lim Limits) (any, error) {
	var few [32]uint32
	s := jsonScan{body: body, lim: lim, counts: few[:0]}
	if err := s.run(); err != nil {
		return nil, err
	}
	b := jsonBuild{body: body, counts: s.counts, texts: newTexts(body)}
	v := b.value()
	b.space()
	if b.err == nil && b.pos != len(body) {
		b.fail("trailing", "message goes on after its value")
	}
	if b.err != nil {
		return nil, b.err
	}
	return v, nil
}

// jsonBuild is the second pass. The first error sticks.
type jsonBuild struct {
	body   []byte
	pos    int
	counts []uint32
	texts  texts
	// scratch is where text with escapes is put together.
	scratch []byte
	err     *module.Error
}

func (b *jsonBuild) fail(limit, text string) {
	if b.err == nil {
		b.err = refuseAt(limit, b.pos, text)
	}
}

func (b *jsonBuild) syntax() {
	if b.pos >= len(b.body) {
		b.fail("truncated", "message ends inside a value")
	} else {
		b.fail("syntax", "body is not JSON")
	}
}

// space skips white space and returns the byte behind it, 0 at the end.
func (b *jsonBuild) space() byte {
	for b.pos < len(b.body) {
		switch c := b.body[b.pos]; c {
		case ' ', '\t', '\n', '\r':
			b.pos++
		default:
			return c
		}
	}
	return 0
}

// value reads the value at pos. The scan has bounded the depth of recursion.
func (b *jsonBuild) value() any {
	switch c := b.space(); c {
	case '{':
		return b.object()
	case '[':
		return b.list()
	case '"':
		return b.text(false)
	case 't':
		b.literal("true")
		return true
	case 'f':
		b.literal("false")
		return false
	case 'n':
		b.literal("null")
		return nil
	default:
		if c == '-' || isDigit(c) {
			return b.number()
		}
		b.syntax()
		return nil
	}
}

func (b *jsonBuild) literal(word string) {
	if end := b.pos + len(word); end <= len(b.body) && string(b.body[b.pos:end]) == word {
		b.pos = end
		return
	}
	b.fail("syntax", "body is not JSON")
}

// count takes the number of entries that the scan found for the container that
// opens now.
func (b *jsonBuild) count() int {
	n := b.counts[0]
	b.counts = b.counts[1:]
	return int(n)
}

func (b *jsonBuild) list() any {
	n := b.count()
	list := make([]any, 0, n)
	b.pos++
	if b.space() == ']' {
		b.pos++
		return list
	}
	for {
		v := b.value()
		if b.err != nil {
			return nil
		}
		list = append(list, v)
		switch b.space() {
		case ',':
			b.pos++
		case ']':
			b.pos++
			return list
		default:
			b.syntax()
			return nil
		}
	}
}

func (b *jsonBuild) object() any {
	n := b.count()
	m := make(map[string]any, n)
	b.pos++
	if b.space() == '}' {
		b.pos++
		return m
	}
	for i := 1; ; i++ {
		if b.space() != '"' {
			b.syntax()
			return nil
		}
		k := b.text(true)
		if b.err == nil && b.space() != ':' {
			b.syntax()
		}
		if b.err != nil {
			return nil
		}
		b.pos++
		v := b.value()
		if b.err != nil {
			return nil
		}
		if m[k] = v; len(m) != i {
			b.fail("duplicate-key", "map has a key twice")
			return nil
		}
		switch b.space() {
		case ',':
			b.pos++
		case '}':
			b.pos++
			return m
		default:
			b.syntax()
			return nil
		}
	}
}

// text reads the string at pos.
func (b *jsonBuild) text(key bool) string {
	start := b.pos + 1
	wide := false
	for i := start; i < len(b.body); i++ {
		c := b.body[i]
		switch {
		case c == '"':
			b.pos = i + 1
			if wide && !utf8.Valid(b.body[start:i]) {
				b.fail("utf-8", "text is not UTF-8")
				return ""
			}
			if key {
				return b.texts.key(start, i)
			}
			return b.texts.slice(start, i)
		case c == '\\':
			return b.escaped(start, i)
		case c < 0x20:
			b.pos = i
			b.fail("syntax", "text has a raw control character")
			return ""
		case c >= utf8.RuneSelf:
			wide = true
		}
	}
	b.pos = len(b.body)
	b.syntax()
	return ""
}

// escaped reads a string that begins at start and has its first backslash at i.
func (b *jsonBuild) escaped(start, i int) string {
	end := jsonStringEnd(b.body, i)
	if end < 0 {
		b.pos = len(b.body)
		b.syntax()
		return ""
	}
	// No escape is shorter than its rune, so out never grows.
	if cap(b.scratch) < end-start {
		b.scratch = make([]byte, 0, max(end-start, 2*cap(b.scratch)))
	}
	out := append(b.scratch[:0], b.body[start:i]...) //nolint:gocritic // scratch lends its room, which is enough
	for i < end {
		c := b.body[i]
		if c != '\\' {
			if c < 0x20 {
				b.pos = i
				b.fail("syntax", "text has a raw control character")
				return ""
			}
			out = append(out, c)
			i++
			continue
		}
		b.pos = i
		switch c = b.body[i+1]; c {
		case '"', '\\', '/':
		case 'b':
			c = '\b'
		case 'f':
			c = '\f'
		case 'n':
			c = '\n'
		case 'r':
			c = '\r'
		case 't':
			c = '\t'
		case 'u':
			r, n := jsonRune(b.body[i:end])
			if n == 0 {
				b.fail("syntax", "text has a malformed escape")
				return ""
			}
			if r == utf8.RuneError && n < 0 {
				b.fail("utf-8", "text has an unpaired surrogate")
				return ""
			}
			out = utf8.AppendRune(out, r)
			i += n
			continue
		default:
			b.fail("syntax", "text has a malformed escape")
			return ""
		}
		out = append(out, c)
		i += 2
	}
	b.pos = end + 1
	if !utf8.Valid(out) {
		b.fail("utf-8", "text is not UTF-8")
		return ""
	}
	return string(out)
}

// jsonRune reads the \u escape, or the pair of them, that b begins with. n is the
// length read, 0 when it is malformed and negative for an unpaired surrogate.
func jsonRune(b []byte) (r rune, n int) {
	r, ok := jsonHex(b)
	if !ok {
		return 0, 0
	}
	if !utf16.IsSurrogate(r) {
		return r, 6
	}
	low, ok := jsonHex(b[6:])
	if !ok {
		return utf8.RuneError, -1
	}
	if r = utf16.DecodeRune(r, low); r == utf8.RuneError {
		return r, -1
	}
	return r, 12
}

// jsonHex reads \uXXXX.
func jsonHex(b []byte) (rune, bool) {
	if len(b) < 6 || b[0] != '\\' || b[1] != 'u' {
		return 0, false
	}
	var r rune
	for _, c := range b[2:6] {
		switch {
		case isDigit(c):
			c -= '0'
		case c >= 'a' && c <= 'f':
			c -= 'a' - 10
		case c >= 'A' && c <= 'F':
			c -= 'A' - 10
		default:
			return 0, false
		}
		r = r<<4 | rune(c)
	}
	return r, true
}

func isDigit(c byte) bool { return c >= '0' && c <= '9' }

// digits skips decimal digits from i on.
func (b *jsonBuild) digits(i int) int {
	for i < len(b.body) && isDigit(b.body[i]) {
		i++
	}
	return i
}

// number reads the number at pos. An integer literal is an int64 or uint64 or
// refused; every other number is a float64.
func (b *jsonBuild) number() any {
	start, i := b.pos, b.pos
	if b.body[i] == '-' {
		i++
	}
	first := i
	i = b.digits(i)
	if i == first {
		b.pos = i
		b.syntax()
		return nil
	}
	if b.body[first] == '0' && i > first+1 {
		b.fail("syntax", "number has a leading zero")
		return nil
	}
	whole := true
	if i < len(b.body) && b.body[i] == '.' {
		whole = false
		from := i + 1
		if i = b.digits(from); i == from {
			b.pos = i
			b.syntax()
			return nil
		}
	}
	if i < len(b.body) && b.body[i]|0x20 == 'e' {
		whole = false
		i++
		if i < len(b.body) && (b.body[i] == '+' || b.body[i] == '-') {
			i++
		}
		from := i
		if i = b.digits(from); i == from {
			b.pos = i
			b.syntax()
			return nil
		}
	}
	b.pos = i
	if whole {
		return b.integer(b.body[start:i])
	}
	f, err := strconv.ParseFloat(string(b.body[start:i]), 64)
	if err != nil || math.IsInf(f, 0) {
		b.fail("number", "number does not fit 64 bits")
		return nil
	}
	return f
}

func (b *jsonBuild) integer(text []byte) any {
	if len(text) <= 18 {
		var n int64
		for _, c := range text {
			if c != '-' {
				n = n*10 + int64(c-'0')
			}
		}
		if text[0] == '-' {
			n = -n
		}
		return n
	}
	if len(text) <= 20 {
		if n, err := strconv.ParseInt(string(text), 10, 64); err == nil {
			return n
		}
		if n, err := strconv.ParseUint(string(text), 10, 64); err == nil {
			return n
		}
	}
	b.fail("number", "number does not fit 64 bits")
	return nil
}
