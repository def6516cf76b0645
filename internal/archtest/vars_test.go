package archtest_test

import (
	"fmt"
	"go/ast"
	"go/token"
	"strings"
	"testing"
)

func TestPackageVariables(t *testing.T) {
	holds(t, variablesStand)
	samples(t, variablesStand, []sample{
		{name: "what may stand", files: map[string]string{"a.go": `package bus
import ("embed"; "errors"; "regexp")
var ErrGone = errors.New("gone")
var pattern = regexp.MustCompile("x")
var files embed.FS
var _ error = (*e)(nil)
type e struct{ error }
var table = map[string]int{"a": 1}
var defaults = options{n: 1}
type options struct{ n int }
func f() int { return table["a"] + defaults.n }`}},
		{name: "locals of the same name", files: map[string]string{"a.go": `package bus
var table = []int{1}
func f(table []int) { table[0] = 2; for i := range table { _ = i } }
func g() { table := table; _ = table }
type s struct{ table int }
func (x *s) h() { x.table = 1 }`}},
		{name: "assigned", files: map[string]string{"a.go": "package bus\nvar n = 1\nfunc f() { n = 2 }"}, want: []string{"a.go:3: changes the package variable n"}},
		{name: "element", files: map[string]string{"a.go": "package bus\nvar m = map[int]int{1: 1}\nfunc f() { m[2]++ }"}, want: []string{"changes the package variable m"}},
		{name: "field", files: map[string]string{"a.go": "package bus\nvar o = struct{n int}{1}\nfunc f() { o.n = 1 }"}, want: []string{"changes the package variable o"}},
		{name: "deleted", files: map[string]string{"a.go": "package bus\nvar m = map[int]int{1: 1}\nfunc f() { delete(m, 1) }"}, want: []string{"changes"}},
		{name: "sorted", files: map[string]string{"a.go": "package bus\nimport \"slices\"\nvar m = []int{2, 1}\nfunc f() { slices.Sort(m) }"}, want: []string{"changes"}},
		{name: "address", files: map[string]string{"a.go": "package bus\nvar n = 1\nfunc f() *int { return &n }"}, want: []string{"changes"}},
		{name: "range", files: map[string]string{"a.go": "package bus\nvar n = 1\nfunc f(x []int) { for n = range x {} }"}, want: []string{"changes"}},
		{name: "mutex", files: map[string]string{"a.go": "package bus\nimport \"sync\"\nvar mu sync.Mutex"}, want: []string{"mutable kind"}},
		{name: "pool", files: map[string]string{"a.go": "package bus\nimport \"sync\"\nvar pool = sync.Pool{}"}, want: []string{"mutable kind"}},
		{name: "atomic", files: map[string]string{"a.go": "package bus\nimport \"sync/atomic\"\nvar n atomic.Int64"}, want: []string{"mutable kind"}},
		{name: "made", files: map[string]string{"a.go": "package bus\nvar m = make(map[int]int)"}, want: []string{"mutable kind"}},
		{name: "pointer", files: map[string]string{"a.go": "package bus\ntype t struct{}\nvar p = &t{}"}, want: []string{"mutable kind"}},
		{name: "channel", files: map[string]string{"a.go": "package bus\nvar c chan int"}, want: []string{"mutable kind"}},
		{name: "empty", files: map[string]string{"a.go": "package bus\nvar n int"}, want: []string{"no value"}},
		{name: "exported", files: map[string]string{"a.go": "package bus\nvar Defaults = []int{1}"}, want: []string{"exported"}},
		{name: "of another package", files: map[string]string{"a.go": "package bus\nimport \"net/http\"\nfunc f() { http.DefaultClient.Timeout = 1 }"}, want: []string{"another package"}},
		{name: "version of a program", path: "cmd/node", files: map[string]string{"a.go": "package main\nvar version string\nvar other = \"dev\""}},
		{name: "named exception", path: "executor", files: map[string]string{"a.go": "package executor\nimport \"sync\"\nvar strategies = struct{ mu sync.Mutex; m map[string]int }{m: map[string]int{}}\nfunc f() { strategies.m[\"a\"] = 1 }"}},
	})
}

// The variable may be declared in one file and changed in another.
func TestPackageVariablesAcrossFiles(t *testing.T) {
	samples(t, variablesStand, []sample{{
		name:  "two files",
		files: map[string]string{"a.go": "package bus\nvar n = 1", "b.go": "package bus\nfunc f() { n++ }"},
		want:  []string{"b.go:2: changes the package variable n"},
	}})
}

func variablesStand(p *goPackage) []string {
	var findings []string
	specs := make(map[string]*ast.ValueSpec)
	for _, f := range p.production() {
		for _, d := range f.ast.Decls {
			gen, ok := d.(*ast.GenDecl)
			if !ok || gen.Tok != token.VAR {
				continue
			}
			for _, s := range gen.Specs {
				spec := s.(*ast.ValueSpec)
				for i, name := range spec.Names {
					if name.Name == "_" || mutableVars[p.path+"."+name.Name] != "" {
						continue
					}
					specs[name.Name] = spec
					var value ast.Expr
					if i < len(spec.Values) {
						value = spec.Values[i]
					} else if len(spec.Values) == 1 {
						value = spec.Values[0]
					}
					if why := f.cannotStand(name, spec.Type, value); why != "" {
						findings = append(findings, fmt.Sprintf("%s: package variable %s %s", f.at(name), name.Name, why))
					}
				}
			}
		}
	}
	for _, f := range p.production() {
		imported := make(map[string]bool)
		for _, name := range f.names {
			imported[name] = true
		}
		f.eachChange(func(x ast.Expr) {
			id := rootOf(x)
			if id == nil {
				return
			}
			spec := specs[id.Name]
			switch {
			case spec != nil && (id.Obj == nil || id.Obj.Decl == spec):
				findings = append(findings, fmt.Sprintf("%s: changes the package variable %s", f.at(x), id.Name))
			case id.Obj == nil && imported[id.Name] && isSelected(x):
				findings = append(findings, fmt.Sprintf("%s: changes a variable of another package, %s", f.at(x), id.Name))
			}
		})
	}
	return findings
}

// cannotStand says what is wrong with the declaration of a variable.
func (f *goFile) cannotStand(name *ast.Ident, typ, value ast.Expr) string {
	isErr := strings.HasPrefix(name.Name, "Err") || strings.HasPrefix(name.Name, "err")
	isRegexp := false
	if call, ok := value.(*ast.CallExpr); ok {
		isRegexp = f.isSelector(call.Fun, "regexp", "MustCompile")
	}
	isFS := f.isSelector(typ, "embed", "FS")
	str, ok := typ.(*ast.Ident)
	setByLinker := ok && str.Name == "string" && f.ast.Name.Name == "main"
	switch {
	case isErr && value != nil, isRegexp, isFS, setByLinker:
		return ""
	case f.mutableKind(typ) || f.mutableKind(value):
		return "is of a mutable kind; give it an owner"
	case value == nil:
		return "has no value, so it is there to be changed"
	case name.IsExported():
		return "is exported, so anybody may change it; use a function or a constant"
	}
	return ""
}

// mutableKind reports whether a type or value is of use only when it changes.
func (f *goFile) mutableKind(x ast.Expr) bool {
	switch x := x.(type) {
	case nil:
		return false
	case *ast.ChanType, *ast.StarExpr:
		return true
	case *ast.UnaryExpr:
		return x.Op == token.AND
	case *ast.CompositeLit:
		return f.mutableKind(x.Type)
	case *ast.StructType:
		for _, field := range x.Fields.List {
			if f.mutableKind(field.Type) {
				return true
			}
		}
	case *ast.IndexExpr:
		return f.mutableKind(x.X)
	case *ast.CallExpr:
		fn, ok := x.Fun.(*ast.Ident)
		return ok && (fn.Name == "make" || fn.Name == "new")
	case *ast.SelectorExpr:
		return f.isSelector(x, "sync") || f.isSelector(x, "sync/atomic")
	}
	return false
}

// eachChange calls found with every expression the file changes: assigned,
// counted, deleted from, sorted, or handed out by address.
func (f *goFile) eachChange(found func(ast.Expr)) {
	ast.Inspect(f.ast, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.AssignStmt:
			if n.Tok != token.DEFINE {
				for _, x := range n.Lhs {
					found(x)
				}
			}
		case *ast.IncDecStmt:
			found(n.X)
		case *ast.RangeStmt:
			if n.Tok == token.ASSIGN {
				for _, x := range []ast.Expr{n.Key, n.Value} {
					if x != nil {
						found(x)
					}
				}
			}
		case *ast.UnaryExpr:
			if _, literal := n.X.(*ast.CompositeLit); n.Op == token.AND && !literal {
				found(n.X)
			}
		case *ast.CallExpr:
			if len(n.Args) == 0 {
				return true
			}
			fn, ok := n.Fun.(*ast.Ident)
			inPlace := ok && fn.Obj == nil && (fn.Name == "delete" || fn.Name == "clear" || fn.Name == "copy")
			if inPlace ||
				f.isSelector(n.Fun, "slices", "Sort", "SortFunc", "SortStableFunc", "Reverse", "Delete", "Compact") ||
				f.isSelector(n.Fun, "sort", "Strings", "Ints", "Slice", "SliceStable", "Sort") ||
				f.isSelector(n.Fun, "maps", "Copy", "DeleteFunc", "Insert") {
				found(n.Args[0])
			}
		}
		return true
	})
}

// rootOf returns x of x, x.f, x[i], *x and (x).
func rootOf(x ast.Expr) *ast.Ident {
	for {
		switch e := x.(type) {
		case *ast.Ident:
			return e
		case *ast.SelectorExpr:
			x = e.X
		case *ast.IndexExpr:
			x = e.X
		case *ast.SliceExpr:
			x = e.X
		case *ast.StarExpr:
			x = e.X
		case *ast.ParenExpr:
			x = e.X
		default:
			return nil
		}
	}
}

// isSelected reports whether x goes through a selector, as pkg.Var does.
func isSelected(x ast.Expr) bool {
	_, plain := x.(*ast.Ident)
	return !plain
}
