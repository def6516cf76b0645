package module

import "context"

// Suspender is a module that hands over what it knows when it is replaced by a
// newer version of itself. OnSuspend is called once its calls have ended and
// before OnUnload. The state must have a JSON form; nil hands over nothing. An
// error is logged and hands over nothing (protocol §12.7).
type Suspender interface {
	OnSuspend(ctx context.Context) (map[string]any, error)
}

// Resumer is a module that takes over what its predecessor knew. OnResume is
// called after OnLoad and before the module becomes visible, and only when there
// is a state. An error is logged and stops nothing.
type Resumer interface {
	OnResume(ctx context.Context, state map[string]any) error
}

// Describer is a module that explains itself in words, for people and models,
// in place of the text made from its descriptor.
type Describer interface{ Describe() string }

// Discreet is a module that cannot mark its secrets in its schema, because what
// is one depends on the other inputs: the value of a setting does on its key.
// SensitiveInputs names the inputs of this call that are masked besides those
// that the schema marks. It is called with inputs that were not validated, for
// calls that are looked at or that fail, from any goroutine; it must not modify
// them. A panic in it masks every input.
type Discreet interface {
	SensitiveInputs(inputs map[string]any) []string
}

// Inliner is a module that, when RunsInline says so, computes and returns by itself
// within microseconds: it neither waits for anything nor calls other modules. The
// executor runs it in the goroutine of its caller and saves the one that it gives
// every other module, which costs more than all the rest of such a call.
//
// What is given up is the promise that the caller is not held by a module that does
// not stop: a result that comes too late is still MODULE_TIMEOUT, but only once it
// is there. A module that turns out to take long gets a goroutine from then on.
// RunsInline is asked once, when the module is registered.
type Inliner interface{ RunsInline() bool }
