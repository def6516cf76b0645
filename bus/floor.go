package bus

import (
	"sync"
	"time"
)

// payloadFloor is the smallest max_payload of the nodes that have written to the
// catalogue lately: a message of that size reaches any of them. The zero value
// knows none.
type payloadFloor struct {
	mu       sync.Mutex
	now, old int64 // smallest of this period and of the one before, 0 for none
	since    time.Time
}

// note takes in one record. A node writes its record several times a period, so
// that one that is gone is forgotten after two.
func (f *payloadFloor) note(size int64) {
	if size <= 0 {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.turnLocked(time.Now())
	f.now = smaller(f.now, size)
}

// of returns the smaller of own and what is known.
func (f *payloadFloor) of(own int64) int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.turnLocked(time.Now())
	return smaller(smaller(f.now, f.old), own)
}

func (f *payloadFloor) turnLocked(now time.Time) {
	switch age := now.Sub(f.since); {
	case age >= 2*recordTTL:
		f.now, f.old, f.since = 0, 0, now
	case age >= recordTTL:
		f.now, f.old, f.since = 0, f.now, now
	}
}

// smaller takes zero for unlimited.
func smaller(a, b int64) int64 {
	if a == 0 || (b != 0 && b < a) {
		return b
	}
	return a
}
