package middleware_test

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apbus/apbus/executor/middleware"
	"github.com/apbus/apbus/module"
	"github.com/google/go-cmp/cmp"
)

func withData(key string, v any) *middleware.Call {
	data := obj{}
	if key != "" {
		data[key] = v
	}
	return &middleware.Call{ModuleID: "math.add", Context: module.NewContext(module.ContextOptions{Data: data})}
}

func TestDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		now := time.Now().Unix()
		tests := []struct {
			name    string
			value   any
			limited bool
			late    bool
			warns   bool
		}{
			{"absent", nil, false, false, false},
			{"past", now - 1, true, true, false},
			{"now", now, true, true, false},
			{"future", now + 1, true, false, false},
			{"fraction", float64(now) + 0.5, true, false, false},
			{"unsigned", uint64(now + 9), true, false, false},
			{"far beyond", 1e300, true, false, false},
			{"far before", -1e300, true, true, false},
			{"negative infinity", math.Inf(-1), true, true, false},
			{"not a number", math.NaN(), false, false, true},
			{"text", "soon", false, false, true},
		}
		for _, tt := range tests {
			var log bytes.Buffer
			d := middleware.NewDeadline(slog.New(slog.NewTextHandler(&log, nil)))
			call := withData(module.DataDeadline, tt.value)
			for range 2 {
				if _, ok := d.Limit(call); ok != tt.limited {
					t.Errorf("%s: limited %v, want %v", tt.name, ok, tt.limited)
				}
			}
			in, err := d.Before(t.Context(), call)
			if in != nil || (err != nil) != tt.late {
				t.Errorf("%s: got %v, %v; want late %v", tt.name, in, err, tt.late)
			}
			if e := module.AsError(err); tt.late && (e.Code != module.CodeModuleTimeout || !e.Unexecuted ||
				cmp.Diff(obj{"module_id": "math.add", "timeout_ms": int64(0)}, e.Details) != "") {
				t.Errorf("%s: error %v, details %v", tt.name, e, e.Details)
			}
			if n := strings.Count(log.String(), "x-deadline"); (n == 1) != tt.warns || n > 1 {
				t.Errorf("%s: %d warnings", tt.name, n)
			}
			if strings.Contains(log.String(), "soon") {
				t.Errorf("%s: the log quotes the value", tt.name)
			}
		}
		d := middleware.NewDeadline(nil)
		if at, ok := d.Limit(withData(module.DataDeadline, float64(now)+2.5)); !ok || time.Until(at) != 2500*time.Millisecond {
			t.Errorf("limit in %v", time.Until(at))
		}
		call := withData(module.DataDeadline, now+1)
		time.Sleep(time.Second)
		if _, err := d.Before(t.Context(), call); module.CodeOf(err) != module.CodeModuleTimeout {
			t.Errorf("when time has come: %v", err)
		}
	})
}

func TestLogging(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		debug := slog.LevelDebug
		l := middleware.NewLogging(middleware.LoggingOptions{
			Logger:     slog.New(slog.NewJSONHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})),
			StartLevel: &debug, Values: true,
		})
		c := module.NewContext(module.ContextOptions{}).Child("orders.place").Child("pay.charge")
		c = c.Enter("pay.card", module.CallScope{Call: module.CallInfo{ID: "call-1"}})
		c.SetRedactedInputs(func() map[string]any { return obj{"card": "***REDACTED***"} })
		call := &middleware.Call{ModuleID: "pay.card", Inputs: obj{"card": "4111"}, Context: c}

		chained := chain(t, l)
		if _, _, err := chained.Before(t.Context(), call); err != nil {
			t.Fatal(err)
		}
		time.Sleep(1500 * time.Microsecond)
		c.SetRedactedOutput(func() map[string]any { return obj{"receipt": "***REDACTED***"} })
		if out, err := chained.After(t.Context(), call, obj{"receipt": "r-9"}); err != nil || out["receipt"] != "r-9" {
			t.Fatalf("%v, %v", out, err)
		}
		err := module.Errorf(module.CodeModuleExecuteError, "card 4111 is bad")
		if r := chained.OnError(t.Context(), call, 1, err); r.Recovered() {
			t.Error("logging recovered")
		}

		common := func(level, msg string, more obj) obj {
			m := obj{"level": level, "msg": msg, "module_id": "pay.card", "call_id": "call-1", "trace_id": c.TraceID(),
				"caller_id": "pay.charge", "inputs": obj{"card": "***REDACTED***"}}
			for k, v := range more {
				m[k] = v
			}
			return m
		}
		want := []obj{
			common("DEBUG", "call started", nil),
			common("INFO", "call finished", obj{"duration_ms": 1.5, "output": obj{"receipt": "***REDACTED***"}}),
			common("ERROR", "call failed", obj{"duration_ms": 1.5, "code": "MODULE_EXECUTE_ERROR"}),
		}
		var got []obj
		for line := range strings.Lines(log.String()) {
			var m obj
			if err := json.Unmarshal([]byte(line), &m); err != nil {
				t.Fatal(err)
			}
			delete(m, "time")
			got = append(got, m)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("records (-want +got):\n%s", diff)
		}
		if strings.Contains(log.String(), "4111") || strings.Contains(log.String(), "r-9") {
			t.Errorf("raw values in the log:\n%s", log.String())
		}
	})
}

// Without a redacted view nothing is shown, never the raw value; and a view that
// nobody logs is not made.
func TestLoggingWithoutViews(t *testing.T) {
	var log bytes.Buffer
	logger := slog.New(slog.NewTextHandler(&log, nil))
	call := newCall(obj{"card": "4111"})
	l := middleware.NewLogging(middleware.LoggingOptions{Logger: logger, Values: true})
	_, _ = l.Before(t.Context(), call)
	_, _ = l.After(t.Context(), call, obj{"receipt": "r-9"})
	if !strings.Contains(log.String(), "call finished") || strings.Contains(log.String(), "4111") || strings.Contains(log.String(), "r-9") {
		t.Errorf("log:\n%s", log.String())
	}

	made := 0
	call.Context.SetRedactedInputs(func() map[string]any { made++; return obj{} })
	quiet := middleware.NewLogging(middleware.LoggingOptions{Logger: logger})
	_, _ = quiet.After(t.Context(), call, nil)
	silent := middleware.NewLogging(middleware.LoggingOptions{Logger: slog.New(slog.DiscardHandler), Values: true})
	_, _ = silent.After(t.Context(), call, nil)
	if made != 0 {
		t.Error("a redacted view was made for nobody")
	}
}
