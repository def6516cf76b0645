package contextwire

import (
	"crypto/rand"
	"encoding/base64"
	"strconv"
	"strings"
)

// NewCallID returns a fresh call ID: 128 random bits as 22 characters. It does
// not begin with "-", so that a command line does not take it for a flag.
func NewCallID() string {
	var room [22]byte
	return string(AppendCallID(room[:0]))
}

// AppendCallID is [NewCallID] onto dst.
func AppendCallID(dst []byte) []byte {
	var raw [16]byte
	for {
		_, _ = rand.Read(raw[:]) // documented never to fail
		if id := base64.RawURLEncoding.AppendEncode(dst, raw[:]); id[len(dst)] != '-' {
			return id
		}
	}
}

// ValidCallID reports whether s is 16 to 64 of [A-Za-z0-9_-].
func ValidCallID(s string) bool { return len(s) >= 16 && len(s) <= 64 && isToken(s) }

// isToken reports whether s is made of [A-Za-z0-9_-].
func isToken(s string) bool {
	for i := range len(s) {
		c := s[i]
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '_' && c != '-' {
			return false
		}
	}
	return s != ""
}

// maxAttempt bounds apbus-attempt. Clients stop at 3; the rest is room.
const maxAttempt = 999

// FormatKey joins a call ID and an attempt to "call/attempt", as in ping and pong.
func FormatKey(call string, attempt int) string { return call + "/" + strconv.Itoa(attempt) }

// ParseKey reads what [FormatKey] wrote.
func ParseKey(s string) (call string, attempt int, ok bool) {
	call, rest, found := strings.Cut(s, "/")
	n, isNumber := parseDigits(rest)
	if !found || !isNumber || n < 1 || n > maxAttempt || !ValidCallID(call) {
		return "", 0, false
	}
	return call, int(n), true
}
