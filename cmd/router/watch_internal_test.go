package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/apbus/apbus/internal/settings"
)

// TestEvents watches a router by its events file.
func TestEvents(t *testing.T) {
	dir := t.TempDir()
	told, list := filepath.Join(dir, "events.log"), filepath.Join(dir, "events.yaml")
	if err := os.WriteFile(list, []byte("- {type: file, path: "+told+", event_pattern: apbus.node.*}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := startRouter(t, free(t, "--events", list)...)
	s.host(t, "n1", adder())
	s.eventually(t, "the node that joined is told of", func() bool {
		text, err := os.ReadFile(told)
		return err == nil && strings.Contains(string(text), "apbus.node.joined") && strings.Contains(string(text), `"n1"`)
	})
	if err := os.WriteFile(list, []byte("type: file\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := runToEnd(t, free(t, "--events", list)...); settings.ExitCode(err) != settings.ExitUsage || !strings.Contains(err.Error(), "list of subscribers") {
		t.Errorf("a file that is no list: %v", err)
	}
}
