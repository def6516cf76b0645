package cancel

import (
	"context"
	"errors"
	"strings"
	"time"
)

// Reason says in one word why a call was stopped. The list is closed; the
// values travel on the wire.
type Reason string

// The reasons a call stops early.
const (
	Caller     Reason = "caller"      // the caller, a program or a person, asked for it
	Parent     Reason = "parent"      // the call that made this one is over
	Timeout    Reason = "timeout"     // a timeout, deadline or budget ran out
	Shutdown   Reason = "shutdown"    // the process is draining and its grace is over
	Remote     Reason = "remote"      // a cancel notice came over the bus
	LeaseLost  Reason = "lease_lost"  // another worker owns the task now
	CallerGone Reason = "caller_gone" // the calling process no longer answers
	NodeLost   Reason = "node_lost"   // the process running the call no longer answers
)

// Cause is the reason a token or context was cancelled, with who asked for it
// and when. It is an error, so it can be the cause of a context. A Cause is not
// changed after it was made and may be shared.
type Cause struct {
	Reason Reason
	By     string    // who asked: an identity, node or component; may be empty
	Text   string    // free text for people; may be empty
	At     time.Time // when it was asked for
}

// Because returns a Cause stamped with the present time. by and text may be
// empty.
func Because(reason Reason, by, text string) *Cause {
	return &Cause{Reason: reason, By: by, Text: text, At: time.Now()}
}

// Error returns the reason, who asked and the text, as far as they are known:
// "timeout by node-7: budget of 5s is spent".
func (c *Cause) Error() string {
	var b strings.Builder
	if c.Reason == "" {
		b.WriteString("unknown reason")
	} else {
		b.WriteString(string(c.Reason))
	}
	if c.By != "" {
		b.WriteString(" by ")
		b.WriteString(c.By)
	}
	if c.Text != "" {
		b.WriteString(": ")
		b.WriteString(c.Text)
	}
	return b.String()
}

// ReasonOf returns the reason carried by err or by an error it wraps. An error
// without a [Cause] is Timeout when it is context.DeadlineExceeded and Caller
// when it is context.Canceled. Any other error, and nil, give "".
func ReasonOf(err error) Reason {
	if c, ok := errors.AsType[*Cause](err); ok && c != nil {
		return c.Reason
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return Timeout
	case errors.Is(err, context.Canceled):
		return Caller
	}
	return ""
}
