package module

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/apbus/apbus/schema"
)

// Func is a module made from a Go function by [New].
type Func struct {
	desc      Descriptor
	exec      func(ctx context.Context, inputs map[string]any) (map[string]any, error)
	preview   func(ctx context.Context, inputs map[string]any) (*PreviewResult, error)
	preflight func(ctx context.Context, inputs map[string]any) ([]string, error)
	inline    bool
	err       error
}

var (
	_ Module      = (*Func)(nil)
	_ Previewer   = (*Func)(nil)
	_ Preflighter = (*Func)(nil)
	_ Checker     = (*Func)(nil)
	_ Inliner     = (*Func)(nil)
)

// Option configures a module made by [New].
type Option func(*Func)

// New makes a module from a function. The schemas are inferred from In and Out
// (json tags name the properties; [schema.Of] says what else is read), unless an
// option gives them. In and Out are structs, maps with string keys, pointers to
// them, or any. The types are studied once, here; a call then moves values between
// map and struct directly. Maps and members of type any hold the very values of
// the call's inputs, which must not be modified. A nil pointer or map as output
// means that the function returned nothing, which is MODULE_EXECUTE_ERROR.
//
// New does not fail: a nil fn (BINDING_NOT_CALLABLE) and a type that is no object
// or has no schema (FUNC_MISSING_TYPE_HINT for In, FUNC_MISSING_RETURN_TYPE for
// Out) are reported by [Func.Check], when the module is registered.
func New[In, Out any](id, description string, fn func(ctx context.Context, in In) (Out, error), opts ...Option) *Func {
	f := &Func{desc: Descriptor{ID: id, Description: description}}
	in, out := bind[In](), bind[Out]()
	f.exec = func(ctx context.Context, inputs map[string]any) (map[string]any, error) {
		v, err := in.decode(inputs)
		if err != nil {
			return nil, err
		}
		result, err := fn(ctx, v)
		if err != nil {
			return nil, err
		}
		return out.encode(&result)
	}
	for _, o := range opts {
		o(f)
	}
	if fn == nil {
		f.refuse(CodeBindingNotCallable, errors.New("it has no function"))
	}
	in.describe(f, &f.desc.InputSchema, CodeFuncMissingTypeHint)
	out.describe(f, &f.desc.OutputSchema, CodeFuncMissingReturnType)
	return f
}

// refuse keeps the first reason why the module cannot work.
func (f *Func) refuse(code Code, err error) {
	if f.err == nil {
		f.err = Errorf(code, "module %s: %w", quoteID(f.desc.ID), err).WithDetail("function_name", f.desc.ID)
	}
}

// binding moves values between T and maps.
type binding[T any] struct{ b *schema.Binding }

func bind[T any]() binding[T] { return binding[T]{schema.Bind(reflect.TypeFor[T]())} }

func (b binding[T]) decode(m map[string]any) (v T, err error) {
	err = decode(b.b, m, reflect.ValueOf(&v).Elem())
	return v, err
}

// encode leaves the bound on nesting to the executor, which looks at every output.
func (b binding[T]) encode(v *T) (map[string]any, error) {
	if m, ok := any(v).(*map[string]any); ok {
		return *m, nil
	}
	rv := reflect.ValueOf(v).Elem()
	switch rv.Kind() {
	case reflect.Pointer, reflect.Map, reflect.Interface:
		if rv.IsNil() {
			return nil, nil
		}
	}
	out, err := b.b.Encode(rv, schema.MaxDepth)
	if err != nil {
		return nil, Errorf(CodeModuleExecuteError, "the output has no JSON form: %w", err)
	}
	m, ok := out.(map[string]any)
	if !ok {
		return nil, Errorf(CodeModuleExecuteError, "the output is not an object")
	}
	return m, nil
}

// describe infers T's schema into *doc, unless an option gave one.
func (b binding[T]) describe(f *Func, doc *map[string]any, code Code) {
	t := reflect.TypeFor[T]()
	inferred, err := schema.Of(t)
	switch {
	case err != nil && *doc == nil:
		f.refuse(code, err)
	case err == nil && inferred["type"] != nil && inferred["type"] != "object":
		f.refuse(code, fmt.Errorf("%s is not an object", t))
	}
	if *doc == nil {
		*doc = inferred
	}
}

// Descriptor describes the module.
func (f *Func) Descriptor() Descriptor { return f.desc }

// Execute runs the function.
func (f *Func) Execute(ctx context.Context, inputs map[string]any) (map[string]any, error) {
	return f.exec(ctx, inputs)
}

// Preview runs the function given with [WithPreview]; without one it predicts nothing.
func (f *Func) Preview(ctx context.Context, inputs map[string]any) (*PreviewResult, error) {
	if f.preview == nil {
		return nil, nil
	}
	return f.preview(ctx, inputs)
}

// Preflight runs the function given with [WithPreflight].
func (f *Func) Preflight(ctx context.Context, inputs map[string]any) ([]string, error) {
	if f.preflight == nil {
		return nil, nil
	}
	return f.preflight(ctx, inputs)
}

// RunsInline reports whether [WithInline] was given.
func (f *Func) RunsInline() bool { return f.inline }

// Check reports a type that has no schema.
func (f *Func) Check() error { return f.err }

// WithAnnotations sets the annotations.
func WithAnnotations(a Annotations) Option { return func(f *Func) { f.desc.Annotations = a } }

// WithVersion sets the SemVer version.
func WithVersion(v string) Option { return func(f *Func) { f.desc.Version = v } }

// WithTags sets the tags.
func WithTags(tags ...string) Option { return func(f *Func) { f.desc.Tags = tags } }

// WithName sets the name shown to people.
func WithName(name string) Option { return func(f *Func) { f.desc.Name = name } }

// WithDocumentation sets the long description.
func WithDocumentation(text string) Option { return func(f *Func) { f.desc.Documentation = text } }

// WithExamples sets sample calls.
func WithExamples(examples ...Example) Option { return func(f *Func) { f.desc.Examples = examples } }

// WithMetadata sets free metadata, such as x-when-to-use.
func WithMetadata(m map[string]any) Option { return func(f *Func) { f.desc.Metadata = m } }

// WithTimeout sets the module's own limit; zero disables it.
func WithTimeout(d time.Duration) Option { return func(f *Func) { f.desc.Timeout = &d } }

// WithInline declares that the function computes and returns within microseconds,
// so that it may run in its caller's goroutine; see [Inliner] for what that gives up.
func WithInline() Option { return func(f *Func) { f.inline = true } }

// WithInputSchema gives the input schema instead of inferring it.
func WithInputSchema(doc map[string]any) Option { return func(f *Func) { f.desc.InputSchema = doc } }

// WithOutputSchema gives the output schema instead of inferring it.
func WithOutputSchema(doc map[string]any) Option { return func(f *Func) { f.desc.OutputSchema = doc } }

// WithPreview adds a prediction of what a call would change. It must have no
// side effects. In is the module's input type.
func WithPreview[In any](fn func(ctx context.Context, in In) (*PreviewResult, error)) Option {
	b := bind[In]()
	return func(f *Func) {
		f.preview = func(ctx context.Context, inputs map[string]any) (*PreviewResult, error) {
			in, err := b.decode(inputs)
			if err != nil {
				return nil, err
			}
			return fn(ctx, in)
		}
	}
}

// WithPreflight adds advisory warnings. In is the module's input type.
func WithPreflight[In any](fn func(ctx context.Context, in In) ([]string, error)) Option {
	b := bind[In]()
	return func(f *Func) {
		f.preflight = func(ctx context.Context, inputs map[string]any) ([]string, error) {
			in, err := b.decode(inputs)
			if err != nil {
				return nil, err
			}
			return fn(ctx, in)
		}
	}
}
