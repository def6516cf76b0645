package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/apbus/apbus/internal/settings"
	"github.com/apbus/apbus/module"
)

func bindingFile(script, description string) string {
	return "bindings:\n- module_id: shell.version\n  description: " + description + "\n  annotations: {readonly: true}\n" +
		"  command: {argv: [sh, -c, '" + script + "']}\n"
}

// TestBindingsFollowTheirFile changes a binding file under a running node.
func TestBindingsFollowTheirFile(t *testing.T) {
	url, client := startBus(t)
	path := filepath.Join(t.TempDir(), "bindings.yaml")
	put := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	put(bindingFile(`echo "{\"v\":1}"`, "First"))
	n := startNode(t, "--nats", url, "--id", "n1", "--bindings", path)
	waitModules(t, client, "shell.version")
	version := func() any {
		out, err := client.Call(t.Context(), "shell.version", nil)
		if err != nil {
			return module.CodeOf(err)
		}
		return out["v"]
	}
	becomes := func(what string, want any, got func() any) {
		t.Helper()
		limit := time.NewTimer(20 * time.Second)
		defer limit.Stop()
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for {
			d := cmp.Diff(want, got())
			if d == "" {
				return
			}
			select {
			case <-tick.C:
			case <-limit.C:
				t.Fatalf("%s: %s\n%s", what, d, n.log)
			}
		}
	}
	becomes("the first version", int64(1), version)

	put(bindingFile(`echo "{\"v\":22}"`, "First"))
	becomes("another command", int64(22), version)

	put(bindingFile(`echo "{\"v\":333}"`, "Third, described anew"))
	becomes("another description", "Third, described anew", func() any {
		info, _ := client.Module("shell.version")
		return info.Descriptor.Description
	})
	becomes("its command", int64(333), version)

	put("bindings:\n- module_id: shell.version\n  descripton: wrong\n") //nolint:misspell // on purpose
	becomes("the fault in the log", true, func() any {
		return strings.Contains(n.log.String(), "bindings.yaml:3") && strings.Contains(n.log.String(), `bindings[0].descripton`) //nolint:misspell // see above
	})
	if v := version(); v != int64(333) {
		t.Errorf("after a fault the module answers %v", v)
	}

	put(bindingFile(`echo "{\"v\":4444}"`, "Third, described anew") + "- {module_id: shell.other, description: d, command: {argv: [cat]}}\n")
	waitModules(t, client, "shell.other")
	put(strings.ReplaceAll(bindingFile(`cat`, "x"), "shell.version", "shell.other"))
	becomes("a binding that was taken out", module.CodeBusNoResponders, version) // known, but nobody hosts it
}

func TestFaultyBindingsAtTheStart(t *testing.T) {
	url, _ := startBus(t)
	path := filepath.Join(t.TempDir(), "b.yaml")
	if err := os.WriteFile(path, []byte("bindings: {}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	err := run(t.Context(), settings.Spec{Name: "apbus-node", Args: []string{"--nats", url, "--bindings", path}})
	if settings.ExitCode(err) != settings.ExitUsage || !strings.Contains(err.Error(), "b.yaml:1") {
		t.Errorf("err = %v", err)
	}
}
