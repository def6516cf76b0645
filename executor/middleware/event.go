package middleware

import "time"

// HookEvent is one hook that ran, as the trace of a call shows it.
type HookEvent struct {
	Middleware string
	// Hook is before, after or on_error.
	Hook     string
	Duration time.Duration
	// Replaced is true when a before hook replaced the inputs or an after hook the
	// output.
	Replaced bool
	// Recovery is output or retry when an error hook offered one, else "".
	Recovery string
	// Err is how the hook itself failed.
	Err error
}

// Watch arranges for watch to be told of every hook that runs for this call, in
// order and in the call's goroutine; nil, as it is without Watch, tells nobody.
func (c *Call) Watch(watch func(HookEvent)) { c.watch = watch }

// started is when a hook that is watched began, zero for one that is not.
func (c *Call) started() time.Time {
	if c.watch == nil {
		return time.Time{}
	}
	return time.Now()
}

func (c *Call) ran(e *entry, hook string, started time.Time, replaced bool, r Recovery, err error) {
	if c.watch == nil {
		return
	}
	event := HookEvent{Middleware: e.name, Hook: hook, Duration: time.Since(started), Replaced: replaced && err == nil, Err: err}
	switch {
	case err != nil:
	case r.Output != nil:
		event.Recovery = RecoveryOutput
	case r.Retry != nil:
		event.Recovery = RecoveryRetry
	}
	c.watch(event)
}

// The kinds of recovery in a [HookEvent].
const (
	RecoveryOutput = "output"
	RecoveryRetry  = "retry"
)
