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
