package gateway

import (
	"net/http"
	"strings"
	"time"

	"github.com/apbus/apbus/module"
)

// Names of the request and response headers of calls.
const (
	headerCall          = "Apbus-Call"
	headerNode          = "Apbus-Node"
	headerTimeout       = "Apbus-Timeout"
	headerApproval      = "Apbus-Approval"
	headerTrace         = "Apbus-Trace"
	headerModuleVersion = "Apbus-Module-Version"
	headerIdempotency   = "Idempotency-Key"
	headerTraceParent   = "Traceparent"
	headerTraceState    = "Tracestate"
)

// Longest values, in bytes.
const (
	maxIdempotencyKey = 255
	maxVersionHint    = 128
	maxNodeID         = 64
	maxApprovalToken  = 8 << 10
	maxReason         = 1024
)

// callHeaders is what the headers of a call say.
type callHeaders struct {
	timeout        time.Duration // 0 is none
	traceParent    *module.TraceParent
	idempotencyKey string
	approval       string
	version        string
	node           string // the only one that may run it, "" for any
	trace          bool
	async          bool
}

func readCallHeaders(h http.Header) (c callHeaders, err error) {
	if c.timeout, err = timeoutOf(h); err != nil {
		return c, err
	}
	if c.idempotencyKey, err = textHeader(h, headerIdempotency, maxIdempotencyKey); err != nil {
		return c, err
	}
	if c.approval, err = textHeader(h, headerApproval, maxApprovalToken); err != nil {
		return c, err
	}
	if c.version, err = textHeader(h, headerModuleVersion, maxVersionHint); err != nil {
		return c, err
	}
	if c.node, err = textHeader(h, headerNode, maxNodeID); err != nil {
		return c, err
	}
	if c.trace, err = flagHeader(h, headerTrace); err != nil {
		return c, err
	}
	// As the W3C asks, an unusable traceparent starts a new trace.
	if len(h.Values(headerTraceParent)) == 1 {
		c.traceParent = module.ParseTraceParent(h.Get(headerTraceParent), strings.Join(h.Values(headerTraceState), ","))
	}
	if c.traceParent != nil && !module.ValidTraceID(c.traceParent.TraceID) {
		c.traceParent = nil
	}
	if c.async = prefers(h, "respond-async"); c.async && c.trace {
		return c, invalid("header %s does not go with respond-async: only the outcome of a detached call is kept", headerTrace)
	}
	return c, nil
}

// flagHeader reads a header that is 1 or 0.
func flagHeader(h http.Header, name string) (bool, error) {
	switch v, err := textHeader(h, name, 1); {
	case err != nil:
		return false, err
	case v == "1":
		return true, nil
	case v != "" && v != "0":
		return false, invalid("header %s is neither 1 nor 0", name)
	}
	return false, nil
}

// timeoutOf reads Apbus-Timeout, a Go duration such as 5s; 0 is no limit of the
// caller's own.
func timeoutOf(h http.Header) (time.Duration, error) {
	text, err := textHeader(h, headerTimeout, 64)
	if err != nil || text == "" {
		return 0, err
	}
	d, err := time.ParseDuration(text)
	switch {
	case err != nil:
		return 0, invalid("header %s is not a duration such as 5s", headerTimeout)
	case d < 0:
		return 0, invalid("header %s is negative", headerTimeout)
	}
	return d, nil
}

// textHeader reads a header that may be given once, of printable ASCII.
func textHeader(h http.Header, name string, longest int) (string, error) {
	values := h.Values(name)
	if len(values) == 0 {
		return "", nil
	}
	v := values[0]
	switch {
	case len(values) > 1:
		return "", invalid("header %s is given more than once", name)
	case len(v) > longest:
		return "", invalid("header %s is longer than %d bytes", name, longest)
	case !printable(v):
		return "", invalid("header %s holds something else than printable ASCII", name)
	}
	return v, nil
}

func printable(s string) bool {
	for i := range len(s) {
		if s[i] < 0x20 || s[i] > 0x7e {
			return false
		}
	}
	return true
}

// prefers reports whether a Prefer header (RFC 7240) holds the preference.
func prefers(h http.Header, preference string) bool {
	for _, line := range h.Values("Prefer") {
		for item := range strings.SplitSeq(line, ",") {
			name, _, _ := strings.Cut(item, ";")
			if strings.EqualFold(strings.TrimSpace(name), preference) {
				return true
			}
		}
	}
	return false
}
