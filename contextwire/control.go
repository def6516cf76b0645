package contextwire

import (
	"strings"
	"time"

	"github.com/apbus/apbus/module"
)

// Bounds of control messages and catalogue records, beside [Limits].
const (
	maxListLength   = 100_000
	maxStringLength = 4 << 10
)

// timeLayout is RFC 3339 in UTC with milliseconds.
const timeLayout = "2006-01-02T15:04:05.000Z07:00"

// ControlMessage is a message of section 9 or a catalogue record of section 11
// of the wire protocol.
type ControlMessage interface {
	// Map returns the wire form.
	Map() map[string]any
}

// EncodeControl writes the body of a control message; JSON is customary. The
// answer to a control request travels as a [Frame] whose Body is the answer's Map.
func EncodeControl(v ControlMessage, ct ContentType) ([]byte, error) { return Encode(ct, v.Map()) }

// record reads the fields of a decoded map. The first wrong shape sticks in err;
// later reads give zero values. Unknown keys are never looked at.
type record struct {
	what string
	m    map[string]any
	err  error
}

// readRecord decodes body; an empty one is an empty map.
func readRecord(what string, body []byte, ct ContentType, lim Limits) (*record, error) {
	if len(body) == 0 {
		return &record{what: what}, nil
	}
	m, err := DecodeMap(ct, body, lim)
	if err != nil {
		return nil, err
	}
	return &record{what: what, m: m}, nil
}

func (r *record) fail(key, text string) {
	if r.err == nil {
		r.err = refuse("shape", r.what+": "+key+" "+text)
	}
}

func (r *record) text(key string) string {
	switch v := r.m[key].(type) {
	case nil:
	case string:
		if len(v) <= maxStringLength {
			return v
		}
		r.fail(key, "is too long")
	default:
		r.fail(key, "is not a string")
	}
	return ""
}

// need is text for a key that must be there.
func (r *record) need(key string) string {
	s := r.text(key)
	if s == "" {
		r.fail(key, "is missing")
	}
	return s
}

// integer reads a number from low to high; where 0 is among them it may be absent.
func (r *record) integer(key string, low, high int64) int64 {
	switch v := r.m[key].(type) {
	case nil:
		if low > 0 {
			r.fail(key, "is missing")
		}
		return 0
	case int64:
		if v >= low && v <= high {
			return v
		}
		r.fail(key, "is out of range")
	case uint64:
		r.fail(key, "is out of range")
	default:
		r.fail(key, "is not an integer")
	}
	return 0
}

// count is an integer from 0.
func (r *record) count(key string) int { return int(r.integer(key, 0, 1<<31-1)) }

func (r *record) boolean(key string) bool {
	switch v := r.m[key].(type) {
	case nil:
	case bool:
		return v
	default:
		r.fail(key, "is not a boolean")
	}
	return false
}

func (r *record) time(key string) time.Time {
	s := r.text(key)
	if s == "" {
		return time.Time{}
	}
	at, err := time.Parse(time.RFC3339Nano, s)
	if err != nil || at.Year() < 0 || at.UTC().Year() < 0 || at.UTC().Year() > 9999 {
		r.fail(key, "is not an RFC 3339 time")
		return time.Time{}
	}
	return at.UTC()
}

func (r *record) list(key string) []any {
	switch v := r.m[key].(type) {
	case nil:
	case []any:
		if len(v) <= maxListLength {
			return v
		}
		r.fail(key, "has too many items")
	default:
		r.fail(key, "is not a list")
	}
	return nil
}

func (r *record) texts(key string) []string {
	list := r.list(key)
	if len(list) == 0 {
		return nil
	}
	out := make([]string, 0, len(list))
	for _, item := range list {
		s, ok := item.(string)
		if !ok || len(s) > maxStringLength {
			r.fail(key, "has an item that is not a string or too long")
			return nil
		}
		out = append(out, s)
	}
	return out
}

// records calls read for each item of the list under key, which must be a map.
func (r *record) records(key string, read func(*record)) {
	for _, item := range r.list(key) {
		m, ok := item.(map[string]any)
		if !ok {
			r.fail(key, "has an item that is not a map")
			return
		}
		sub := &record{what: r.what + " " + key, m: m}
		if read(sub); sub.err != nil {
			if r.err == nil {
				r.err = sub.err
			}
			return
		}
	}
}

// callID reads an optional call ID.
func (r *record) callID(key string) string {
	s := r.text(key)
	if s != "" && !ValidCallID(s) {
		r.fail(key, "is not a call id")
		return ""
	}
	return s
}

// done returns v unless a field was refused.
func done[T any](r *record, v *T) (*T, error) {
	if r.err != nil {
		return nil, r.err
	}
	return v, nil
}

// The helpers below write sparse maps: what has no value is left out.

func putText(m map[string]any, key, value string) {
	if value != "" {
		m[key] = value
	}
}

// clip makes free text fit, so that a long reason cannot stop a cancel notice.
func clip(s string) string {
	if len(s) > maxStringLength {
		s = s[:maxStringLength]
	}
	return strings.ToValidUTF8(s, "")
}

func putInt(m map[string]any, key string, value int64) {
	if value != 0 {
		m[key] = value
	}
}

func putTime(m map[string]any, key string, at time.Time) {
	if !at.IsZero() {
		m[key] = at.UTC().Format(timeLayout)
	}
}

func listOf(texts []string) []any {
	out := make([]any, len(texts))
	for i, s := range texts {
		out[i] = s
	}
	return out
}

// bad is a refusal that is not about one field.
func bad(text string) *module.Error { return refuse("shape", text) }
