package bindings_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/apbus/apbus/bindings"
)

func TestSource(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "first.sh", `echo '{"v":1}'`)
	next := write(t, dir, "next.sh", `echo '{"v":2}'`)
	file := write(t, dir, "b.yaml", `
bindings:
- module_id: x.y
  description: d
  command: {argv: [sh, "{source}"], source: first.sh}
- module_id: x.z
  description: d
  command: {argv: [echo, '{"v":1}']}
`)
	mods, err := bindings.Load([]string{file}, bindings.Options{Env: environment})
	if err != nil {
		t.Fatal(err)
	}
	m, fixed := mods[0], mods[1]
	if m.ID() != "x.y" {
		m, fixed = fixed, m
	}
	if !m.Revisable() || fixed.Revisable() {
		t.Errorf("revisable: %v, %v, want the one that names its source", m.Revisable(), fixed.Revisable())
	}
	runs := func(m *bindings.Module, want int64) {
		t.Helper()
		out, err := execute(t, t.Context(), m, nil)
		if d := cmp.Diff(map[string]any{"v": want}, out); err != nil || d != "" {
			t.Errorf("%v %s", err, d)
		}
	}
	runs(m, 1)
	trial := m.WithSource(next)
	runs(trial, 2)
	runs(m, 1) // which the trial does not touch
	m.RunSource(next)
	runs(m, 2)
	again, err := bindings.Load([]string{file}, bindings.Options{Env: environment})
	if err != nil {
		t.Fatal(err)
	}
	for _, other := range again {
		if other.ID() == "x.y" && !m.Same(other) {
			t.Error("a revised module is no longer the one that is declared")
		}
	}
	m.RunSource("")
	runs(m, 1)
}

func TestSourceFaults(t *testing.T) {
	for name, command := range map[string]string{
		"unused":  `{argv: [sh, -c, x], source: first.sh}`,
		"unnamed": `{argv: [sh, "{source}"]}`,
		"missing": `{argv: [sh, "{source}"], source: no-such-file}`,
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			write(t, dir, "first.sh", `:`)
			file := write(t, dir, "b.yaml", "bindings:\n- module_id: x.y\n  description: d\n  command: "+command+"\n")
			if _, err := bindings.Load([]string{file}, bindings.Options{}); err == nil || !strings.Contains(err.Error(), "source") {
				t.Errorf("got %v, want a fault about source", err)
			}
		})
	}
}
