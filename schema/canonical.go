package schema

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"math"
	"slices"
	"strconv"
	"unicode/utf8"
)

// CanonicalJSON renders v so that equal JSON values have equal bytes: object
// keys sorted by code point, no whitespace, array order kept, raw UTF-8 with
// only the escapes JSON requires, integers exact to 64 bits, and floats that
// stay floats (1.0, not 1). A float is the shortest decimal that reads back
// to it, with an exponent below 1e-4 and from 1e16 on (1e-05, 1e+16). Invalid
// UTF-8 becomes U+FFFD. v need not be normalised; see [Normalize] for what has
// no JSON form. No value is quoted in the error.
func CanonicalJSON(v any) ([]byte, error) {
	c := canonical{left: maxValueNodes}
	return c.append(make([]byte, 0, 256), v, 0)
}

// ContentHash is the lowercase hex SHA-256 of [CanonicalJSON] of v, or "" when v
// has no JSON form. It identifies schemas and records by content.
func ContentHash(v any) string {
	raw, err := CanonicalJSON(v)
	if err != nil {
		return ""
	}
	sum := sha256.Sum256(raw)
	return hex.EncodeToString(sum[:])
}

type canonical struct{ left int }

func (c *canonical) append(b []byte, v any, depth int) ([]byte, error) {
	if depth > MaxDepth {
		return nil, errTooDeep
	}
	if c.left--; c.left < 0 {
		return nil, errTooLarge
	}
	var err error
	switch v := v.(type) {
	case nil:
		return append(b, "null"...), nil
	case bool:
		return strconv.AppendBool(b, v), nil
	case int64:
		return strconv.AppendInt(b, v, 10), nil
	case uint64:
		return strconv.AppendUint(b, v, 10), nil
	case float64:
		return appendFloat(b, v)
	case string:
		return appendString(b, v), nil
	case []any:
		b = append(b, '[')
		for i, e := range v {
			if i > 0 {
				b = append(b, ',')
			}
			if b, err = c.append(b, e, depth+1); err != nil {
				return nil, err
			}
		}
		return append(b, ']'), nil
	case map[string]any:
		keys := make([]string, 0, len(v))
		for k := range v {
			keys = append(keys, k)
		}
		slices.Sort(keys)
		b = append(b, '{')
		for i, k := range keys {
			if i > 0 {
				b = append(b, ',')
			}
			b = append(appendString(b, k), ':')
			if b, err = c.append(b, v[k], depth+1); err != nil {
				return nil, err
			}
		}
		return append(b, '}'), nil
	}
	n, err := Normalize(v)
	if err != nil {
		return nil, err
	}
	return c.append(b, n, depth+1)
}

func appendFloat(b []byte, f float64) ([]byte, error) {
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return nil, errors.New("a non-finite number has no JSON form")
	}
	if a := math.Abs(f); a != 0 && (a < 1e-4 || a >= 1e16) {
		return strconv.AppendFloat(b, f, 'e', -1, 64), nil
	}
	b = strconv.AppendFloat(b, f, 'f', -1, 64)
	if f == math.Trunc(f) {
		b = append(b, ".0"...)
	}
	return b, nil
}

func appendString(b []byte, s string) []byte {
	const hexDigits = "0123456789abcdef"
	b = append(b, '"')
	from := 0
	for i := 0; i < len(s); {
		ch := s[i]
		if ch >= utf8.RuneSelf {
			r, w := utf8.DecodeRuneInString(s[i:])
			if r == utf8.RuneError && w == 1 {
				b = append(append(b, s[from:i]...), "\uFFFD"...)
				from = i + 1
			}
			i += w
			continue
		}
		if ch >= ' ' && ch != '"' && ch != '\\' {
			i++
			continue
		}
		b = append(b, s[from:i]...)
		switch ch {
		case '"', '\\':
			b = append(b, '\\', ch)
		case '\b':
			b = append(b, `\b`...)
		case '\f':
			b = append(b, `\f`...)
		case '\n':
			b = append(b, `\n`...)
		case '\r':
			b = append(b, `\r`...)
		case '\t':
			b = append(b, `\t`...)
		default:
			b = append(b, `\u00`...)
			b = append(b, hexDigits[ch>>4], hexDigits[ch&0xf])
		}
		i++
		from = i
	}
	return append(append(b, s[from:]...), '"')
}
