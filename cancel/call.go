package cancel

import (
	"errors"
	"fmt"
	"time"
)

// ErrInFlight is returned by [Table.Begin] for a call that is running already.
var ErrInFlight = errors.New("the call is already in flight")

// Key names one attempt at one call.
type Key struct {
	Call    string // call ID
	Attempt int    // counted from 1 by the client; 0 when attempts are not counted
}

// Call describes one call in flight. Empty fields are unknown and match no
// selector.
type Call struct {
	Key
	Root       string // call ID of the call the tree began with
	Parent     string // call ID of the call that made this one
	Trace      string // trace ID
	ModuleID   string
	Issuer     string // who is responsible for the call; only they may cancel it
	CallerID   string // module that made the call
	IdentityID string
	Mode       string        // "call", "stream", …; free for the owner of the table
	StartedAt  time.Time     // set by Begin when zero
	Budget     time.Duration // time the caller gave; 0 is no limit
	Token      *Token        // what Cancel cancels; Begin makes one when nil
}

// The states of a call in flight.
const (
	StateRunning    = "running"
	StateCancelling = "cancelling" // told to stop, not yet ended
)

// CallView is a call as [Table.List] shows it.
type CallView struct {
	Call
	State string // StateRunning or StateCancelling
}

// Selector names the calls to cancel by exactly one of Call, Root, Parent,
// Trace and Issuer.
type Selector struct {
	Call    string
	Attempt int // with Call only; 0 is any attempt
	Root    string
	Parent  string
	Trace   string
	Issuer  string
}

// Valid returns an error unless exactly one field selects and the attempt
// belongs to a call.
func (s Selector) Valid() error {
	selecting := 0
	for f := range fieldCount {
		if s.value(f) != "" {
			selecting++
		}
	}
	switch {
	case selecting != 1:
		return fmt.Errorf("cancel selector: %d of call, root, parent, trace and issuer are set, want exactly one", selecting)
	case s.Attempt < 0:
		return errors.New("cancel selector: attempt is negative")
	case s.Attempt != 0 && s.Call == "":
		return errors.New("cancel selector: attempt without call")
	}
	return nil
}

// field is one of the properties calls are selected by.
type field int

const (
	fieldCall field = iota
	fieldRoot
	fieldParent
	fieldTrace
	fieldIssuer
	fieldCount
)

func (s Selector) value(f field) string {
	switch f {
	case fieldCall:
		return s.Call
	case fieldRoot:
		return s.Root
	case fieldParent:
		return s.Parent
	case fieldTrace:
		return s.Trace
	default:
		return s.Issuer
	}
}

// field returns the one field that selects.
func (s Selector) field() field {
	for f := range fieldCount {
		if s.value(f) != "" {
			return f
		}
	}
	return fieldCount
}

func (c *Call) value(f field) string {
	switch f {
	case fieldCall:
		return c.Call
	case fieldRoot:
		return c.Root
	case fieldParent:
		return c.Parent
	case fieldTrace:
		return c.Trace
	default:
		return c.Issuer
	}
}

// Tombstoned is the error of [Table.Begin] for a call whose cancel came first.
// It matches [ErrCancelled] and wraps Cause.
type Tombstoned struct {
	Cause *Cause // why the call was cancelled
}

// Error says that the call was cancelled before it began, and why.
func (t *Tombstoned) Error() string {
	return "cancelled before it began: " + t.Cause.Error()
}

// Unwrap returns the cause and ErrCancelled.
func (t *Tombstoned) Unwrap() []error { return []error{ErrCancelled, t.Cause} }
