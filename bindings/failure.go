package bindings

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strings"

	"github.com/apbus/apbus/module"
)

// Reasons in details.reason of a failed run.
const (
	ReasonNotStarted  = "not_started"
	ReasonExit        = "exit"
	ReasonSignal      = "signal"
	ReasonNotJSON     = "not_json"
	ReasonTooLarge    = "too_large"
	ReasonUnreachable = "unreachable"
	ReasonStatus      = "status"
	ReasonRedirect    = "redirect"
)

// failed is the error of a run. text is ours and quotes nothing that came out.
func failed(c *call, reason, text string) *module.Error {
	return module.Errorf(module.CodeModuleExecuteError, "module %s: %s", c.moduleID, text).
		WithDetails(map[string]any{"module_id": c.moduleID, "reason": reason})
}

func tooLarge(c *call, limit int64) *module.Error {
	return failed(c, ReasonTooLarge, "it put out more than it may").WithDetail("limit", limit)
}

// decodeObject reads exactly one JSON object; what is wrong is said without
// quoting it.
func decodeObject(raw []byte) (map[string]any, error) {
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	var v any
	if err := dec.Decode(&v); err != nil {
		return nil, errors.New("not JSON")
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("more than one JSON value")
	}
	m, ok := v.(map[string]any)
	if !ok {
		return nil, errors.New("a JSON value that is no object")
	}
	normal, err := module.NormalizeMap(m)
	if err != nil {
		return nil, errors.New("JSON beyond what a call can carry")
	}
	return normal, nil
}

const (
	maxOwnCode    = 64
	maxOwnMessage = 4 << 10
)

// ownError is the error that a command or endpoint means its caller to see:
// {"error": {"code", "message", "details"?, "retryable"?}} and nothing else. The
// code must be one that a module may have. nil means that raw is no such thing.
func ownError(c *call, raw []byte) *module.Error {
	doc, err := decodeObject(raw)
	if err != nil || len(doc) != 1 {
		return nil
	}
	in, _ := doc["error"].(map[string]any)
	code, _ := in["code"].(string)
	text, _ := in["message"].(string)
	if !ownCode(code) || text == "" || len(text) > maxOwnMessage {
		return nil
	}
	e := module.Errorf(module.Code(code), "%s", text)
	if details, ok := in["details"].(map[string]any); ok {
		e = e.WithDetails(details)
	}
	if retry, ok := in["retryable"].(bool); ok {
		e = e.WithRetryable(module.TriOf(retry))
	}
	e.ModuleID = c.moduleID
	return e
}

// ownCode reports whether a module may have the code: upper snake case that is not
// the framework's.
func ownCode(code string) bool {
	if code == "" || len(code) > maxOwnCode || code[0] < 'A' || code[0] > 'Z' || module.Code(code).Known() {
		return false
	}
	for i := range len(code) {
		if b := code[i]; (b < 'A' || b > 'Z') && (b < '0' || b > '9') && b != '_' {
			return false
		}
	}
	for _, prefix := range append(module.ReservedCodePrefixes(), "BUS_") {
		if strings.HasPrefix(code, prefix) {
			return false
		}
	}
	return true
}
