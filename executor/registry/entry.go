package registry

import (
	"sync"
	"sync/atomic"

	"github.com/apbus/apbus/module"
	"github.com/apbus/apbus/schema"
)

// Entry is one registered module. Its fields do not change.
type Entry struct {
	Module module.Module
	// Descriptor is what callers see of the module. Its requires_approval and
	// destructive annotations unite what the module says with what was declared
	// for it (decisions D-96, D-125). It must not be modified.
	Descriptor *module.Descriptor
	// Input and Output are the compiled schemas.
	Input, Output *schema.Compiled

	// Previewer, Preflighter and Streamer are the module itself where it is one,
	// else nil.
	Previewer   module.Previewer
	Preflighter module.Preflighter
	Streamer    module.Streamer

	// Source is where the module comes from, "" when nobody said.
	Source string

	declared Declaration
	internal bool
	discreet module.Discreet // the module itself where it is one, else nil
	inline   atomic.Bool
	strikes  atomic.Int32

	// refs counts calls that hold the entry; closing takes closed off it, so that
	// one number says both.
	refs     atomic.Int64
	idle     chan struct{} // closed when the entry is closed and nobody holds it
	idleOnce sync.Once
}

// closed is far below any number of calls that could be in flight.
const closed = -1 << 62

// Acquire counts one call in. It reports false when the module is being
// unregistered; then the call must fail with MODULE_NOT_FOUND and not Release.
func (e *Entry) Acquire() bool {
	if e.refs.Add(1) > 0 {
		return true
	}
	e.Release()
	return false
}

// Release counts one call out. It must be called once for each Acquire that
// returned true, when the module's code has returned.
func (e *Entry) Release() {
	if e.refs.Add(-1) == closed {
		e.idleOnce.Do(func() { close(e.idle) })
	}
}

// InFlight returns how many calls hold the entry.
func (e *Entry) InFlight() int {
	n := e.refs.Load()
	if n < 0 {
		n -= closed
	}
	return int(n)
}

// close refuses new calls. It must be called once.
func (e *Entry) close() {
	if e.refs.Add(closed) == closed {
		e.idleOnce.Do(func() { close(e.idle) })
	}
}

// Inline reports whether the module may run in its caller's goroutine (see
// module.Inliner).
func (e *Entry) Inline() bool { return e.inline.Load() }

// Strike counts n against a module that ran inline and took long, of three that it
// may have between two runs that did not; then it gets a goroutine for good. A busy
// machine may take the processor away in the middle of a run, but hardly in three
// one after the other. Strike reports whether this was the last one.
func (e *Entry) Strike(n int32) bool {
	return e.strikes.Add(n) >= maxStrikes && e.inline.CompareAndSwap(true, false)
}

// Prompt forgets the strikes, after a run that did not take long.
func (e *Entry) Prompt() {
	if e.strikes.Load() != 0 {
		e.strikes.Store(0)
	}
}

const maxStrikes = 3
