package cancel_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apbus/apbus/cancel"
)

func TestReasonOf(t *testing.T) {
	lost := cancel.Because(cancel.NodeLost, "n1", "")
	tests := []struct {
		name string
		err  error
		want cancel.Reason
	}{
		{"nil", nil, ""},
		{"foreign", errors.New("boom"), ""},
		{"cause", lost, cancel.NodeLost},
		{"wrapped cause", fmt.Errorf("call: %w", lost), cancel.NodeLost},
		{"joined", errors.Join(errors.New("x"), lost), cancel.NodeLost},
		{"nil cause in an error", (*cancel.Cause)(nil), ""},
		{"deadline", fmt.Errorf("wait: %w", context.DeadlineExceeded), cancel.Timeout},
		{"cancelled context", context.Canceled, cancel.Caller},
		{"cause wins over context error", fmt.Errorf("%w: %w", context.Canceled, lost), cancel.NodeLost},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := cancel.ReasonOf(tt.err); got != tt.want {
				t.Errorf("ReasonOf(%v) = %q, want %q", tt.err, got, tt.want)
			}
		})
	}
}

func TestCauseError(t *testing.T) {
	tests := []struct {
		name  string
		cause *cancel.Cause
		want  string
	}{
		{"all", cancel.Because(cancel.Timeout, "n7", "budget spent"), "timeout by n7: budget spent"},
		{"reason only", cancel.Because(cancel.Caller, "", ""), "caller"},
		{"no text", cancel.Because(cancel.Shutdown, "n7", ""), "shutdown by n7"},
		{"no name", cancel.Because(cancel.Remote, "", "operator"), "remote: operator"},
		{"zero", &cancel.Cause{}, "unknown reason"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := tt.cause.Error(); got != tt.want {
				t.Errorf("Error() = %q, want %q", got, tt.want)
			}
		})
	}
}

func TestBecauseIsStamped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(time.Hour)
		if got := cancel.Because(cancel.Caller, "", "").At; !got.Equal(time.Now()) {
			t.Errorf("At = %v, want %v", got, time.Now())
		}
	})
}
