package module_test

import (
	"context"
	"fmt"

	"github.com/apbus/apbus/module"
)

type AddIn struct {
	A float64 `json:"a" description:"left"`
	B float64 `json:"b"`
}

type AddOut struct {
	Sum float64 `json:"sum"`
}

func ExampleNew() {
	add := module.New("math.add", "Add two numbers",
		func(_ context.Context, in AddIn) (AddOut, error) { return AddOut{Sum: in.A + in.B}, nil },
		module.WithAnnotations(module.Annotations{Readonly: true, Idempotent: true}))

	out, err := add.Execute(context.Background(), map[string]any{"a": int64(2), "b": 0.5})
	fmt.Println(out["sum"], err)
	fmt.Println(add.Descriptor().InputSchema["required"])

	_, err = add.Execute(context.Background(), map[string]any{"a": "two"})
	fmt.Println(err)
	// Output:
	// 2.5 <nil>
	// [a b]
	// GENERAL_INVALID_INPUT: the value at /a does not fit float64
}

// local is the smallest executor there can be; the real one is in package executor.
type local map[string]module.Module

func (l *local) Call(ctx context.Context, id string, inputs map[string]any, _ ...module.CallOption) (map[string]any, error) {
	parent := module.FromContext(ctx)
	if parent == nil {
		parent = module.NewContext(module.ContextOptions{})
	}
	c := parent.Enter(id, module.CallScope{})
	if err := c.BindExecutor(l); err != nil {
		return nil, err
	}
	return (*l)[id].Execute(module.WithContext(ctx, c), inputs)
}

func ExampleCall() {
	add := module.New("math.add", "Add two numbers",
		func(ctx context.Context, in AddIn) (AddOut, error) {
			fmt.Println("called by", module.FromContext(ctx).CallerID())
			return AddOut{Sum: in.A + in.B}, nil
		})
	double := module.New("math.double", "Double a number",
		func(ctx context.Context, in AddOut) (AddOut, error) {
			return module.CallAs[AddOut](ctx, "math.add", AddIn{A: in.Sum, B: in.Sum})
		})
	x := &local{"math.add": add, "math.double": double}

	out, err := x.Call(context.Background(), "math.double", map[string]any{"sum": 21.0})
	fmt.Println(out["sum"], err)

	_, err = module.Call(context.Background(), "math.add", nil)
	fmt.Println(err)
	// Output:
	// called by math.double
	// 42 <nil>
	// CONTEXT_BINDING_ERROR: nested call of "math.add" outside a call
}

func ExampleWithPreview() {
	type deletion struct {
		User string `json:"user"`
	}
	m := module.New("users.delete", "Delete a user",
		func(context.Context, deletion) (struct{}, error) { return struct{}{}, nil },
		module.WithAnnotations(module.Annotations{Destructive: true}),
		module.WithPreview(func(_ context.Context, in deletion) (*module.PreviewResult, error) {
			return &module.PreviewResult{Changes: []module.Change{{
				Action: "delete", Target: "users." + in.User, Summary: "Permanently delete user " + in.User,
				Before: module.Known(map[string]any{"id": in.User}),
			}}}, nil
		}))

	preview, err := m.Preview(context.Background(), map[string]any{"user": "42"})
	fmt.Println(preview.Changes[0].Summary, err)
	// Output:
	// Permanently delete user 42 <nil>
}
