package module_test

import (
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/apbus/apbus/module"
	"github.com/apbus/apbus/schema"
)

type Base struct {
	ID string `json:"id"`
}

type Extra struct {
	Note string `json:"note"`
}

type order struct {
	Base
	*Extra
	Qty    int8              `json:"qty" minimum:"1"`
	Price  float64           `json:"price"`
	Total  uint64            `json:"total"`
	Paid   bool              `json:"paid"`
	Due    time.Time         `json:"due"`
	Card   string            `json:"card" sensitive:"true"`
	Lines  []line            `json:"lines"`
	Labels map[string]string `json:"labels"`
	Gift   *line             `json:"gift"`
	Any    any               `json:"any"`
	Raw    []byte            `json:"raw"`
	Pair   [2]string         `json:"pair"`
	Hidden string            `json:"-"`
}

type line struct {
	SKU string `json:"sku"`
	N   *int   `json:"n,omitempty"`
}

func TestTypedModule(t *testing.T) {
	echo := module.New("orders.echo", "Echo", func(_ context.Context, in order) (order, error) { return in, nil })
	if err := echo.Check(); err != nil {
		t.Fatal(err)
	}
	inputs := obj{
		"id": "o1", "note": "n", "qty": int64(3), "price": int64(4), "total": uint64(1 << 63), "paid": true,
		"due": "2026-01-02T03:04:05Z", "card": "4111", "lines": []any{obj{"sku": "a", "n": int64(0)}, obj{"sku": "b"}},
		"labels": obj{"k": "v"}, "gift": nil, "any": []any{1.0, nil}, "raw": "AQI=", "pair": []any{"x", "y"}, "unknown": "ignored",
	}
	out, err := echo.Execute(t.Context(), inputs)
	if err != nil {
		t.Fatal(err)
	}
	want := obj{}
	for k, v := range inputs {
		want[k] = v
	}
	want["price"] = 4.0
	delete(want, "unknown")
	equal(t, "output", out, want)
	d := echo.Descriptor()
	for name, doc := range map[string]obj{"input": d.InputSchema, "output": d.OutputSchema} {
		compiled, err := schema.Compile(doc)
		if err != nil {
			t.Fatal(err)
		}
		if err := compiled.Validate(out); err != nil {
			t.Errorf("the output does not fit the %s schema: %v", name, err)
		}
		if _, leaks := doc["properties"].(obj)["Hidden"]; leaks {
			t.Error("a member tagged - is in the schema")
		}
	}
	// The zero value too: nil lists and maps are empty, not null.
	out, err = echo.Execute(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	equal(t, "zero output", out, obj{
		"id": "", "qty": int64(0), "price": 0.0, "total": int64(0), "paid": false, "due": "0001-01-01T00:00:00Z", "card": "",
		"lines": []any{}, "labels": obj{}, "gift": nil, "any": nil, "raw": "", "pair": []any{"", ""},
	})
}

func TestTypedModuleMisfit(t *testing.T) {
	called := false
	m := module.New("orders.take", "", func(context.Context, order) (obj, error) { called = true; return obj{}, nil })
	for _, tt := range []struct {
		name   string
		inputs obj
		path   string
	}{
		{"scalar", obj{"card": int64(4_111_111)}, "/card"},
		{"overflow", obj{"qty": int64(4_111_111)}, "/qty"},
		{"nested", obj{"lines": []any{obj{}, obj{"n": "4111111"}}}, "/lines/1/n"},
		{"embedded", obj{"id": []any{"4111111"}}, "/id"},
		{"time", obj{"due": "4111111"}, "/due"},
		{"array", obj{"pair": []any{"4111111"}}, "/pair"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := m.Execute(t.Context(), tt.inputs)
			hasCode(t, err, module.CodeInvalidInput)
			e := module.AsError(err)
			if !strings.Contains(e.Message, tt.path) || strings.Contains(e.Error()+e.CauseText(), "4111111") {
				t.Errorf("message %q", e.Message)
			}
		})
	}
	if called {
		t.Error("the function ran with half an input")
	}
}

// kind is a module of some pair of types, ready to be called.
type kind struct {
	name   string
	m      *module.Func
	inputs obj
	want   obj
}

func TestTypedModuleKinds(t *testing.T) {
	for _, tt := range []kind{
		{"maps", module.New("a.b", "", func(_ context.Context, in obj) (obj, error) { return in, nil }), obj{"k": int64(1)}, obj{"k": int64(1)}},
		{"typed maps", module.New("a.b", "", func(_ context.Context, in map[string]int) (map[string]float64, error) {
			return map[string]float64{"k": float64(in["k"])}, nil
		}), obj{"k": int64(1)}, obj{"k": 1.0}},
		{"pointers", module.New("a.b", "", func(_ context.Context, in *line) (*line, error) { return in, nil }), obj{"sku": "x"}, obj{"sku": "x"}},
		{"any", module.New("a.b", "", func(_ context.Context, in any) (any, error) { return in, nil }), obj{"k": "v"}, obj{"k": "v"}},
		{"nothing", module.New("a.b", "", func(context.Context, struct{}) (struct{}, error) { return struct{}{}, nil }), obj{"k": "v"}, obj{}},
		{"nil map is nothing returned", module.New("a.b", "", func(context.Context, struct{}) (obj, error) { return nil, nil }), nil, nil},
		{"nil typed map", module.New("a.b", "", func(context.Context, struct{}) (map[string]int, error) { return nil, nil }), nil, nil},
		{"nil pointer is nothing returned", module.New("a.b", "", func(context.Context, struct{}) (*line, error) { return nil, nil }), nil, nil},
		{"nil any", module.New("a.b", "", func(context.Context, struct{}) (any, error) { return nil, nil }), nil, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if err := tt.m.Check(); err != nil {
				t.Fatal(err)
			}
			out, err := tt.m.Execute(t.Context(), tt.inputs)
			if err != nil {
				t.Fatal(err)
			}
			equal(t, "output", out, tt.want)
		})
	}
}

func TestTypedModuleErrors(t *testing.T) {
	m := module.New("a.b", "", func(_ context.Context, in obj) (any, error) {
		switch in["want"] {
		case "error":
			return nil, io.EOF
		case "list":
			return []int{1}, nil
		case "func":
			return obj{"f": func() {}}, nil
		}
		return struct{ C chan int }{}, nil
	})
	if _, err := m.Execute(t.Context(), obj{"want": "error"}); !errors.Is(err, io.EOF) {
		t.Errorf("error %v", err)
	}
	for _, want := range []string{"list", "func", "chan"} {
		out, err := m.Execute(t.Context(), obj{"want": want})
		if out != nil {
			t.Errorf("%s: output %v", want, out)
		}
		hasCode(t, err, module.CodeModuleExecuteError)
	}
}

func TestCheck(t *testing.T) {
	type bad struct {
		C chan int `json:"c"`
	}
	run := func(context.Context, struct{}) (struct{}, error) { return struct{}{}, nil }
	open := module.WithInputSchema(obj{"type": "object"})
	for _, tt := range []struct {
		name string
		m    *module.Func
		code module.Code
	}{
		{"good", module.New("a.b", "", run), ""},
		{"input without a schema", module.New("a.b", "", func(context.Context, bad) (obj, error) { return nil, nil }), module.CodeFuncMissingTypeHint},
		{"input no object", module.New("a.b", "", func(context.Context, int) (obj, error) { return nil, nil }), module.CodeFuncMissingTypeHint},
		{"input no object, schema given", module.New("a.b", "", func(context.Context, []int) (obj, error) { return nil, nil }, open), module.CodeFuncMissingTypeHint},
		{"input without a schema, given", module.New("a.b", "", func(context.Context, bad) (obj, error) { return nil, nil }, open), ""},
		{"output without a schema", module.New("a.b", "", func(context.Context, obj) (bad, error) { return bad{}, nil }), module.CodeFuncMissingReturnType},
		{"output no object", module.New("a.b", "", func(context.Context, obj) (time.Time, error) { return time.Time{}, nil }), module.CodeFuncMissingReturnType},
		{"no function", module.New[obj, obj]("a.b", "", nil), module.CodeBindingNotCallable},
		{"both", module.New("a.b", "", func(context.Context, bad) (bad, error) { return bad{}, nil }), module.CodeFuncMissingTypeHint},
	} {
		t.Run(tt.name, func(t *testing.T) {
			err := tt.m.Check()
			if tt.code == "" && err != nil {
				t.Fatal(err)
			}
			hasCode(t, err, tt.code)
			if err != nil && !strings.Contains(err.Error(), "a.b") {
				t.Errorf("message %q", err)
			}
		})
	}
}

func TestOptions(t *testing.T) {
	in, out := obj{"type": "object", "title": "in"}, obj{"type": "object", "title": "out"}
	examples := []module.Example{{Title: "one", Inputs: obj{}}}
	m := module.New("a.b", "Does it", func(context.Context, obj) (obj, error) { return obj{}, nil },
		module.WithAnnotations(module.Annotations{Readonly: true}), module.WithVersion("1.2.3"), module.WithTags("x", "y"),
		module.WithName("Name"), module.WithDocumentation("Long"), module.WithExamples(examples...), module.WithMetadata(obj{"x-sla": 1}),
		module.WithTimeout(time.Second), module.WithInputSchema(in), module.WithOutputSchema(out))
	second := time.Second
	want := module.Descriptor{
		ID: "a.b", Name: "Name", Description: "Does it", Documentation: "Long", Version: "1.2.3", Tags: []string{"x", "y"},
		InputSchema: in, OutputSchema: out, Annotations: module.Annotations{Readonly: true}, Examples: examples,
		Metadata: obj{"x-sla": 1}, Timeout: &second,
	}
	if diff := cmp.Diff(want, m.Descriptor()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if p, err := m.Preview(t.Context(), nil); p != nil || err != nil {
		t.Errorf("preview %v, %v", p, err)
	}
}

func TestTypedModuleIsConcurrent(t *testing.T) {
	type in struct {
		N    int `json:"n"`
		Deep any `json:"deep"`
	}
	m := module.New("a.b", "", func(_ context.Context, v in) (in, error) { return in{v.N + 1, []line{{SKU: "x"}}}, nil })
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for range 50 {
				out, err := m.Execute(t.Context(), obj{"n": int64(i), "deep": nil})
				if err != nil || out["n"] != int64(i+1) {
					t.Errorf("%v, %v", out, err)
				}
			}
		})
	}
	wg.Wait()
}
