package module

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
)

// TraceParent is a W3C trace context entry; the vendor state is part of it.
type TraceParent struct {
	Version  string // two hex digits, "00" when empty
	TraceID  string // 32 lower-case hex digits
	ParentID string // 16 lower-case hex digits
	Flags    string // two hex digits, "01" when empty
	State    []TraceState
}

// TraceState is one tracestate member. Order matters.
type TraceState struct{ Key, Value string }

// maxTraceState is how many tracestate members are kept (W3C trace context §3.3).
const maxTraceState = 32

// NewTraceID returns a fresh 32-digit lower-case hex trace ID.
func NewTraceID() string { return randomHex(16) }

// NewSpanID returns a fresh 16-digit lower-case hex ID.
func NewSpanID() string { return randomHex(8) }

// randomHex returns n random bytes, 16 at most. Trace and span IDs are to be unlike
// each other and no secret: nobody may do anything because they know one. Every call
// needs one, and the generator of the system takes five times as long.
func randomHex(n int) string {
	var raw [16]byte
	binary.NativeEndian.PutUint64(raw[:8], rand.Uint64())
	binary.NativeEndian.PutUint64(raw[8:], rand.Uint64())
	var text [32]byte
	return string(text[:hex.Encode(text[:], raw[:n])])
}

// ValidTraceID reports whether id is 32 lower-case hex digits and neither all
// zero nor all f (protocol §10.5).
func ValidTraceID(id string) bool {
	return isHex(id, 32) && strings.Trim(id, "0") != "" && strings.Trim(id, "f") != ""
}

func isHex(s string, n int) bool {
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

// TraceParentFromHeaders finds the traceparent and tracestate headers, whatever
// the case of their names, and reads them as [ParseTraceParent] does. Several
// tracestate headers are one list; several traceparent headers are none.
func TraceParentFromHeaders(headers map[string][]string) *TraceParent {
	var parents, states []string
	for _, name := range slices.Sorted(maps.Keys(headers)) {
		switch {
		case strings.EqualFold(name, "traceparent"):
			parents = append(parents, headers[name]...)
		case strings.EqualFold(name, "tracestate"):
			states = append(states, headers[name]...)
		}
	}
	if len(parents) != 1 {
		return nil
	}
	return ParseTraceParent(parents[0], strings.Join(states, ","))
}

// WithParentID returns a copy under another parent span. An id that is not 16
// lower-case hex digits is INVALID_PARENT_ID.
func (tp *TraceParent) WithParentID(id string) (*TraceParent, error) {
	if !isHex(id, 16) {
		return nil, Errorf(CodeInvalidParentID, "parent id is not 16 lower-case hex digits")
	}
	c := *tp
	c.ParentID, c.State = id, slices.Clone(tp.State)
	return &c, nil
}

// ParseTraceParent reads the traceparent and tracestate headers. It returns nil
// when traceparent is absent or not usable. Of tracestate the first 32 members
// count, in order; one without "=" or with anything but printable ASCII is dropped.
func ParseTraceParent(traceparent, tracestate string) *TraceParent {
	version, rest, _ := strings.Cut(strings.TrimSpace(traceparent), "-")
	trace, rest, _ := strings.Cut(rest, "-")
	parent, rest, _ := strings.Cut(rest, "-")
	flags, _, more := strings.Cut(rest, "-")
	if !isHex(version, 2) || version == "ff" || (version == "00" && more) {
		return nil
	}
	if !isHex(trace, 32) || strings.Trim(trace, "0") == "" ||
		!isHex(parent, 16) || strings.Trim(parent, "0") == "" || !isHex(flags, 2) {
		return nil
	}
	tp := &TraceParent{Version: version, TraceID: trace, ParentID: parent, Flags: flags}
	for member := range strings.SplitSeq(tracestate, ",") {
		key, value, ok := strings.Cut(strings.TrimSpace(member), "=")
		if !ok || key == "" || !printable(key) || !printable(value) {
			continue
		}
		tp.State = append(tp.State, TraceState{key, value})
		if len(tp.State) == maxTraceState {
			break
		}
	}
	return tp
}

func printable(s string) bool {
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' {
			return false
		}
	}
	return true
}

// Header renders the traceparent header.
func (tp *TraceParent) Header() string {
	version, flags := tp.Version, tp.Flags
	if version == "" {
		version = "00"
	}
	if flags == "" {
		flags = "01"
	}
	return version + "-" + tp.TraceID + "-" + tp.ParentID + "-" + flags
}

// StateHeader renders the tracestate header, at most 32 members of it; "" when
// there is none.
func (tp *TraceParent) StateHeader() string {
	var b strings.Builder
	for i, m := range tp.State[:min(len(tp.State), maxTraceState)] {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, "%s=%s", m.Key, m.Value)
	}
	return b.String()
}
