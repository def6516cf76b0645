package middleware_test

import (
	"bytes"
	"context"
	"log/slog"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/apbus/apbus/executor/middleware"
	"github.com/apbus/apbus/module"
)

// Every run has one record of its end, also where no other hook sees it.
func TestLoggingEnds(t *testing.T) {
	rescue := &middleware.Funcs{Label: "rescue", OnFailure: func(context.Context, *middleware.Call, *module.Error) (middleware.Recovery, error) {
		return middleware.Recovery{Output: obj{}}, nil
	}}
	for _, tt := range []struct {
		name   string
		run    func(context.Context, int) *module.Error
		beside []middleware.Middleware
		want   string
	}{
		{"success", working, nil, "INFO call finished"},
		{"failure", failing(module.CodeModuleTimeout), nil, "ERROR call failed MODULE_TIMEOUT"},
		{"cancelled", failing(module.CodeExecutionCancelled), nil, "INFO call cancelled EXECUTION_CANCELLED"},
		{"recovered", failing(module.CodeModuleTimeout), []middleware.Middleware{rescue}, "INFO call recovered MODULE_TIMEOUT"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var log bytes.Buffer
			l := middleware.NewLogging(middleware.LoggingOptions{Logger: slog.New(slog.NewTextHandler(&log, nil))})
			drive(t.Context(), chain(t, append(tt.beside, l)...), callOf("a.b", ""), tt.run)
			lines := strings.Split(strings.TrimSpace(log.String()), "\n")
			if len(lines) != 1 {
				t.Fatalf("log:\n%s", log.String())
			}
			got := regexp.MustCompile(`level=(\w+) msg="([^"]*)"(?:.* code=(\w+))?`).FindStringSubmatch(lines[0])
			if diff := cmp.Diff(tt.want, strings.TrimSpace(strings.Join(got[1:], " "))); diff != "" {
				t.Errorf("record (-want +got):\n%s", diff)
			}
		})
	}
}
