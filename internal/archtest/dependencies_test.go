package archtest_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// Every direct dependency has its section in docs/dependencies.md, and no
// section outlives its dependency.
func TestDependenciesHaveReasons(t *testing.T) {
	gomod, err := os.ReadFile(filepath.Join(root(t), "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join(root(t), "docs", "dependencies.md"))
	if err != nil {
		t.Fatal(err)
	}
	direct, explained := directDependencies(string(gomod)), explainedDependencies(string(page))
	if len(direct) == 0 {
		t.Fatal("go.mod names no direct dependency; the parser is wrong")
	}
	for _, mod := range direct {
		if !slices.Contains(explained, mod) {
			t.Errorf("%s is a direct dependency without a reason in docs/dependencies.md", mod)
		}
	}
	for _, mod := range explained {
		if !slices.Contains(direct, mod) {
			t.Errorf("docs/dependencies.md explains %s, which is no direct dependency", mod)
		}
	}
}

func directDependencies(gomod string) []string {
	var direct []string
	inBlock := false
	for line := range strings.Lines(gomod) {
		line = strings.TrimSpace(line)
		switch {
		case line == "require (":
			inBlock = true
			continue
		case line == ")":
			inBlock = false
			continue
		case strings.HasPrefix(line, "require "):
			line = strings.TrimPrefix(line, "require ")
		case !inBlock:
			continue
		}
		if fields := strings.Fields(line); len(fields) >= 2 && !strings.HasSuffix(line, "// indirect") {
			direct = append(direct, fields[0])
		}
	}
	return direct
}

// explainedDependencies returns the module paths in the first column of tables
// whose further columns all say something.
func explainedDependencies(page string) []string {
	var mods []string
	for _, m := range regexp.MustCompile("(?m)^\\| `([^`]+)`((?: \\| [^|\\n]*[^|\\s][^|\\n]*)+) \\|$").FindAllStringSubmatch(page, -1) {
		if strings.Count(m[2], " | ") == 3 {
			mods = append(mods, m[1])
		}
	}
	return mods
}

func TestDependencyParsers(t *testing.T) {
	got := directDependencies("module x\n\nrequire example.com/one v1.0.0\n\nrequire (\n\texample.com/two v1.0.0\n\texample.com/three v1.0.0 // indirect\n)\n")
	if want := []string{"example.com/one", "example.com/two"}; !slices.Equal(got, want) {
		t.Errorf("direct = %q, want %q", got, want)
	}
	got = explainedDependencies("| `a.com/x` | why | loss | MIT |\n| `a.com/y` | why |  | MIT |\n| `a.com/z` | why | loss |\n")
	if want := []string{"a.com/x"}; !slices.Equal(got, want) {
		t.Errorf("explained = %q, want %q", got, want)
	}
}
