package contextwire

import (
	"maps"
	"strings"

	"github.com/apbus/apbus/module"
)

// Header is a message's header block; it converts to and from nats.Header.
// Names are written in lower case and compared without case, unknown names are
// ignored, and of several values the first counts.
type Header map[string][]string

// Header names (wire protocol, sections 2, 4, 6 and 8).
const (
	HeaderVersion       = "apbus-version"
	HeaderCall          = "apbus-call"
	HeaderAttempt       = "apbus-attempt"
	HeaderRoot          = "apbus-root"
	HeaderParent        = "apbus-parent"
	HeaderBudget        = "apbus-budget-ms"
	HeaderMode          = "apbus-mode"
	HeaderCredit        = "apbus-credit"
	HeaderModuleVersion = "apbus-module-version"
	HeaderTrace         = "apbus-trace"
	HeaderIdempotency   = "apbus-idempotency"
	HeaderBodyRef       = "apbus-body-ref"
	HeaderPassport      = "apbus-passport"
	HeaderAuth          = "apbus-auth"

	HeaderFrame      = "apbus-frame"
	HeaderNode       = "apbus-node"
	HeaderSeq        = "apbus-seq"
	HeaderCreditTo   = "apbus-credit-to"
	HeaderGrace      = "apbus-grace-ms"
	HeaderError      = "apbus-error"
	HeaderUnexecuted = "apbus-unexecuted"
	HeaderRetryAfter = "retry-after-ms"

	// The two headers of NATS micro services keep their customary spelling.
	HeaderServiceError     = "Nats-Service-Error"
	HeaderServiceErrorCode = "Nats-Service-Error-Code"

	HeaderTraceParent = "traceparent"
	HeaderTraceState  = "tracestate"
	HeaderContentType = "content-type"
	HeaderAccept      = "accept"
)

// The two values of apbus-mode.
const (
	ModeUnary  = "unary"
	ModeStream = "stream"
)

// Get returns the first value of name and "" when there is none. Where several
// spellings of one name are present the all lower-case one counts, then the
// first in byte order, so that every reader sees the same.
func (h Header) Get(name string) string {
	v, _ := h.lookup(name)
	return v
}

// Has reports whether name is present.
func (h Header) Has(name string) bool {
	_, ok := h.lookup(name)
	return ok
}

func (h Header) lookup(name string) (string, bool) {
	if v := h[name]; len(v) > 0 {
		return v[0], true
	}
	found, value := "", ""
	for k, v := range h {
		if len(v) > 0 && len(k) == len(name) && strings.EqualFold(k, name) && (found == "" || k < found) {
			found, value = k, v[0]
		}
	}
	return value, found != ""
}

// Set replaces name's values, whatever their spelling, by one.
func (h Header) Set(name, value string) {
	h.Del(name)
	h[name] = []string{value}
}

// Del removes name in every spelling.
func (h Header) Del(name string) {
	maps.DeleteFunc(h, func(k string, _ []string) bool { return strings.EqualFold(k, name) })
}

// StripReserved removes the headers of a foreign message that must not be
// forwarded: everything that starts with Nats- or apbus-.
func (h Header) StripReserved() {
	maps.DeleteFunc(h, func(k string, _ []string) bool {
		return hasPrefixFold(k, "nats-") || hasPrefixFold(k, "apbus-")
	})
}

func hasPrefixFold(s, prefix string) bool {
	return len(s) >= len(prefix) && strings.EqualFold(s[:len(prefix)], prefix)
}

// headerSize is what one value occupies on the wire: "name: value\r\n".
func headerSize(name, value string) int { return len(name) + len(value) + 4 }

func (h Header) checkSize(lim Limits) error {
	size := 0
	for k, values := range h {
		for _, v := range values {
			size += headerSize(k, v)
		}
	}
	return checkHeaderSize(size, lim)
}

func checkHeaderSize(size int, lim Limits) error {
	if size > lim.MaxHeader {
		return refuse("header", "header block is over the limit").
			WithDetails(map[string]any{"limit": "header", "size": int64(size), "max": int64(lim.MaxHeader)})
	}
	return nil
}

// refuse makes the error of a message that breaks a rule; limit names the rule
// for programs.
func refuse(limit, text string) *module.Error {
	e := module.Errorf(module.CodeBusBadMessage, "%s", text)
	if limit != "" {
		e.Details = map[string]any{"limit": limit}
	}
	return e
}
