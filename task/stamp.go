package task

import (
	"bytes"
	"fmt"
	"math"
	"strconv"
	"time"
)

// Stamp is a point in time in microseconds since the Unix epoch; zero is none. In
// JSON it is a number of seconds, or null for none (protocol §5.8).
type Stamp int64

// At returns the stamp of t, none for the zero time.
func At(t time.Time) Stamp {
	if t.IsZero() {
		return 0
	}
	return Stamp(t.UnixMicro())
}

// Time returns the time in UTC, the zero time for none.
func (s Stamp) Time() time.Time {
	if s == 0 {
		return time.Time{}
	}
	return time.UnixMicro(int64(s)).UTC()
}

// Add returns the stamp d later.
func (s Stamp) Add(d time.Duration) Stamp { return s + Stamp(d.Microseconds()) }

// Sub returns how much later s is than o.
func (s Stamp) Sub(o Stamp) time.Duration { return time.Duration(s-o) * time.Microsecond }

// MarshalJSON writes seconds with up to six decimals.
func (s Stamp) MarshalJSON() ([]byte, error) { return s.append(nil), nil }

func (s Stamp) append(b []byte) []byte {
	if s == 0 {
		return append(b, "null"...)
	}
	if s < 0 {
		b, s = append(b, '-'), -s
	}
	b = strconv.AppendInt(b, int64(s)/1e6, 10)
	if frac := int64(s) % 1e6; frac != 0 {
		digits := strconv.AppendInt(nil, frac+1e6, 10)[1:]
		return append(append(b, '.'), bytes.TrimRight(digits, "0")...)
	}
	return append(b, ".0"...)
}

// UnmarshalJSON reads seconds or null.
func (s *Stamp) UnmarshalJSON(b []byte) error {
	if string(b) == "null" {
		*s = 0
		return nil
	}
	f, err := strconv.ParseFloat(string(b), 64)
	if err != nil || math.IsNaN(f) || math.Abs(f) > 9e9 {
		return fmt.Errorf("a time must be a number of seconds")
	}
	*s = Stamp(math.Round(f * 1e6))
	return nil
}
