package module

import (
	"sync"
	"sync/atomic"

	"github.com/apbus/apbus/schema"
)

// redactedViews are the two views of a call, and room for the first of each kind.
type redactedViews struct {
	inputs, output           atomic.Pointer[redactedView]
	firstInputs, firstOutput redactedView
	inputsUsed, outputUsed   bool // by the pipeline only
}

// redactedView is one redacted copy of a call's values. Making it walks the whole
// value, so it is put off until somebody reads it; most calls are never read.
type redactedView struct {
	once  sync.Once
	value map[string]any
	// How to make value: build, or what is redacted. Taken away once it was made,
	// since it holds the values that must not be shown.
	build    func() map[string]any
	redactor *schema.Redactor
	compiled *schema.Compiled
	raw      map[string]any
}

func (v *redactedView) get() map[string]any {
	if v == nil {
		return nil
	}
	v.once.Do(v.make)
	return v.value
}

func (v *redactedView) make() {
	build, redactor, compiled, raw := v.build, v.redactor, v.compiled, v.raw
	v.build, v.redactor, v.compiled, v.raw = nil, nil, nil, nil
	if build != nil {
		v.value = build()
		return
	}
	v.value = redactor.Redact(compiled, raw)
}

func (s *redactedViews) newInputs() *redactedView {
	if s.inputsUsed {
		return &redactedView{}
	}
	s.inputsUsed = true
	return &s.firstInputs
}

func (s *redactedViews) newOutput() *redactedView {
	if s.outputUsed {
		return &redactedView{}
	}
	s.outputUsed = true
	return &s.firstOutput
}

// ownViews makes the views of a Context that no pipeline made.
func (c *Context) ownViews() *redactedViews {
	if c.views == nil {
		c.views = &redactedViews{}
	}
	return c.views
}

// SetRedactedInputs installs the redacted view of the inputs; nil takes it away.
// It is for the pipeline (steps 3 and 7), which may call it while others read. build runs at most once, on the first
// read, in whatever goroutine reads; it may read the other view.
func (c *Context) SetRedactedInputs(build func() map[string]any) {
	if build == nil {
		c.ownViews().inputs.Store(nil)
		return
	}
	v := c.ownViews().newInputs()
	v.build = build
	c.views.inputs.Store(v)
}

// ShowInputs is [Context.SetRedactedInputs] of inputs masked by r as their schema,
// which may be nil, and their names say.
func (c *Context) ShowInputs(r *schema.Redactor, compiled *schema.Compiled, inputs map[string]any) {
	v := c.ownViews().newInputs()
	v.redactor, v.compiled, v.raw = r, compiled, inputs
	c.views.inputs.Store(v)
}

// SetRedactedOutput installs the redacted view of the output (step 9), as
// [Context.SetRedactedInputs] does.
func (c *Context) SetRedactedOutput(build func() map[string]any) {
	if build == nil {
		c.ownViews().output.Store(nil)
		return
	}
	v := c.ownViews().newOutput()
	v.build = build
	c.views.output.Store(v)
}

// ShowOutput is [Context.ShowInputs] for the output.
func (c *Context) ShowOutput(r *schema.Redactor, compiled *schema.Compiled, output map[string]any) {
	v := c.ownViews().newOutput()
	v.redactor, v.compiled, v.raw = r, compiled, output
	c.views.output.Store(v)
}

// RedactedInputs returns the inputs with sensitive values masked, nil before
// module lookup. The map must not be modified.
func (c *Context) RedactedInputs() map[string]any {
	if c.views == nil {
		return nil
	}
	return c.views.inputs.Load().get()
}

// RedactedOutput returns the output with sensitive values masked, nil before
// output validation. The map must not be modified.
func (c *Context) RedactedOutput() map[string]any {
	if c.views == nil {
		return nil
	}
	return c.views.output.Load().get()
}
