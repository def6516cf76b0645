package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/apbus/apbus/internal/settings"
)

// TestEventsAndCallLog watches a node by its events file and its log.
func TestEventsAndCallLog(t *testing.T) {
	url, client := startBus(t)
	dir := t.TempDir()
	told := filepath.Join(dir, "events.log")
	list := filepath.Join(dir, "events.yaml")
	if err := os.WriteFile(list, []byte("- {type: file, path: "+told+", event_pattern: apcore.registry.*}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	n := startNode(t, "--nats", url, "--id", "n1", "--examples=math", "--events", list, "--log-calls")
	waitModules(t, client, "math.add")
	if _, err := client.Call(t.Context(), "math.add", map[string]any{"a": 1234567, "b": 2}); err != nil {
		t.Fatal(err)
	}
	n.stop(nil)
	if err := n.wait(t); err != nil {
		t.Fatal(err)
	}
	events, err := os.ReadFile(told)
	if err != nil || !strings.Contains(string(events), "apcore.registry.module_registered") || !strings.Contains(string(events), "math.add") {
		t.Errorf("events: %v\n%s", err, events)
	}
	log := n.log.String()
	for _, want := range []string{`"msg":"call finished"`, `"module_id":"math.add"`, `"node":"n1"`, `"call_id":"`, `"trace_id":"`, `"duration_ms":`} {
		if !strings.Contains(log, want) {
			t.Errorf("the log lacks %s", want)
		}
	}
	if strings.Contains(log, "1234567") {
		t.Error("the log shows an input")
	}
}

func TestRefusedWatching(t *testing.T) {
	dir := t.TempDir()
	file := func(text string) string {
		path := filepath.Join(dir, "events.yaml")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for _, tt := range []struct {
		name string
		args []string
		want string
	}{
		{"metrics for everybody", []string{"--metrics-listen", "0.0.0.0:0"}, "--insecure"},
		{"metrics nowhere", []string{"--metrics-listen", "9090"}, "--metrics-listen"},
		{"no events file", []string{"--events", filepath.Join(dir, "no-such")}, "--events"},
		{"events that are no list", []string{"--events", file("type: stdout\n")}, "list"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			err := run(t.Context(), settings.Spec{Name: "apbus-node", Args: tt.args})
			if settings.ExitCode(err) != settings.ExitUsage || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("err = %v, want one that says %s", err, tt.want)
			}
		})
	}
	err := run(t.Context(), settings.Spec{Name: "apbus-node", Args: []string{"--events", file("- {type: stdout}\n- {type: carrier_pigeon}\n")}})
	if settings.ExitCode(err) != settings.ExitUsage || !strings.Contains(err.Error(), "subscriber 2") {
		t.Errorf("err = %v", err)
	}
}
