package archtest_test

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"testing"
)

func TestImports(t *testing.T) {
	holds(t, importsAreAllowed)
	samples(t, importsAreAllowed, []sample{
		{name: "down", files: map[string]string{"a.go": `package bus; import (_ "context"; _ "github.com/apbus/apbus/contextwire"; _ "github.com/nats-io/nats.go/micro")`}},
		{name: "stranger", files: map[string]string{"a.go": `package bus; import _ "github.com/apbus/apbus/executor"`}, want: []string{"bus may not import executor"}},
		{name: "up", path: "module", files: map[string]string{"a.go": `package module; import _ "github.com/apbus/apbus/bus"`}, want: []string{"module may not import bus"}},
		{name: "third party", path: "task", files: map[string]string{"a.go": `package task; import _ "github.com/nats-io/nats.go"`}, want: []string{"task may not import github.com/nats-io/nats.go"}},
		{name: "prefix is not a module", files: map[string]string{"a.go": `package bus; import _ "github.com/nats-io/nats.gopher"`}, want: []string{"nats.gopher"}},
		{name: "unknown package", path: "bus/extra", files: map[string]string{"a.go": `package extra`}, want: []string{"no row in the table"}},
		{name: "test of its own package", files: map[string]string{"a_test.go": `package bus_test; import (_ "github.com/apbus/apbus/bus"; _ "github.com/apbus/apbus/bus/bustest"; _ "github.com/apbus/apbus/internal/natstest"; _ "pgregory.net/rapid")`}},
		{name: "test of a stranger", files: map[string]string{"a_test.go": `package bus_test; import _ "github.com/apbus/apbus/jetstream"`}, want: []string{"bus may not import jetstream"}},
		{name: "test that wires", files: map[string]string{"a_test.go": `package bus_test; import _ "github.com/apbus/apbus/executor"`}, want: []string{"bus may not import executor"}},
		{name: "server below the adapters", path: "task", files: map[string]string{"a_test.go": `package task_test; import _ "github.com/apbus/apbus/internal/natstest"`}, want: []string{"internal/natstest"}},
		{name: "test module in production", files: map[string]string{"a.go": `package bus; import _ "pgregory.net/rapid"`}, want: []string{"rapid"}},
		{name: "test support", path: "bus/bustest", files: map[string]string{"a.go": `package bustest; import (_ "testing"; _ "github.com/apbus/apbus/bus"; _ "github.com/apbus/apbus/contextwire")`}},
		{name: "test support up", path: "bus/bustest", files: map[string]string{"a.go": `package bustest; import _ "github.com/apbus/apbus/executor"`}, want: []string{"bus/bustest may not import executor"}},
		{name: "testing in production", files: map[string]string{"a.go": `package bus; import (_ "testing"; _ "testing/synctest")`}, want: []string{"testing", "testing/synctest"}},
		{name: "test support in production", path: "cmd/node", files: map[string]string{"a.go": `package main; import _ "github.com/apbus/apbus/internal/natstest"`}, want: []string{"internal/natstest"}},
	})
}

// The table itself points down.
func TestTablePointsDown(t *testing.T) {
	for name, r := range table {
		if r.owns == "" {
			t.Errorf("%s: the table does not say what it owns", name)
		}
		for mod, reason := range r.third {
			if reason == "" {
				t.Errorf("%s: %s has no reason", name, mod)
			}
		}
		for _, imported := range r.internal {
			below, ok := table[imported]
			if !ok {
				t.Errorf("%s may import %s, which has no row", name, imported)
			}
			if below.level >= r.level && sameLevel[[2]string{name, imported}] == "" {
				t.Errorf("%s (level %d) may import %s (level %d), which is not down", name, r.level, imported, below.level)
			}
		}
	}
}

func importsAreAllowed(p *goPackage) []string {
	r, ok := rowOf(p.path)
	if !ok {
		return []string{p.path + ": no row in the table of internal/archtest; say what it owns and may import"}
	}
	var findings []string
	for _, f := range p.files {
		for _, imported := range slices.Sorted(maps.Keys(f.names)) {
			if !r.allows(p, f, imported) {
				findings = append(findings, fmt.Sprintf("%s: %s may not import %s", f.name, p.path, strings.TrimPrefix(imported, modulePath+"/")))
			}
		}
	}
	return findings
}

// rowOf returns the row of a package, made up for p/ptest.
func rowOf(name string) (row, bool) {
	if r, ok := table[name]; ok {
		return r, true
	}
	subject := path.Dir(name)
	r, ok := table[subject]
	if !ok || path.Base(name) != path.Base(subject)+"test" {
		return row{}, false
	}
	r.internal = append(slices.Clone(r.internal), subject)
	return r, true
}

func (r row) allows(p *goPackage, f *goFile, imported string) bool {
	forTest := f.test || p.isTestSupport()
	if imported == "testing" || strings.HasPrefix(imported, "testing/") && imported != "testing/fstest" {
		return forTest
	}
	if name, ours := strings.CutPrefix(imported, modulePath+"/"); ours {
		if slices.Contains(r.internal, name) {
			return true
		}
		if !forTest {
			return false
		}
		// A test knows its own package and what that may import, no more: strangers
		// meet in integration. An adapter is tested against a real server, and measured
		// with the heap of the programs.
		if name == p.path || r.level >= 3 && (name == "internal/natstest" || name == "internal/heap" || name == "examples") {
			return true
		}
		subject := path.Dir(name)
		return path.Base(name) == path.Base(subject)+"test" && (subject == p.path || slices.Contains(r.internal, subject))
	}
	if first, _, _ := strings.Cut(imported, "/"); !strings.Contains(first, ".") {
		return true // standard library
	}
	if within(imported, r.third) {
		return true
	}
	return forTest && (within(imported, testThird) || within(imported, table["internal/natstest"].third) && r.level >= 3)
}

// within reports whether a package belongs to one of the modules.
func within(imported string, modules map[string]string) bool {
	for mod := range modules {
		if imported == mod || strings.HasPrefix(imported, mod+"/") {
			return true
		}
	}
	return false
}
