package executor_test

import (
	"context"
	"fmt"
	"strings"

	"github.com/apbus/apbus/executor"
	"github.com/apbus/apbus/executor/approval"
	"github.com/apbus/apbus/executor/middleware"
	"github.com/apbus/apbus/executor/registry"
	"github.com/apbus/apbus/module"
)

// A typed module: the schemas come from the Go types.
func Example() {
	type In struct {
		A float64 `json:"a"`
		B float64 `json:"b"`
	}
	type Out struct {
		Sum float64 `json:"sum"`
	}
	reg := registry.New(registry.Options{})
	if err := reg.Register(module.New("math.add", "Add two numbers",
		func(_ context.Context, in In) (Out, error) { return Out{in.A + in.B}, nil })); err != nil {
		fmt.Println(err)
		return
	}
	x, err := executor.New(reg, executor.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	out, err := x.Call(context.Background(), "math.add", map[string]any{"a": 1, "b": 2})
	fmt.Println(out["sum"], err)

	_, err = x.Call(context.Background(), "math.add", map[string]any{"a": 1})
	fmt.Println(module.CodeOf(err))
	// Output:
	// 3 <nil>
	// SCHEMA_VALIDATION_ERROR
}

// shout is a module written against the interface, with maps and its own schema.
type shout struct{}

func (shout) Descriptor() module.Descriptor {
	return module.Descriptor{
		ID: "text.shout", Description: "Add an exclamation mark",
		InputSchema: map[string]any{
			"type": "object", "required": []any{"text"},
			"properties": map[string]any{"text": map[string]any{"type": "string"}},
		},
	}
}

func (shout) Execute(_ context.Context, in map[string]any) (map[string]any, error) {
	return map[string]any{"text": in["text"].(string) + "!"}, nil
}

// A map module: it is written against the interface, with a schema of its own.
func Example_mapModule() {
	reg := registry.New(registry.Options{})
	if err := reg.Register(shout{}); err != nil {
		fmt.Println(err)
		return
	}
	x, err := executor.New(reg, executor.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	out, err := x.Call(context.Background(), "text.shout", map[string]any{"text": "hello"})
	fmt.Println(out["text"], err)
	_, err = x.Call(context.Background(), "text.shout", map[string]any{"text": 1})
	fmt.Println(module.CodeOf(err))
	// Output:
	// hello! <nil>
	// SCHEMA_VALIDATION_ERROR
}

// A stream: the module sends chunks, the caller ranges over them, and leaving the
// loop ends the module.
func ExampleExecutor_Stream() {
	type In struct {
		Text string `json:"text"`
	}
	type Word struct {
		Word string `json:"word"`
	}
	type Out struct { // the chunks, merged
		Word  string `json:"word,omitempty"`
		Count int    `json:"count"`
	}
	reg := registry.New(registry.Options{})
	if err := reg.Register(module.NewStream[In, Out]("text.words", "Stream the words of a text",
		func(_ context.Context, in In, send func(any) error) error {
			words := strings.Fields(in.Text)
			for _, w := range words {
				if err := send(Word{w}); err != nil {
					return err
				}
			}
			return send(map[string]any{"count": len(words)})
		})); err != nil {
		fmt.Println(err)
		return
	}
	x, err := executor.New(reg, executor.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	for chunk, err := range x.Stream(context.Background(), "text.words", map[string]any{"text": "to be or"}) {
		fmt.Println(chunk, err)
	}
	out, err := x.Call(context.Background(), "text.words", map[string]any{"text": "to be or"})
	fmt.Println(out, err)
	// Output:
	// map[word:to] <nil>
	// map[word:be] <nil>
	// map[word:or] <nil>
	// map[count:3] <nil>
	// map[count:3 word:or] <nil>
}

// A configuration may take steps out, set their fields and put registered kinds of
// steps in.
func ExampleStrategyFromConfig() {
	types := &executor.StepTypes{}
	if err := types.Register("stamp", func(config map[string]any) (*executor.Step, error) {
		return &executor.Step{Run: func(_ context.Context, p *executor.Pipeline) (*executor.StepResult, error) {
			fmt.Println(config["text"], p.ModuleID())
			return nil, nil
		}}, nil
	}); err != nil {
		fmt.Println(err)
		return
	}
	section := map[string]any{ // of a decoded configuration file
		"remove":    []any{"output_validation"},
		"configure": map[string]any{"input_validation": map[string]any{"timeout_ms": 500}},
		"steps": []any{map[string]any{
			"name": "stamped", "type": "stamp", "after": "execute", "config": map[string]any{"text": "ran"},
		}},
	}
	reg := registry.New(registry.Options{})
	if err := reg.Register(shout{}); err != nil {
		fmt.Println(err)
		return
	}
	x, err := executor.New(reg, executor.Config{}, executor.WithPipeline(section, types))
	if err != nil {
		fmt.Println(err)
		return
	}
	out, err := x.Call(context.Background(), "text.shout", map[string]any{"text": "hi"})
	fmt.Println(out["text"], err)

	_, err = executor.StrategyFromConfig(map[string]any{
		"configure": map[string]any{"acl_check": map[string]any{"ignore_errors": true}},
	}, types)
	fmt.Println(module.CodeOf(err))
	// Output:
	// ran text.shout
	// hi! <nil>
	// PIPELINE_CONFIGURATION_ERROR
}

// A map module, and a nested call: the chain and the caller are kept by the
// executor.
func ExampleExecutor_Call_nested() {
	reg := registry.New(registry.Options{})
	greet := module.New("text.greet", "Greet somebody", func(ctx context.Context, in struct {
		Name string `json:"name"`
	}) (map[string]any, error) {
		return module.Call(ctx, "text.shout", map[string]any{"text": "hello " + in.Name})
	})
	for _, m := range []module.Module{shout{}, greet} {
		if err := reg.Register(m); err != nil {
			fmt.Println(err)
			return
		}
	}
	x, err := executor.New(reg, executor.Config{}, executor.WithObserver(executor.ObserverFunc(func(c executor.Completion) {
		fmt.Println(c.ModuleID, "called by", c.Context.CallerID(), "in", c.Context.CallChain())
	})))
	if err != nil {
		fmt.Println(err)
		return
	}
	out, err := x.Call(context.Background(), "text.greet", map[string]any{"name": "ana"})
	fmt.Println(out["text"], err)
	// Output:
	// text.shout called by text.greet in [text.greet text.shout]
	// text.greet called by  in [text.greet]
	// hello ana! <nil>
}

// Middleware sees every call, may replace inputs and output, and may recover a
// failure.
func ExampleWithMiddleware() {
	reg := registry.New(registry.Options{})
	if err := reg.Register(shout{}); err != nil {
		fmt.Println(err)
		return
	}
	fallback := &middleware.Funcs{
		Label: "fallback",
		OnFailure: func(_ context.Context, _ *middleware.Call, err *module.Error) (middleware.Recovery, error) {
			return middleware.Recovery{Output: map[string]any{"text": "(" + string(err.Code) + ")"}}, nil
		},
	}
	x, err := executor.New(reg, executor.Config{}, executor.WithMiddleware(fallback))
	if err != nil {
		fmt.Println(err)
		return
	}
	out, err := x.Call(context.Background(), "text.shout", map[string]any{"text": 5})
	fmt.Println(out["text"], err)
	// Output: (SCHEMA_VALIDATION_ERROR) <nil>
}

// An approval handler is asked before a module that requires it runs.
func ExampleWithApproval() {
	reg := registry.New(registry.Options{})
	drop := module.New("db.drop", "Drop a table", func(context.Context, map[string]any) (map[string]any, error) {
		return map[string]any{"dropped": true}, nil
	}, module.WithAnnotations(module.Annotations{Destructive: true, RequiresApproval: true}))
	if err := reg.Register(drop); err != nil {
		fmt.Println(err)
		return
	}
	x, err := executor.New(reg, executor.Config{}, executor.WithApproval(approval.Callback(
		func(_ context.Context, r *approval.Request) (*approval.Result, error) {
			if r.Arguments["table"] == "scratch" {
				return &approval.Result{Status: approval.Approved, ApprovedBy: "ana"}, nil
			}
			return &approval.Result{Status: approval.Rejected, Reason: "not that one"}, nil
		})))
	if err != nil {
		fmt.Println(err)
		return
	}
	out, err := x.Call(context.Background(), "db.drop", map[string]any{"table": "scratch"})
	fmt.Println(out, err)
	_, err = x.Call(context.Background(), "db.drop", map[string]any{"table": "users"})
	fmt.Println(module.CodeOf(err))
	// Output:
	// map[dropped:true] <nil>
	// APPROVAL_DENIED
}

// Validate checks a call and asks the module what it would change, without running
// it.
func ExampleExecutor_Validate() {
	type In struct {
		UserID int64 `json:"user_id"`
	}
	reg := registry.New(registry.Options{})
	remove := module.New("users.delete", "Delete a user",
		func(context.Context, In) (map[string]any, error) { return map[string]any{}, nil },
		module.WithAnnotations(module.Annotations{Destructive: true, RequiresApproval: true}),
		module.WithPreview(func(_ context.Context, in In) (*module.PreviewResult, error) {
			return &module.PreviewResult{Changes: []module.Change{{
				Action: "delete", Target: fmt.Sprintf("users.%d", in.UserID), Summary: "Permanently delete the user",
			}}}, nil
		}))
	if err := reg.Register(remove); err != nil {
		fmt.Println(err)
		return
	}
	x, err := executor.New(reg, executor.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	r := x.Validate(context.Background(), "users.delete", map[string]any{"user_id": 42})
	fmt.Println("valid", r.Valid, "needs approval", r.RequiresApproval)
	for _, c := range r.PredictedChanges {
		fmt.Println(c.Action, c.Target+":", c.Summary)
	}
	// Output:
	// valid true needs approval true
	// delete users.42: Permanently delete the user
}
