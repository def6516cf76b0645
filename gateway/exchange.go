package gateway

import (
	"net/http"
	"strings"

	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/module"
)

// exchange is one request on its way through the gateway.
type exchange struct {
	w *answer
	r *http.Request
	// principal is who asks; set before the handler runs.
	principal *Principal
	// traceID and callID are set by the handlers of calls, for errors and logs.
	traceID, callID string
	// trace is the call's pipeline trace as the outside may see it, when it was asked
	// for; it goes along with an error too.
	trace map[string]any
}

// answer is the response, which knows whether it was begun.
type answer struct {
	http.ResponseWriter
	status int // 0 until begun
}

// WriteHeader notes the status.
func (a *answer) WriteHeader(status int) {
	if a.status == 0 && status >= 200 {
		a.status = status
	}
	a.ResponseWriter.WriteHeader(status)
}

// Write begins the answer with 200 when nothing did.
func (a *answer) Write(p []byte) (int, error) {
	if a.status == 0 {
		a.status = http.StatusOK
	}
	return a.ResponseWriter.Write(p)
}

// Unwrap lets http.ResponseController reach the connection.
func (a *answer) Unwrap() http.ResponseWriter { return a.ResponseWriter }

// json answers with v. Keys are in byte order, so that equal answers are equal
// bytes.
func (x *exchange) json(status int, v any) error {
	body, err := contextwire.EncodeCanonical(contextwire.JSON, v)
	if err != nil {
		return module.Errorf(module.CodeInternal, "encode the answer: %w", err)
	}
	return x.raw(status, body)
}

// raw answers with JSON that is encoded already.
func (x *exchange) raw(status int, body []byte) error {
	x.w.Header().Set("Content-Type", "application/json")
	x.w.WriteHeader(status)
	_, err := x.w.Write(body)
	_ = err // the client has gone; there is nobody left to tell
	return nil
}

// fail answers with e, which must be fit for the outside.
func (x *exchange) fail(e *module.Error) {
	body := encodeError(e, func(m map[string]any) any {
		if x.trace != nil {
			return map[string]any{"error": m, "trace": x.trace}
		}
		return map[string]any{"error": m}
	})
	if after := retryAfter(e); after != "" {
		x.w.Header().Set("Retry-After", after)
	}
	if e.Code == module.CodeBusUnauthenticated {
		x.w.Header().Set("WWW-Authenticate", `Bearer realm="apbus"`)
	}
	_ = x.raw(StatusOf(e.Code), body)
}

// encodeError renders e whatever it holds: details without a JSON form are left
// out, and text that is not UTF-8 is replaced. wrap puts the map where it belongs.
func encodeError(e *module.Error, wrap func(map[string]any) any) []byte {
	for _, try := range []*module.Error{
		e,
		e.WithDetails(nil),
		{
			Code: module.Code(strings.ToValidUTF8(string(e.Code), "?")), Message: strings.ToValidUTF8(e.Message, "?"),
			Timestamp: e.Timestamp, Retryable: e.Retryable, UserFixable: e.UserFixable,
		},
	} {
		if body, err := contextwire.EncodeCanonical(contextwire.JSON, wrap(try.Map())); err == nil {
			return body
		}
	}
	return nil // not reached: the last holds valid text and booleans only
}
