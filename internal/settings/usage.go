package settings

import (
	"errors"
	"fmt"
)

// The exit codes of every binary.
const (
	ExitOK          = 0
	ExitFailed      = 1
	ExitUsage       = 2
	ExitInterrupted = 130
)

// ErrInterrupted is returned, or wrapped, by a run that a signal cut short.
var ErrInterrupted = errors.New("interrupted")

// UsageError is something the user got wrong: a flag, a variable, the
// configuration file, or settings that do not go together.
type UsageError struct {
	Program string // "" when not known
	Err     error
}

// Usagef makes a UsageError, for what a program finds wrong by itself.
func Usagef(format string, args ...any) *UsageError {
	return &UsageError{Err: fmt.Errorf(format, args...)}
}

// Error returns the message, with where to look for help when that is known.
func (e *UsageError) Error() string {
	if e.Program == "" {
		return e.Err.Error()
	}
	return fmt.Sprintf("%v\nRun %s --help for the flags.", e.Err, e.Program)
}

// Unwrap returns the cause.
func (e *UsageError) Unwrap() error { return e.Err }

// ExitCode maps what a program's run returned: nil is ExitOK, a [*UsageError]
// ExitUsage, [ErrInterrupted] ExitInterrupted, all else ExitFailed.
func ExitCode(err error) int {
	var usage *UsageError
	switch {
	case err == nil:
		return ExitOK
	case errors.As(err, &usage):
		return ExitUsage
	case errors.Is(err, ErrInterrupted):
		return ExitInterrupted
	}
	return ExitFailed
}
