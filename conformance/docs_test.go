package conformance_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// tally counts cases.
type tally struct{ cases, passed, excepted int }

func (t *tally) add(o tally) { t.cases += o.cases; t.passed += o.passed; t.excepted += o.excepted }

// section returns the cells of the table below a heading of docs/conformance.md,
// without its head.
func section(t *testing.T, heading string) [][]string {
	t.Helper()
	page, err := os.ReadFile(filepath.Join("..", "docs", "conformance.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(page), "\n## "+heading+"\n")
	if !ok {
		t.Fatalf("docs/conformance.md has no section %q", heading)
	}
	if next := strings.Index(rest, "\n## "); next >= 0 {
		rest = rest[:next]
	}
	var rows [][]string
	inTable := false
	for line := range strings.Lines(rest) {
		line = strings.TrimSpace(line)
		switch {
		case !strings.HasPrefix(line, "|"):
			inTable = false
		case strings.HasPrefix(line, "|-"):
			inTable = true
		case inTable:
			cells := strings.Split(strings.Trim(line, "|"), " | ")
			for i, c := range cells {
				cells[i] = strings.TrimSpace(c)
			}
			rows = append(rows, cells)
		}
	}
	if len(rows) == 0 {
		t.Fatalf("section %q of docs/conformance.md has no rows", heading)
	}
	return rows
}

const (
	headingConflicts  = "Decided conflicts"
	headingFiles      = "Files"
	headingExceptions = "Exceptions"
	headingCore       = "The core executor's MUST and SHOULD"
	headingPreview    = "The preview method's MUST and SHOULD"
)

// documentedCounts reads what the documentation says of each file.
func documentedCounts(t *testing.T) map[string]tally {
	t.Helper()
	counts := make(map[string]tally)
	for _, row := range section(t, headingFiles) {
		name := strings.Trim(row[0], "`")
		if reason, ok := later[name]; ok {
			if row[1] != reason {
				t.Errorf("docs say of %s: %s, want: %s", name, row[1], reason)
			}
			continue
		}
		var n [3]int
		for i := range n {
			var err error
			if n[i], err = strconv.Atoi(row[i+1]); err != nil {
				t.Errorf("row %q: %v", row, err)
			}
		}
		counts[name] = tally{n[0], n[1], n[2]}
	}
	return counts
}

// The table of exceptions and the page say the same.
func TestExceptionsAreDocumented(t *testing.T) {
	var want, got []string
	perFile := make(map[string]int)
	for _, e := range exceptions {
		want = append(want, fmt.Sprintf("%s | %s | %s | %s", e.file, e.id, e.quote, e.source))
		perFile[e.file]++
		if e.fault == "" || e.quote == "" || e.source == "" {
			t.Errorf("exception %s says too little", e.key())
		}
	}
	for _, row := range section(t, headingExceptions) {
		got = append(got, fmt.Sprintf("%s | %s | %s | %s", strings.Trim(row[0], "`"), strings.Trim(row[1], "`"), strings.Trim(row[2], "“”"), row[3]))
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("exceptions (-table +docs):\n%s", diff)
	}
	for name, n := range documentedCounts(t) {
		if n.excepted != perFile[name] || n.cases != n.passed+n.excepted {
			t.Errorf("docs say of %s: %+v, with %d exceptions in the table", name, n, perFile[name])
		}
	}
}

// Every row that says what pins a rule names tests that there are.
func TestDocumentedTestsExist(t *testing.T) {
	tests := testsOfTheRepository(t)
	name := regexp.MustCompile("`([a-z]+(?:/[a-z]+)*)\\.((?:Test|Fuzz|Benchmark)\\w+)`")
	for _, heading := range []string{headingConflicts, headingCore, headingPreview} {
		for _, row := range section(t, heading) {
			last := row[len(row)-1]
			found := name.FindAllStringSubmatch(last, -1)
			if len(found) == 0 && !strings.HasPrefix(last, "later: ") && !strings.HasPrefix(last, "not a rule for code: ") {
				t.Errorf("%s: row %q names no test", heading, row[0])
			}
			if quoted := strings.Count(last, "`"); quoted != 2*len(found) && len(found) > 0 {
				t.Errorf("%s: row %q names something that is no test: %s", heading, row[0], last)
			}
			for _, m := range found {
				if !slices.Contains(tests[m[1]], m[2]) {
					t.Errorf("%s: row %q names %s.%s, which does not exist", heading, row[0], m[1], m[2])
				}
			}
		}
	}
}

// testsOfTheRepository lists the test functions by package folder, whatever their
// build tags.
func testsOfTheRepository(t *testing.T) map[string][]string {
	t.Helper()
	root, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	tests := make(map[string][]string)
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if n := d.Name(); path != root && (strings.HasPrefix(n, ".") || n == "testdata") {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(path, "_test.go") {
			return nil
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		dir, err := filepath.Rel(root, filepath.Dir(path))
		if err != nil {
			return err
		}
		for _, decl := range parsed.Decls {
			if fn, ok := decl.(*ast.FuncDecl); ok && fn.Recv == nil {
				tests[filepath.ToSlash(dir)] = append(tests[filepath.ToSlash(dir)], fn.Name.Name)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return tests
}
