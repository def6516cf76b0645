package bus

import (
	"log/slog"
	"sync"
	"time"
)

// calmLog logs each message at most once a second, so that a hostile peer
// cannot fill the log, and says how many it left out.
type calmLog struct {
	log *slog.Logger

	mu    sync.Mutex
	state map[string]*calmState
}

type calmState struct {
	last    time.Time
	skipped int
}

func newCalmLog(log *slog.Logger) *calmLog {
	return &calmLog{log: log, state: map[string]*calmState{}}
}

// warn logs a constant message; messages, not their values, are what is limited.
func (c *calmLog) warn(msg string, args ...any) {
	c.mu.Lock()
	s := c.state[msg]
	if s == nil {
		s = &calmState{}
		c.state[msg] = s
	}
	if now := time.Now(); now.Sub(s.last) >= time.Second {
		if s.skipped > 0 {
			args = append(args, "left_out", s.skipped)
		}
		s.last, s.skipped = now, 0
		c.mu.Unlock()
		c.log.Warn(msg, args...)
		return
	}
	s.skipped++
	c.mu.Unlock()
}
