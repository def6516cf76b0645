package contextwire

import (
	"math"
	"strconv"
	"unicode/utf8"
)

// appendJSONString writes s quoted. Only what JSON demands is escaped. ok is
// false when s is not UTF-8.
func appendJSONString(dst []byte, s string) (out []byte, ok bool) {
	dst = append(dst, '"')
	start, wide := 0, false
	for i := range len(s) {
		c := s[i]
		if c >= utf8.RuneSelf {
			wide = true
			continue
		}
		if c >= 0x20 && c != '"' && c != '\\' {
			continue
		}
		dst = append(dst, s[start:i]...)
		start = i + 1
		switch c {
		case '"', '\\':
			dst = append(dst, '\\', c)
		case '\n':
			dst = append(dst, '\\', 'n')
		case '\r':
			dst = append(dst, '\\', 'r')
		case '\t':
			dst = append(dst, '\\', 't')
		default:
			const hex = "0123456789abcdef"
			dst = append(dst, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		}
	}
	dst = append(dst, s[start:]...)
	return append(dst, '"'), !wide || utf8.ValidString(s)
}

func appendJSONInt(dst []byte, n int64) []byte   { return strconv.AppendInt(dst, n, 10) }
func appendJSONUint(dst []byte, n uint64) []byte { return strconv.AppendUint(dst, n, 10) }

// appendJSONFloat writes the shortest form that reads back as the same float64,
// always with a fraction or an exponent, so that it does not become an integer.
func appendJSONFloat(dst []byte, f float64) []byte {
	start := len(dst)
	if a := math.Abs(f); a != 0 && (a < 1e-6 || a >= 1e21) {
		return strconv.AppendFloat(dst, f, 'e', -1, 64)
	}
	dst = strconv.AppendFloat(dst, f, 'f', -1, 64)
	for _, c := range dst[start:] {
		if c == '.' {
			return dst
		}
	}
	return append(dst, '.', '0')
}
