package archtest_test

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
)

const modulePath = "github.com/apbus/apbus"

// goFile is one parsed file; name is relative to the root of the repository.
type goFile struct {
	name  string
	ast   *ast.File
	fset  *token.FileSet
	lines int
	test  bool
	names map[string]string // import paths and the names they go by
}

// goPackage is all files of one folder.
type goPackage struct {
	path  string // relative to the root of the repository
	files []*goFile
}

func (p *goPackage) production() []*goFile { return p.only(false) }

func (p *goPackage) tests() []*goFile { return p.only(true) }

func (p *goPackage) only(test bool) []*goFile {
	var files []*goFile
	for _, f := range p.files {
		if f.test == test {
			files = append(files, f)
		}
	}
	return files
}

// isTestSupport reports whether the package is there for tests only.
func (p *goPackage) isTestSupport() bool {
	return strings.HasSuffix(p.path, "test") || p.path == "integration"
}

// at is the place of a finding.
func (f *goFile) at(n ast.Node) string {
	return fmt.Sprintf("%s:%d", f.name, f.fset.Position(n.Pos()).Line)
}

// importNames returns the import paths and the names they go by in a file.
func importNames(parsed *ast.File) map[string]string {
	names := make(map[string]string)
	for _, spec := range parsed.Imports {
		p, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			continue
		}
		name := path.Base(p)
		if strings.HasPrefix(name, "v") && strings.Trim(name[1:], "0123456789") == "" {
			name = path.Base(path.Dir(p))
		}
		if spec.Name != nil {
			name = spec.Name.Name
		}
		names[p] = name
	}
	return names
}

// isSelector reports whether n is pkg.fn of the import path, fn one of names; none
// means any.
func (f *goFile) isSelector(n ast.Node, importPath string, names ...string) bool {
	sel, ok := n.(*ast.SelectorExpr)
	if !ok {
		return false
	}
	x, ok := sel.X.(*ast.Ident)
	if !ok || x.Obj != nil || x.Name != f.names[importPath] {
		return false
	}
	if len(names) == 0 {
		return true
	}
	for _, name := range names {
		if sel.Sel.Name == name {
			return true
		}
	}
	return false
}

func parse(fset *token.FileSet, name string, src []byte) (*goFile, error) {
	parsed, err := parser.ParseFile(fset, name, src, parser.ParseComments)
	if err != nil {
		return nil, err
	}
	return &goFile{
		name:  name,
		ast:   parsed,
		fset:  fset,
		lines: bytes.Count(src, []byte("\n")),
		test:  strings.HasSuffix(name, "_test.go"),
		names: importNames(parsed),
	}, nil
}

// root returns the root of the repository.
func root(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "go.mod")); err != nil {
		t.Fatalf("no go.mod in %s: %v", dir, err)
	}
	return dir
}

// load returns every package of the repository, which is read once for all rules.
func load(t *testing.T) []*goPackage {
	t.Helper()
	packages, err := loaded(root(t))
	if err != nil {
		t.Fatalf("read the repository: %v", err)
	}
	if len(packages) == 0 {
		t.Fatal("no package found; the rules would hold for nothing")
	}
	return packages
}

var (
	once   sync.Once
	all    []*goPackage
	failed error
)

func loaded(dir string) ([]*goPackage, error) {
	once.Do(func() { all, failed = readRepository(dir) })
	return all, failed
}

// readRepository parses every package below dir.
func readRepository(dir string) ([]*goPackage, error) {
	fset := token.NewFileSet()
	byPath := make(map[string]*goPackage)
	var packages []*goPackage
	err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		base := d.Name()
		if d.IsDir() {
			if name != dir && (base == "testdata" || strings.HasPrefix(base, ".") || strings.HasPrefix(base, "_")) {
				return fs.SkipDir
			}
			if _, err := os.Stat(filepath.Join(name, "go.mod")); err == nil && name != dir {
				return fs.SkipDir // a module of its own, which links what it likes
			}
			return nil
		}
		if !strings.HasSuffix(base, ".go") || strings.HasPrefix(base, ".") || strings.HasPrefix(base, "_") {
			return nil
		}
		rel, err := filepath.Rel(dir, name)
		if err != nil {
			return err
		}
		rel = filepath.ToSlash(rel)
		src, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		f, err := parse(fset, rel, src)
		if err != nil {
			return err
		}
		p := byPath[path.Dir(rel)]
		if p == nil {
			p = &goPackage{path: path.Dir(rel)}
			byPath[p.path] = p
			packages = append(packages, p)
		}
		p.files = append(p.files, f)
		return nil
	})
	return packages, err
}

// rule returns what is wrong with a package, a line for each finding.
type rule func(p *goPackage) []string

// holds runs a rule over the whole repository.
func holds(t *testing.T, r rule) {
	t.Helper()
	for _, p := range load(t) {
		for _, finding := range r(p) {
			t.Error(finding)
		}
	}
}

// sample is a package that obeys or breaks one rule.
type sample struct {
	name  string
	path  string            // default "bus"
	files map[string]string // by name
	want  []string          // a part of each finding, in order of files and lines
}

// samples checks that a rule finds what it is there for and nothing else.
func samples(t *testing.T, r rule, all []sample) {
	t.Helper()
	for _, s := range all {
		t.Run(s.name, func(t *testing.T) {
			p := &goPackage{path: s.path}
			if p.path == "" {
				p.path = "bus"
			}
			for name, src := range s.files {
				f, err := parse(token.NewFileSet(), path.Join(p.path, name), []byte(src))
				if err != nil {
					t.Fatal(err)
				}
				p.files = append(p.files, f)
			}
			got := r(p)
			if len(got) != len(s.want) {
				t.Fatalf("findings = %q, want %d like %q", got, len(s.want), s.want)
			}
			for i := range got {
				if !strings.Contains(got[i], s.want[i]) {
					t.Errorf("finding %d = %q, want it to contain %q", i, got[i], s.want[i])
				}
			}
		})
	}
}
