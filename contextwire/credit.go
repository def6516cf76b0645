package contextwire

import (
	"strconv"
	"strings"
)

// Credit is a stream window or a grant: cumulative totals of data frames and of
// their body bytes since the stream began.
type Credit struct {
	Frames, Bytes int64
}

// DefaultCredit is the window of a stream whose request names none.
const (
	DefaultCreditFrames = 64
	DefaultCreditBytes  = 1 << 20
)

// DefaultCredit returns the window 64/1048576.
func DefaultCredit() Credit { return Credit{DefaultCreditFrames, DefaultCreditBytes} }

// String returns the header form, <frames>/<bytes>.
func (c Credit) String() string {
	return strconv.FormatInt(c.Frames, 10) + "/" + strconv.FormatInt(c.Bytes, 10)
}

// ParseCredit reads the header form. Both numbers are at least 1.
func ParseCredit(s string) (Credit, bool) {
	frames, bytes, ok := strings.Cut(s, "/")
	if !ok {
		return Credit{}, false
	}
	f, ok1 := parseDigits(frames)
	b, ok2 := parseDigits(bytes)
	if !ok1 || !ok2 || f < 1 || b < 1 {
		return Credit{}, false
	}
	return Credit{f, b}, true
}

// parseDigits reads decimal digits and nothing else, so that "+1" and "1_0" are
// refused.
func parseDigits(s string) (int64, bool) {
	if s == "" || len(s) > 19 {
		return 0, false
	}
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return 0, false
		}
	}
	n, err := strconv.ParseInt(s, 10, 64)
	return n, err == nil
}

// EncodeCredit makes the headers of a grant, which has no body.
func EncodeCredit(c Credit) Header { return Header{HeaderCredit: {c.String()}} }

// DecodeCredit reads a grant.
func DecodeCredit(h Header) (Credit, error) {
	c, ok := ParseCredit(h.Get(HeaderCredit))
	if !ok {
		return Credit{}, refuse("credit", "credit grant is malformed")
	}
	return c, nil
}
