package gateway

import (
	"net/http"

	"github.com/apbus/apbus/module"
)

// Codes of the gateway itself, for what only HTTP knows. What a caller may not
// do is ACL_DENIED, with the reason in details.reason (scope, not_loopback,
// cross_origin); a caller whose token is missing or unknown is
// BUS_UNAUTHENTICATED.
const (
	// CodeNotFound is a path, call or node that does not exist.
	CodeNotFound module.Code = "GATEWAY_NOT_FOUND"
	// CodeMethodNotAllowed is a path that does not know the method.
	CodeMethodNotAllowed module.Code = "GATEWAY_METHOD_NOT_ALLOWED"
	// CodeConflict is a change that came too late: the details say what was there
	// first.
	CodeConflict module.Code = "GATEWAY_CONFLICT"
	// CodeGone is something whose time is over.
	CodeGone module.Code = "GATEWAY_GONE"
	// CodeHeaderTooLarge is a request whose line and headers exceed the limit.
	CodeHeaderTooLarge module.Code = "GATEWAY_HEADER_TOO_LARGE"
)

// StatusOf returns the HTTP status of a code. It is total: a code that neither
// the framework nor the gateway knows, such as one that a module declares for
// itself, is 500. 499 says that the call was cancelled, 202 that it waits for an
// approval.
func StatusOf(code module.Code) int {
	switch code {
	case CodeNotFound:
		return http.StatusNotFound
	case CodeMethodNotAllowed:
		return http.StatusMethodNotAllowed
	case CodeConflict:
		return http.StatusConflict
	case CodeGone:
		return http.StatusGone
	case CodeHeaderTooLarge:
		return http.StatusRequestHeaderFieldsTooLarge
	}
	if status := code.Info().Status; status >= 200 && status <= 599 {
		return status
	}
	return http.StatusInternalServerError
}
