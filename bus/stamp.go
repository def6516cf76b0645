package bus

import (
	"sync/atomic"
	"time"
)

// settleTime is how long after our own reconnect the absence of others proves
// nothing: they may still be on their way back.
const settleTime = 3 * time.Second

// stamp is a moment that several goroutines read and write. The zero value is
// long ago.
type stamp struct{ at atomic.Int64 }

func (s *stamp) now() { s.at.Store(time.Now().UnixNano()) }

// within reports whether the moment is less than d ago.
func (s *stamp) within(d time.Duration) bool {
	at := s.at.Load()
	return at != 0 && time.Since(time.Unix(0, at)) < d
}
