package module

import (
	"context"
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
	err       error
	in        *decoder
}

var (
	_ Module      = (*Func)(nil)
	_ Previewer   = (*Func)(nil)
	_ Preflighter = (*Func)(nil)
	_ Checker     = (*Func)(nil)
)

// Option configures a module made by [New].
type Option func(*Func)

// New makes a module from a function. The schemas are inferred from In and Out
// (json tags name the properties; schema.For says what else is read), unless an
// option gives them. In and Out are structs or map[string]any. A type without a
// schema is reported when the module is registered.
func New[In, Out any](id, description string, fn func(ctx context.Context, in In) (Out, error), opts ...Option) *Func {
	f := &Func{desc: Descriptor{ID: id, Description: description}, in: newDecoder()}
	f.exec = func(ctx context.Context, inputs map[string]any) (map[string]any, error) {
		var in In
		if err := f.in.decode(inputs, reflect.ValueOf(&in).Elem(), ""); err != nil {
			return nil, err
		}
		out, err := fn(ctx, in)
		if err != nil {
			return nil, err
		}
		return outputMap(out)
	}
	f.in.prepare(reflect.TypeFor[In]())
	for _, o := range opts {
		o(f)
	}
	if f.desc.InputSchema == nil {
		f.desc.InputSchema = inferred[In](f)
	}
	if f.desc.OutputSchema == nil {
		f.desc.OutputSchema = inferred[Out](f)
	}
	return f
}

// outputMap keeps a nil map nil, since returning nothing is an error that the
// executor reports.
func outputMap(out any) (map[string]any, error) {
	if m, ok := out.(map[string]any); ok {
		if m == nil {
			return nil, nil
		}
		return m, nil
	}
	m, err := ToMap(out)
	if err != nil {
		return nil, Errorf(CodeModuleExecuteError, "the output has no JSON form: %w", err)
	}
	return m, nil
}

func inferred[T any](f *Func) map[string]any {
	doc, err := schema.For[T]()
	if err != nil && f.err == nil {
		f.err = Errorf(CodeFuncMissingTypeHint, "module %s: %s has no schema: %w", quoteID(f.desc.ID), reflect.TypeFor[T](), err)
	}
	return doc
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

// WithInputSchema gives the input schema instead of inferring it.
func WithInputSchema(doc map[string]any) Option { return func(f *Func) { f.desc.InputSchema = doc } }

// WithOutputSchema gives the output schema instead of inferring it.
func WithOutputSchema(doc map[string]any) Option { return func(f *Func) { f.desc.OutputSchema = doc } }

// WithPreview adds a prediction of what a call would change. It must have no
// side effects. In is the module's input type.
func WithPreview[In any](fn func(ctx context.Context, in In) (*PreviewResult, error)) Option {
	return func(f *Func) {
		f.preview = func(ctx context.Context, inputs map[string]any) (*PreviewResult, error) {
			var in In
			if err := FromMap(inputs, &in); err != nil {
				return nil, err
			}
			return fn(ctx, in)
		}
	}
}

// WithPreflight adds advisory warnings. In is the module's input type.
func WithPreflight[In any](fn func(ctx context.Context, in In) ([]string, error)) Option {
	return func(f *Func) {
		f.preflight = func(ctx context.Context, inputs map[string]any) ([]string, error) {
			var in In
			if err := FromMap(inputs, &in); err != nil {
				return nil, err
			}
			return fn(ctx, in)
		}
	}
}
