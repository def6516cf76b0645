package middleware_test

import (
	"testing"

	"github.com/apbus/apbus/executor/middleware"
)

func TestCheckDataKey(t *testing.T) {
	tests := []struct {
		name         string
		framework    bool
		key          string
		valid, warns bool
	}{
		{"framework's own", true, "_apcore.mw.logging.start_time", true, false},
		{"framework on an extension", true, "ext.acme.id", true, true},
		{"extension", false, "ext.acme.id", true, false},
		{"application", false, "x-deadline", true, false},
		{"secret", false, "_secret_key", true, false},
		{"user on the framework's", false, "_apcore.mw.tracing.span_id", false, true},
		{"lookalike", false, "_apcorex", true, false},
		{"empty", true, "", false, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			valid, warning := middleware.CheckDataKey(tt.framework, tt.key)
			if valid != tt.valid || (warning != "") != tt.warns {
				t.Errorf("got %v, %q; want valid %v, warning %v", valid, warning, tt.valid, tt.warns)
			}
		})
	}
}
