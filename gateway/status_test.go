package gateway_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/apbus/apbus/gateway"
	"github.com/apbus/apbus/module"
)

// Each code of the framework has its own status at the edge, through a real
// answer.
func TestEveryCodeHasItsStatus(t *testing.T) {
	n := 0
	for code := range module.Codes() {
		n++
		want := code.Info().Status
		if got := gateway.StatusOf(code); got != want {
			t.Errorf("%s: status %d, want %d", code, got, want)
		}
		if want < 200 || want > 599 {
			t.Errorf("%s: status %d cannot be sent", code, want)
		}
		g := newGateway(t, withInvoker(failing(module.Errorf(code, "the message"))))
		res := record(g, "POST", "/v1/modules/a.b/call", "{}")
		e := res.wantFault(t, want, code)
		wantMessage := code != module.CodeInternal
		if got := e["message"] == "the message"; got != wantMessage {
			t.Errorf("%s: message %v shown %v, want %v", code, e["message"], got, wantMessage)
		}
	}
	if n < 80 {
		t.Errorf("only %d codes", n)
	}
}

func TestStatusOfOtherCodes(t *testing.T) {
	tests := []struct {
		name string
		code module.Code
		want int
	}{
		{"path", gateway.CodeNotFound, http.StatusNotFound},
		{"method", gateway.CodeMethodNotAllowed, http.StatusMethodNotAllowed},
		{"late", gateway.CodeConflict, http.StatusConflict},
		{"gone", gateway.CodeGone, http.StatusGone},
		{"header", gateway.CodeHeaderTooLarge, http.StatusRequestHeaderFieldsTooLarge},
		{"of a module", "INSUFFICIENT_FUNDS", http.StatusInternalServerError},
		{"empty", "", http.StatusInternalServerError},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := gateway.StatusOf(tt.code); got != tt.want {
				t.Errorf("got %d, want %d", got, tt.want)
			}
		})
	}
}

func TestRetryAfter(t *testing.T) {
	tests := []struct {
		name  string
		value any
		want  string
	}{
		{"whole seconds", int64(3000), "3"},
		{"rounded up", int64(1001), "2"},
		{"below a second", int64(20), "1"},
		{"zero", int64(0), "0"},
		{"int", 2500, "3"},
		{"float", 1500.0, "2"},
		{"unsigned", uint64(4000), "4"},
		{"negative", int64(-5000), ""},
		{"absurd", 1e300, ""},
		{"text", "soon", ""},
		{"absent", nil, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			e := module.Errorf(module.CodeBusOverloaded, "busy")
			if tt.value != nil {
				e = e.WithDetail("retry_after_ms", tt.value)
			}
			res := record(newGateway(t, withInvoker(failing(e))), "POST", "/v1/modules/a.b/call", "{}")
			res.wantFault(t, 429, module.CodeBusOverloaded)
			if got := res.header.Get("Retry-After"); got != tt.want {
				t.Errorf("Retry-After %q, want %q", got, tt.want)
			}
		})
	}
}

func TestErrorsWithoutAJSONFormKeepTheirCode(t *testing.T) {
	tests := []struct {
		name string
		err  *module.Error
	}{
		{"details", module.Errorf(module.CodeACLDenied, "no").WithDetail("f", func() {})},
		{"message", module.Errorf(module.CodeACLDenied, "no \xff")},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			e := record(newGateway(t, withInvoker(failing(tt.err))), "POST", "/v1/modules/a.b/call", "{}").
				wantFault(t, 403, module.CodeACLDenied)
			if message, _ := e["message"].(string); !strings.HasPrefix(message, "no") {
				t.Errorf("message %q", message)
			}
		})
	}
}
