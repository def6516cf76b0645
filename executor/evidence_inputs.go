package executor

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// shortSecret is the length under which the redactor leaves a secret in a text, so
// as not to garble it. A record of evidence would rather be garbled.
const shortSecret = 4

// roughSize is about how long the JSON form of v is. It stops counting where limit
// is passed, so that a body of megabytes is not walked; fits tells which.
func roughSize(v any, limit, depth int) (size int, fits bool) {
	switch x := v.(type) {
	case string:
		size = len(x) + 2
	case map[string]any:
		size = 2
		for k, e := range x {
			n, ok := roughSize(e, limit-size, depth+1)
			if size += n + len(k) + 4; !ok || size > limit {
				return size, false
			}
		}
	case []any:
		size = 2
		for _, e := range x {
			n, ok := roughSize(e, limit-size, depth+1)
			if size += n + 1; !ok || size > limit {
				return size, false
			}
		}
	default:
		size = 8
	}
	return size, size <= limit
}

// scrubShort takes the sensitive values that are too short for the redactor out of
// a message: those that the redacted view shows otherwise than the inputs.
func scrubShort(message string, raw, redacted map[string]any) string {
	if redacted == nil {
		return message
	}
	for _, secret := range shortSecrets(nil, raw, redacted) {
		message = replaceWord(message, secret, "***")
	}
	return message
}

func shortSecrets(found []string, raw, shown any) []string {
	switch x := raw.(type) {
	case map[string]any:
		if s, ok := shown.(map[string]any); ok {
			for k, v := range x {
				found = shortSecrets(found, v, s[k])
			}
			return found
		}
		for _, v := range x {
			found = shortSecrets(found, v, nil)
		}
	case []any:
		s, _ := shown.([]any)
		for i, v := range x {
			var e any
			if i < len(s) {
				e = s[i]
			}
			found = shortSecrets(found, v, e)
		}
	case nil, bool:
	default:
		if text := fmt.Sprint(x); text != "" && len(text) < shortSecret && raw != shown {
			found = append(found, text)
		}
	}
	return found
}

// replaceWord replaces word where it stands for itself.
func replaceWord(text, word, by string) string {
	var out strings.Builder
	for from := 0; ; {
		i := strings.Index(text[from:], word)
		if i < 0 {
			out.WriteString(text[from:])
			return out.String()
		}
		at, end := from+i, from+i+len(word)
		before, _ := utf8.DecodeLastRuneInString(text[:at])
		after, _ := utf8.DecodeRuneInString(text[end:])
		out.WriteString(text[from:at])
		if letter(before) || letter(after) {
			out.WriteString(word)
		} else {
			out.WriteString(by)
		}
		from = end
	}
}

func letter(r rune) bool { return r != utf8.RuneError && (unicode.IsLetter(r) || unicode.IsDigit(r)) }
