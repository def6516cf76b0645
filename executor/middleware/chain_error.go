package middleware

import (
	"slices"

	"github.com/apbus/apbus/module"
)

// ChainError says that a before or after hook failed. The executor takes it
// off, so that callers see the original error unchanged (core-executor seed,
// Error Unwrap Rule); errors.Is and errors.As see through it.
type ChainError struct {
	// Original is the hook's own error.
	Original error
	// Executed names the middlewares that had been entered, in order, the failing
	// one included.
	Executed []string
	// Failed names the failing one, Hook is "before" or "after".
	Failed, Hook string
}

// Error names the hook and its middleware, and says what went wrong there.
func (e *ChainError) Error() string {
	return e.Hook + " hook of middleware " + e.Failed + " failed: " + e.Original.Error()
}

// Unwrap returns the hook's own error.
func (e *ChainError) Unwrap() error { return e.Original }

// Coded returns e as MIDDLEWARE_CHAIN_ERROR, for readers that want the wrapper
// rather than the cause.
func (e *ChainError) Coded() *module.Error {
	names := make([]any, len(e.Executed))
	for i, n := range e.Executed {
		names[i] = n
	}
	return module.Wrap(module.CodeMiddlewareChain, e.Original, e.Hook+" hook of middleware "+e.Failed+" failed").
		WithDetails(map[string]any{"middleware": e.Failed, "hook": e.Hook, "executed_middlewares": names})
}

// PanicError is the cause of the GENERAL_INTERNAL_ERROR that stands for a hook
// that panicked. Its text does not quote the value, which may be sensitive.
type PanicError struct {
	Middleware, Hook string
	Value            any
	Stack            []byte
}

// Error names the middleware and the hook; the value of the panic may be sensitive and
// is left out.
func (e *PanicError) Error() string {
	return "middleware " + e.Middleware + " panicked in " + e.Hook
}

// Unwrap returns the panic value when it is an error.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}

func executedNames(entries []entry, n int) []string {
	names := make([]string, 0, n)
	for _, e := range entries[:n] {
		names = append(names, e.name)
	}
	return slices.Clip(names)
}
