package archtest_test

import (
	"go/ast"
	"go/token"
	"testing"
)

func TestExportedNamesAreDocumented(t *testing.T) {
	holds(t, exportedIsDocumented)
	samples(t, exportedIsDocumented, []sample{
		{name: "documented", files: map[string]string{"a.go": "package bus\n// F is.\nfunc F() {}\n// T is.\ntype T struct{}\n// M is.\nfunc (T) M() {}\n// C is.\nconst C = 1"}},
		{name: "not exported", files: map[string]string{"a.go": "package bus\nfunc f() {}\ntype t struct{}\nfunc (t) M() {}\nvar v int"}},
		{name: "function", files: map[string]string{"a.go": "package bus\nfunc F() {}"}, want: []string{"F has no comment"}},
		{name: "method", files: map[string]string{"a.go": "package bus\n// T is.\ntype T[X any] struct{}\nfunc (t *T[X]) M() {}"}, want: []string{"M has no comment"}},
		{name: "type", files: map[string]string{"a.go": "package bus\ntype T struct{}"}, want: []string{"T has no comment"}},
		{name: "group", files: map[string]string{"a.go": "package bus\n// The constants.\nconst (\nA = 1\nB = 2\n)\nvar (\nV int\n)"}, want: []string{"V has no comment"}},
		{name: "in the group", files: map[string]string{"a.go": "package bus\nconst (\n// A is.\nA = 1\nB = 2 // is\n)"}},
		{name: "program", path: "cmd/node", files: map[string]string{"a.go": "package main\nfunc F() {}"}},
	})
}

// exportedIsDocumented finds names that others may use and nothing is said of. What a
// program or a test exports nobody can use.
func exportedIsDocumented(p *goPackage) []string {
	var findings []string
	for _, f := range p.production() {
		if f.ast.Name.Name == "main" {
			continue
		}
		lacks := func(name *ast.Ident) {
			findings = append(findings, f.at(name)+": "+name.Name+" has no comment; say what it is, its units, defaults and errors")
		}
		for _, decl := range f.ast.Decls {
			switch d := decl.(type) {
			case *ast.FuncDecl:
				if d.Name.IsExported() && d.Doc == nil && (d.Recv == nil || ast.IsExported(receiver(d))) {
					lacks(d.Name)
				}
			case *ast.GenDecl:
				for _, name := range undocumented(d) {
					lacks(name)
				}
			}
		}
	}
	return findings
}

// receiver is the name of a method's type.
func receiver(d *ast.FuncDecl) string {
	expr := d.Recv.List[0].Type
	for {
		switch x := expr.(type) {
		case *ast.StarExpr:
			expr = x.X
		case *ast.IndexExpr:
			expr = x.X
		case *ast.IndexListExpr:
			expr = x.X
		case *ast.Ident:
			return x.Name
		default:
			return ""
		}
	}
}

// undocumented are the exported names of a declaration that neither they nor their
// group say anything of.
func undocumented(d *ast.GenDecl) []*ast.Ident {
	if d.Tok == token.IMPORT || d.Doc != nil {
		return nil
	}
	var names []*ast.Ident
	for _, spec := range d.Specs {
		switch s := spec.(type) {
		case *ast.TypeSpec:
			if s.Name.IsExported() && s.Doc == nil && s.Comment == nil {
				names = append(names, s.Name)
			}
		case *ast.ValueSpec:
			for _, name := range s.Names {
				if name.IsExported() && s.Doc == nil && s.Comment == nil {
					names = append(names, name)
				}
			}
		}
	}
	return names
}
