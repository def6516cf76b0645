package gateway_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/apbus/apbus/cancel"
	"github.com/apbus/apbus/module"
)

// What a failure may tell the outside: the secret is in the cause, and for
// internal errors in the message too.
func TestWhatErrorsShow(t *testing.T) {
	secret := errors.New("SECRET")
	remote := func(e *module.Error) *module.Error {
		out, _ := module.ErrorFromMap(e.Map())
		return out
	}
	tests := []struct {
		name   string
		err    error
		status int
		code   module.Code
		leaks  bool
	}{
		{"plain error", secret, 500, module.CodeInternal, false},
		{"internal, made here", module.Errorf(module.CodeInternal, "SECRET").WithDetail("SECRET", "SECRET"), 500, module.CodeInternal, false},
		{"internal, from a peer", remote(module.Errorf(module.CodeInternal, "SECRET: %w", secret)), 500, module.CodeInternal, false},
		{"made here, 503", module.Wrap(module.CodeBusDisconnected, secret, "not connected"), 503, module.CodeBusDisconnected, false},
		{"made here, 500 of a module", module.Wrap("MY_CODE", secret, "oh"), 500, "MY_CODE", false},
		{"made here, 404", module.Wrap(module.CodeModuleNotFound, secret, "no"), 404, module.CodeModuleNotFound, true},
		{"from a peer, 500", remote(module.Wrap(module.CodeModuleExecuteError, secret, "failed")), 500, module.CodeModuleExecuteError, true},
		{"wrapped", fmt.Errorf("SECRET: %w", module.Errorf(module.CodeACLDenied, "no")), 403, module.CodeACLDenied, false},
		{"deadline", fmt.Errorf("SECRET: %w", context.DeadlineExceeded), 504, module.CodeModuleTimeout, false},
		{"cancelled", context.Canceled, 499, module.CodeExecutionCancelled, false},
		{"a cause", cancel.Because(cancel.Timeout, "x", "late"), 504, module.CodeModuleTimeout, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			res := record(newGateway(t, withInvoker(failing(tt.err))), "POST", "/v1/modules/a.b/call", "{}")
			e := res.wantFault(t, tt.status, tt.code)
			if got := strings.Contains(res.body, "SECRET"); got != tt.leaks {
				t.Errorf("shows the cause %v, want %v: %s", got, tt.leaks, res.body)
			}
			if e["trace_id"] == nil || e["module_id"] != "a.b" {
				t.Errorf("trace_id %v, module_id %v", e["trace_id"], e["module_id"])
			}
		})
	}
}

func TestAnErrorIsNotChangedForOthers(t *testing.T) {
	e := module.Wrap(module.CodeBusDisconnected, errors.New("why"), "no")
	record(newGateway(t, withInvoker(failing(e))), "POST", "/v1/modules/a.b/call", "{}")
	if e.CauseText() != "why" || e.TraceID != "" {
		t.Errorf("the invoker's error became %+v", e)
	}
}
