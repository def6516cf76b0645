package contextwire

import "github.com/apbus/apbus/module"

// Limits bound what a decoder accepts; all of them are checked before memory is
// allocated for the value. A zero field means its default.
type Limits struct {
	// MaxBody is the largest body in bytes, default 64 MiB (bus.max_body).
	MaxBody int
	// MaxDepth is how deep lists and maps may be nested, default 64.
	MaxDepth int
	// MaxElements counts list items and map entries of the whole body, default
	// 1,000,000.
	MaxElements int
	// MaxHeader is the largest header block in bytes, default 16 KiB.
	MaxHeader int
	// MaxOverhead is how much memory, in bytes, the decoded value may take beyond
	// 8 × the body; default 16 MiB. Go needs over 300 bytes for a map of one
	// entry, so a list of small maps, which is ordinary, exceeds 8 × its bytes.
	MaxOverhead int
}

// DefaultLimits returns the limits of the wire protocol, section 3.
func DefaultLimits() Limits {
	return Limits{
		MaxBody: 64 << 20, MaxDepth: 64, MaxElements: 1_000_000, MaxHeader: 16 << 10,
		MaxOverhead: 16 << 20,
	}
}

func (l Limits) withDefaults() Limits {
	d := DefaultLimits()
	if l.MaxBody == 0 {
		l.MaxBody = d.MaxBody
	}
	if l.MaxDepth == 0 {
		l.MaxDepth = d.MaxDepth
	}
	if l.MaxElements == 0 {
		l.MaxElements = d.MaxElements
	}
	if l.MaxHeader == 0 {
		l.MaxHeader = d.MaxHeader
	}
	if l.MaxOverhead == 0 {
		l.MaxOverhead = d.MaxOverhead
	}
	return l
}

// CheckSize refuses a body of size bytes over MaxBody with
// BUS_PAYLOAD_TOO_LARGE; its details hold size and limit. Senders use it too.
func (l Limits) CheckSize(size int) error {
	if limit := l.withDefaults().MaxBody; size > limit {
		return TooLarge(int64(size), int64(limit))
	}
	return nil
}

// TooLarge makes the BUS_PAYLOAD_TOO_LARGE of a body of size bytes.
func TooLarge(size, limit int64) *module.Error {
	return module.Errorf(module.CodeBusPayloadTooLarge, "body of %d bytes is over the limit of %d", size, limit).
		WithDetails(map[string]any{"size": size, "limit": limit})
}
