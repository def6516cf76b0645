package module

import "sync"

// Formatter writes an error in the form of one adapter, such as "mcp", "a2a" or
// "cli". c is nil outside a call. The result belongs to the caller.
type Formatter func(err *Error, c *Context) map[string]any

// FormatterRegistry holds one formatter for each adapter (protocol,
// ErrorFormatterRegistry); it is a value of the program, not of the process. The
// zero value is ready; it must not be copied. Safe for concurrent use.
type FormatterRegistry struct {
	mu         sync.RWMutex
	formatters map[string]Formatter
}

// NewFormatterRegistry makes an empty registry.
func NewFormatterRegistry() *FormatterRegistry { return &FormatterRegistry{} }

// Register sets the formatter of an adapter. A second one is
// ERROR_FORMATTER_DUPLICATE; an empty name or nil formatter is
// GENERAL_INVALID_INPUT.
func (r *FormatterRegistry) Register(adapter string, f Formatter) error {
	if adapter == "" || f == nil {
		return Errorf(CodeInvalidInput, "an error formatter needs an adapter's name and a function")
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, taken := r.formatters[adapter]; taken {
		return Errorf(CodeErrorFormatterDuplicate, "adapter %s has an error formatter already", adapter).
			WithDetails(map[string]any{"adapter": adapter})
	}
	if r.formatters == nil {
		r.formatters = map[string]Formatter{}
	}
	r.formatters[adapter] = f
	return nil
}

// Get returns the formatter of an adapter.
func (r *FormatterRegistry) Get(adapter string) (Formatter, bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	f, ok := r.formatters[adapter]
	return f, ok
}

// IsRegistered reports whether an adapter has a formatter.
func (r *FormatterRegistry) IsRegistered(adapter string) bool {
	_, ok := r.Get(adapter)
	return ok
}

// Format writes err for an adapter. Without a formatter, and when the formatter
// panics or returns nil, the result is [Error.Map]: an error always gets out. A
// nil err gives nil.
func (r *FormatterRegistry) Format(adapter string, err *Error, c *Context) (out map[string]any) {
	if err == nil {
		return nil
	}
	f, ok := r.Get(adapter)
	if !ok {
		return err.Map()
	}
	defer func() {
		if recover() != nil || out == nil {
			out = err.Map()
		}
	}()
	return f(err, c)
}
