package module_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/apbus/apbus/module"
)

// declaredCodes reads the constants of type Code from the source.
func declaredCodes(t *testing.T) []module.Code {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), "codes.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var out []module.Code
	ast.Inspect(f, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		if typ, ok := spec.Type.(*ast.Ident); ok && typ.Name == "Code" {
			text, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
			if err != nil {
				t.Fatal(err)
			}
			out = append(out, module.Code(text))
		}
		return true
	})
	return out
}

func TestEveryCodeHasInfo(t *testing.T) {
	declared := declaredCodes(t)
	if len(declared) < 90 {
		t.Fatalf("found only %d codes", len(declared))
	}
	for _, c := range declared {
		if !c.Known() {
			t.Errorf("%s has no info", c)
		}
	}
	slices.Sort(declared)
	if unique := slices.Compact(slices.Clone(declared)); len(unique) != len(declared) {
		t.Error("a code is declared twice")
	}
	equal(t, "codes", slices.Collect(module.Codes()), declared)
}

func TestCodesGolden(t *testing.T) {
	answer := map[module.Tri]string{module.Unset: "unset", module.False: "no", module.True: "yes"}
	var b strings.Builder
	fmt.Fprintln(&b, "code status retryable user_fixable")
	for c := range module.Codes() {
		i := c.Info()
		fmt.Fprintln(&b, c, i.Status, answer[i.Retryable], answer[i.UserFixable])
		if i.Status < 200 || i.Status > 599 {
			t.Errorf("%s has status %d", c, i.Status)
		}
	}
	want, err := os.ReadFile("testdata/codes.golden")
	if err != nil {
		t.Fatal(err)
	}
	equal(t, "codes.golden", strings.Split(b.String(), "\n"), strings.Split(string(want), "\n"))
}

func TestUnknownCode(t *testing.T) {
	c := module.Code("ORDERS_OUT_OF_STOCK")
	if c.Known() {
		t.Error("a module's own code is not known")
	}
	equal(t, "info", c.Info(), module.CodeInfo{Status: 500})
}

func TestTri(t *testing.T) {
	for _, tt := range []struct {
		tri       module.Tri
		value, ok bool
	}{{module.Unset, false, false}, {module.False, false, true}, {module.True, true, true}} {
		if value, ok := tt.tri.Bool(); value != tt.value || ok != tt.ok {
			t.Errorf("%d.Bool() = %v, %v", tt.tri, value, ok)
		}
		if tt.ok && module.TriOf(tt.value) != tt.tri {
			t.Errorf("TriOf(%v) = %d", tt.value, module.TriOf(tt.value))
		}
	}
}
