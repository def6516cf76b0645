package module

import "sync"

// redactedViews holds the redacted copies of a call's values. Making one walks
// the whole value, so it is put off until somebody reads it; most calls are
// never read.
type redactedViews struct {
	mu          sync.Mutex
	inputs      func() map[string]any
	output      func() map[string]any
	inputsValue map[string]any
	outputValue map[string]any
}

// SetRedactedInputs installs the redacted view of the inputs. It is for the
// pipeline (steps 3 and 7); make runs at most once, on the first read.
func (c *Context) SetRedactedInputs(make func() map[string]any) {
	c.redacted.mu.Lock()
	defer c.redacted.mu.Unlock()
	c.redacted.inputs, c.redacted.inputsValue = make, nil
}

// SetRedactedOutput installs the redacted view of the output (step 9).
func (c *Context) SetRedactedOutput(make func() map[string]any) {
	c.redacted.mu.Lock()
	defer c.redacted.mu.Unlock()
	c.redacted.output, c.redacted.outputValue = make, nil
}

// RedactedInputs returns the inputs with sensitive values masked, nil before
// module lookup. The map must not be modified.
func (c *Context) RedactedInputs() map[string]any {
	c.redacted.mu.Lock()
	defer c.redacted.mu.Unlock()
	if make := c.redacted.inputs; make != nil {
		c.redacted.inputsValue, c.redacted.inputs = make(), nil
	}
	return c.redacted.inputsValue
}

// RedactedOutput returns the output with sensitive values masked, nil before
// output validation. The map must not be modified.
func (c *Context) RedactedOutput() map[string]any {
	c.redacted.mu.Lock()
	defer c.redacted.mu.Unlock()
	if make := c.redacted.output; make != nil {
		c.redacted.outputValue, c.redacted.output = make(), nil
	}
	return c.redacted.outputValue
}
