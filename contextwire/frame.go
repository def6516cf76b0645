package contextwire

import (
	"time"

	"github.com/apbus/apbus/module"
)

// FrameKind is the value of apbus-frame.
type FrameKind string

// The kinds of frames (wire protocol, section 4).
const (
	FrameAccept   FrameKind = "accept"
	FrameProgress FrameKind = "progress"
	// FrameTrace comes right before the terminal frame of a call that asked for
	// its trace; a reader that does not know it ignores it.
	FrameTrace  FrameKind = "trace"
	FrameData   FrameKind = "data"
	FrameEnd    FrameKind = "end"
	FrameResult FrameKind = "result"
	FrameError  FrameKind = "error"
)

// Terminal reports whether a frame of this kind is the last of its call.
func (k FrameKind) Terminal() bool {
	return k == FrameEnd || k == FrameResult || k == FrameError
}

// Known reports whether this version gives the kind a meaning; a frame of
// another kind is to be ignored.
func (k FrameKind) Known() bool {
	switch k {
	case FrameAccept, FrameProgress, FrameTrace, FrameData, FrameEnd, FrameResult, FrameError:
		return true
	}
	return false
}

// Frame is one reply message.
type Frame struct {
	Kind FrameKind
	// CallID is empty in data frames and in answers to control messages.
	CallID string
	// Node and Boot name the answering process; data frames do not carry them.
	Node, Boot string
	// ContentType is the body's. A data frame does not say it; it is found from
	// the first byte.
	ContentType ContentType
	// Seq is the number of a data frame from 0, and in an end frame the number of
	// data frames sent.
	Seq uint64
	// CreditTo is the subject for grants, in the accept frame of a stream.
	CreditTo string
	// Grace is how long the owner lets a module clean up after its time is over,
	// in an accept frame; 0 when it does not say.
	Grace time.Duration
	// Body is the map of trace, data, end and result frames, never nil after decoding
	// unless BodyRef is set.
	Body map[string]any
	// Progress is the body of a progress frame.
	Progress *module.ProgressReport
	// Err is the body of an error frame; RetryAfter comes with BUS_OVERLOADED.
	Err        *module.Error
	RetryAfter time.Duration
	// BodyRef says that the body is in the object store; see [Frame.DecodeBody].
	BodyRef *BodyRef
}
