package module

import "sync"

// redactedView is one redacted copy of a call's values. Making it walks the whole
// value, so it is put off until somebody reads it; most calls are never read.
type redactedView struct {
	once  sync.Once
	build func() map[string]any
	value map[string]any
}

func newRedactedView(build func() map[string]any) *redactedView {
	if build == nil {
		return nil
	}
	return &redactedView{build: build}
}

func (v *redactedView) get() map[string]any {
	if v == nil {
		return nil
	}
	v.once.Do(func() {
		build := v.build
		v.build = nil // it holds the values that must not be shown
		v.value = build()
	})
	return v.value
}

// SetRedactedInputs installs the redacted view of the inputs; nil takes it away.
// It is for the pipeline (steps 3 and 7). build runs at most once, on the first
// read, in whatever goroutine reads; it may read the other view.
func (c *Context) SetRedactedInputs(build func() map[string]any) {
	c.redactedInputs.Store(newRedactedView(build))
}

// SetRedactedOutput installs the redacted view of the output (step 9), as
// [Context.SetRedactedInputs] does.
func (c *Context) SetRedactedOutput(build func() map[string]any) {
	c.redactedOutput.Store(newRedactedView(build))
}

// RedactedInputs returns the inputs with sensitive values masked, nil before
// module lookup. The map must not be modified.
func (c *Context) RedactedInputs() map[string]any { return c.redactedInputs.Load().get() }

// RedactedOutput returns the output with sensitive values masked, nil before
// output validation. The map must not be modified.
func (c *Context) RedactedOutput() map[string]any { return c.redactedOutput.Load().get() }
