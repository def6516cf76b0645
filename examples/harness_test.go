package examples_test

import (
	"context"
	"testing"

	"github.com/apbus/apbus/examples"
	"github.com/apbus/apbus/module"
	"github.com/apbus/apbus/schema"
)

// direct runs modules without a pipeline: contexts and schemas, nothing else.
type direct struct {
	mods    map[string]module.Module
	schemas map[string][2]*schema.Compiled // input and output
	// calls sees every call before it runs; its error is the call's.
	calls func(ctx context.Context, id string, inputs map[string]any) error
}

func (d *direct) Call(ctx context.Context, id string, inputs map[string]any, _ ...module.CallOption) (map[string]any, error) {
	parent := module.FromContext(ctx)
	if parent == nil {
		parent = module.NewContext(module.ContextOptions{})
		if err := parent.BindExecutor(d); err != nil {
			return nil, err
		}
	}
	if d.calls != nil {
		if err := d.calls(ctx, id, inputs); err != nil {
			return nil, err
		}
	}
	m, known := d.mods[id]
	if !known {
		return nil, module.Errorf(module.CodeModuleNotFound, "no module %s", id)
	}
	inputs, err := module.NormalizeMap(inputs)
	if err != nil {
		return nil, err
	}
	if err := validate(d.schemas[id][0], inputs); err != nil {
		return nil, err
	}
	c := parent.Enter(id, module.CallScope{Call: parent.Call()})
	out, err := m.Execute(module.WithContext(ctx, c), inputs)
	if err != nil {
		return nil, err
	}
	if out, err = module.NormalizeMap(out); err != nil {
		return nil, err
	}
	return out, validate(d.schemas[id][1], out)
}

func validate(doc *schema.Compiled, v any) error {
	if err := doc.Validate(v); err != nil {
		return module.Errorf(module.CodeSchemaValidation, "%w", err)
	}
	return nil
}

func modulesOf(t *testing.T, o examples.Options) []module.Module {
	t.Helper()
	mods, err := examples.Modules(o)
	if err != nil {
		t.Fatal(err)
	}
	return mods
}

func newDirect(t *testing.T, o examples.Options) *direct {
	t.Helper()
	d := &direct{mods: map[string]module.Module{}, schemas: map[string][2]*schema.Compiled{}}
	for _, m := range modulesOf(t, o) {
		desc := m.Descriptor()
		in, err := schema.Compile(desc.InputSchema)
		if err != nil {
			t.Fatal(err)
		}
		out, err := schema.Compile(desc.OutputSchema)
		if err != nil {
			t.Fatal(err)
		}
		d.mods[desc.ID], d.schemas[desc.ID] = m, [2]*schema.Compiled{in, out}
	}
	return d
}

func mustCall(t *testing.T, x module.Executor, id string, inputs map[string]any) map[string]any {
	t.Helper()
	out, err := x.Call(t.Context(), id, inputs)
	if err != nil {
		t.Fatalf("%s(%v): %v", id, inputs, err)
	}
	return out
}

func wantCode(t *testing.T, err error, want module.Code) {
	t.Helper()
	if got := module.CodeOf(err); got != want {
		t.Errorf("code = %q (%v), want %q", got, err, want)
	}
}

func obj(kv ...any) map[string]any {
	m := map[string]any{}
	for i := 0; i < len(kv); i += 2 {
		m[kv[i].(string)] = kv[i+1]
	}
	return m
}

func items(kv ...any) []any {
	var out []any
	for i := 0; i < len(kv); i += 2 {
		out = append(out, obj("sku", kv[i], "qty", kv[i+1]))
	}
	return out
}
