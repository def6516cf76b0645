package archtest_test

import (
	"fmt"
	"go/ast"
	"strings"
	"testing"
)

func TestNoInit(t *testing.T) {
	holds(t, noInit)
	samples(t, noInit, []sample{
		{name: "method", files: map[string]string{"a.go": "package bus; type x int; func (x) init() {}"}},
		{name: "init", files: map[string]string{"a.go": "package bus; func init() {}"}, want: []string{"func init"}},
		{name: "in a test", files: map[string]string{"a_test.go": "package bus_test; func init() {}"}, want: []string{"func init"}},
	})
}

func noInit(p *goPackage) []string {
	var findings []string
	for _, f := range p.files {
		for _, d := range f.ast.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil && fn.Name.Name == "init" {
				findings = append(findings, f.at(fn)+": func init; wire explicitly instead")
			}
		}
	}
	return findings
}

func TestExitOnlyInMain(t *testing.T) {
	holds(t, exitsOnlyInMain)
	samples(t, exitsOnlyInMain, []sample{
		{name: "main", path: "cmd/node", files: map[string]string{"main.go": `package main; import "os"; func main() { os.Exit(1) }`}},
		{name: "run", path: "cmd/node", files: map[string]string{"main.go": `package main; import "os"; func run() { os.Exit(1) }`}, want: []string{"os.Exit"}},
		{name: "package", files: map[string]string{"a.go": `package bus; import sys "os"; func main() { sys.Exit(1) }`}, want: []string{"os.Exit"}},
		{name: "fatal", files: map[string]string{"a.go": `package bus; import "log"; func f() { log.Fatalf("") }`}, want: []string{"os.Exit"}},
		{name: "TestMain", files: map[string]string{"a_test.go": `package bus_test; import "os"; func TestMain() { os.Exit(1) }`}},
		{name: "test", files: map[string]string{"a_test.go": `package bus_test; import "os"; func TestX() { os.Exit(1) }`}, want: []string{"os.Exit"}},
		{name: "own os", files: map[string]string{"a.go": `package bus; func f(os x) { os.Exit(1) }; type x interface{ Exit(int) }`}},
	})
}

func exitsOnlyInMain(p *goPackage) []string {
	var findings []string
	for _, f := range p.files {
		for _, d := range f.ast.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil {
				if f.ast.Name.Name == "main" && fn.Name.Name == "main" || f.test && fn.Name.Name == "TestMain" {
					continue
				}
			}
			ast.Inspect(d, func(n ast.Node) bool {
				if f.isSelector(n, "os", "Exit") || f.isSelector(n, "log", "Fatal", "Fatalf", "Fatalln") {
					findings = append(findings, f.at(n)+": os.Exit outside func main; return an error")
				}
				return true
			})
		}
	}
	return findings
}

func TestEnvironmentOnlyInPrograms(t *testing.T) {
	holds(t, environmentOnlyInPrograms)
	samples(t, environmentOnlyInPrograms, []sample{
		{name: "program", path: "cmd/node", files: map[string]string{"a.go": `package main; import "os"; var x = os.Getenv("X")`}},
		{name: "settings", path: "internal/settings", files: map[string]string{"a.go": `package settings; import "os"; var x, _ = os.LookupEnv("X")`}},
		{name: "library", files: map[string]string{"a.go": `package bus; import "os"; var x = os.Getenv("X")`}, want: []string{"environment"}},
		{name: "passed on", files: map[string]string{"a.go": `package bus; import "os"; var get = os.LookupEnv`}, want: []string{"environment"}},
		{name: "test", files: map[string]string{"a_test.go": `package bus_test; import "os"; var x = os.Getenv("X")`}},
	})
}

func environmentOnlyInPrograms(p *goPackage) []string {
	if strings.HasPrefix(p.path, "cmd/") || p.path == "internal/settings" || p.isTestSupport() {
		return nil
	}
	var findings []string
	for _, f := range p.production() {
		ast.Inspect(f.ast, func(n ast.Node) bool {
			if f.isSelector(n, "os", "Getenv", "LookupEnv", "Environ", "ExpandEnv", "Setenv", "Unsetenv") {
				findings = append(findings, f.at(n)+": reads or writes the environment; take an option")
			}
			return true
		})
	}
	return findings
}

// realTime marks a line of a test that sleeps in real time, with the reason.
const realTime = "//archtest:real-time "

func TestNoSleeps(t *testing.T) {
	const head = "package bus_test\nimport (\"testing\"; \"testing/synctest\"; \"time\")\n"
	holds(t, testsDoNotSleep)
	samples(t, testsDoNotSleep, []sample{
		{name: "sleep", files: map[string]string{"a_test.go": head + `func TestX(t *testing.T) { time.Sleep(1) }`}, want: []string{"a_test.go:3: time.Sleep"}},
		{name: "bubble", files: map[string]string{"a_test.go": head + `func TestX(t *testing.T) { synctest.Test(t, func(t *testing.T) { go func() { time.Sleep(1) }() }) }`}},
		{name: "named bubble", files: map[string]string{"a_test.go": head + `func TestX(t *testing.T) { synctest.Test(t, testX) }; func testX(t *testing.T) { time.Sleep(1) }`}},
		{name: "helper that only works in a bubble", files: map[string]string{"a_test.go": head + `func step() { time.Sleep(1); synctest.Wait() }`}},
		{name: "beside a bubble", files: map[string]string{"a_test.go": head + `func TestX(t *testing.T) { synctest.Test(t, func(t *testing.T) {}); time.Sleep(1) }`}, want: []string{"time.Sleep"}},
		{name: "marked", files: map[string]string{"a_test.go": head + "func TestX(t *testing.T) {\ntime.Sleep(1) //archtest:real-time a process outside has its own clock\n}"}},
		{name: "marked without reason", files: map[string]string{"a_test.go": head + "func TestX(t *testing.T) {\ntime.Sleep(1) //archtest:real-time\n}"}, want: []string{"time.Sleep"}},
		{name: "production", files: map[string]string{"a.go": `package bus; import "time"; func f() { time.Sleep(1) }`}},
	})
}

func testsDoNotSleep(p *goPackage) []string {
	// Functions handed to synctest.Test by name, anywhere in the package.
	bubbles := make(map[string]bool)
	for _, f := range p.tests() {
		ast.Inspect(f.ast, func(n ast.Node) bool {
			if call, ok := n.(*ast.CallExpr); ok && f.isSelector(call.Fun, "testing/synctest", "Test") && len(call.Args) == 2 {
				if id, ok := call.Args[1].(*ast.Ident); ok {
					bubbles[id.Name] = true
				}
			}
			return true
		})
	}
	var findings []string
	for _, f := range p.tests() {
		marked := make(map[int]bool)
		for _, group := range f.ast.Comments {
			for _, c := range group.List {
				if reason, ok := strings.CutPrefix(c.Text, realTime); ok && strings.TrimSpace(reason) != "" {
					marked[f.fset.Position(c.Pos()).Line] = true
				}
			}
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.CallExpr:
				if f.isSelector(n.Fun, "testing/synctest", "Test") {
					return false
				}
			case *ast.FuncDecl:
				if bubbles[n.Name.Name] || f.waitsInBubble(n) {
					return false
				}
			case *ast.SelectorExpr:
				if f.isSelector(n, "time", "Sleep") && !marked[f.fset.Position(n.Pos()).Line] {
					findings = append(findings, fmt.Sprintf("%s: time.Sleep in a test; wait for a condition, use a synctest bubble, or give the reason after %q", f.at(n), realTime))
				}
			}
			return true
		})
	}
	return findings
}

// waitsInBubble reports whether fn itself calls synctest.Wait, which panics
// outside a bubble.
func (f *goFile) waitsInBubble(fn *ast.FuncDecl) bool {
	found := false
	ast.Inspect(fn, func(n ast.Node) bool {
		if call, ok := n.(*ast.CallExpr); ok {
			if f.isSelector(call.Fun, "testing/synctest", "Test") {
				return false
			}
			found = found || f.isSelector(call.Fun, "testing/synctest", "Wait")
		}
		return true
	})
	return found
}
