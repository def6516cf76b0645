package contextwire

import (
	"crypto/sha256"
	"encoding/hex"
	"strconv"
	"strings"
)

// BodyRef points at a body in the object store (wire protocol, section 6).
type BodyRef struct {
	Name string
	Size int64
	// SHA256 is 64 lower-case hex digits.
	SHA256 string
}

// NewBodyRef describes body under name.
func NewBodyRef(name string, body []byte) *BodyRef {
	sum := sha256.Sum256(body)
	return &BodyRef{Name: name, Size: int64(len(body)), SHA256: hex.EncodeToString(sum[:])}
}

// String returns the header form, <name>;size=<n>;sha256=<hex>.
func (r *BodyRef) String() string {
	return r.Name + ";size=" + strconv.FormatInt(r.Size, 10) + ";sha256=" + r.SHA256
}

// ParseBodyRef reads the header form.
func ParseBodyRef(s string) (*BodyRef, bool) {
	name, rest, ok := strings.Cut(s, ";size=")
	if !ok || name == "" || len(name) > 256 || !isPrintable(name) || strings.ContainsAny(name, "; ") {
		return nil, false
	}
	size, digest, ok := strings.Cut(rest, ";sha256=")
	n, isNumber := parseDigits(size)
	if !ok || !isNumber || !isLowerHex(digest, 2*sha256.Size) {
		return nil, false
	}
	return &BodyRef{Name: name, Size: n, SHA256: digest}, true
}

// Check reports whether body is the one that r describes; BUS_BAD_MESSAGE when
// not.
func (r *BodyRef) Check(body []byte) error {
	if int64(len(body)) != r.Size {
		return refuse("body-ref", "stored body has another size than its reference says")
	}
	if sum := sha256.Sum256(body); hex.EncodeToString(sum[:]) != r.SHA256 {
		return refuse("body-ref", "stored body has another digest than its reference says")
	}
	return nil
}

func isLowerHex(s string, n int) bool {
	if len(s) != n {
		return false
	}
	for i := range len(s) {
		if c := s[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}

// isPrintable reports whether s is printable ASCII.
func isPrintable(s string) bool {
	for i := range len(s) {
		if s[i] < 0x20 || s[i] > 0x7e {
			return false
		}
	}
	return true
}
