package middleware

import (
	"sync"
	"time"
)

// CircuitState is the state of one circuit.
type CircuitState string

// The states of a circuit (protocol §11).
const (
	CircuitClosed   CircuitState = "CLOSED"
	CircuitOpen     CircuitState = "OPEN"
	CircuitHalfOpen CircuitState = "HALF_OPEN"
)

// circuit is the window and state of one caller and module.
type circuit struct {
	mu       sync.Mutex
	state    CircuitState
	openedAt time.Time
	probing  bool   // half open, and a call is trying
	epoch    uint64 // changes with the state; a verdict on an earlier one is void

	window   []bool // ring, true is a failure
	next     int
	samples  int
	failures int
}

// pass is the leave that a call got.
type pass struct {
	state CircuitState
	epoch uint64
	probe bool
}

type verdict int8

const (
	verdictNone verdict = iota
	verdictSuccess
	verdictFailure
)

// admit lets a call through or says how long the circuit stays open; a wait of 0
// is for somebody else's try.
func (c *circuit) admit(recovery time.Duration) (p pass, wait time.Duration, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state == CircuitClosed {
		return pass{state: CircuitClosed, epoch: c.epoch}, 0, true
	}
	if c.state == CircuitOpen {
		if wait = recovery - time.Since(c.openedAt); wait > 0 {
			return pass{state: CircuitOpen}, wait, false
		}
		c.turn(CircuitHalfOpen)
	}
	if c.probing {
		return pass{state: CircuitHalfOpen}, 0, false
	}
	c.probing = true
	return pass{state: CircuitHalfOpen, epoch: c.epoch, probe: true}, 0, true
}

// settle counts the verdict on a call that had passed and returns the state that
// the circuit changed to, or "", and the share of failures.
func (c *circuit) settle(p pass, v verdict, cfg *BreakerConfig) (change CircuitState, rate float64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p.epoch != c.epoch {
		return "", 0
	}
	if p.probe {
		c.probing = false
	}
	if v == verdictNone {
		return "", 0
	}
	c.count(v == verdictFailure)
	rate = float64(c.failures) / float64(c.samples)
	switch {
	case p.probe && v == verdictSuccess:
		c.turn(CircuitClosed)
		c.next, c.samples, c.failures = 0, 0, 0 // what is left in the ring is overwritten before it is read
		return CircuitClosed, rate
	case p.probe, c.samples >= cfg.MinSamples && rate >= cfg.OpenThreshold:
		c.turn(CircuitOpen)
		c.openedAt = time.Now()
		return CircuitOpen, rate
	}
	return "", rate
}

func (c *circuit) turn(to CircuitState) {
	c.state, c.probing = to, false
	c.epoch++
}

func (c *circuit) count(failed bool) {
	if c.samples == len(c.window) {
		if c.window[c.next] {
			c.failures--
		}
	} else {
		c.samples++
	}
	c.window[c.next] = failed
	if failed {
		c.failures++
	}
	c.next = (c.next + 1) % len(c.window)
}

// current is the state as the next call would find it.
func (c *circuit) current(recovery time.Duration) CircuitState {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state == CircuitOpen && time.Since(c.openedAt) >= recovery {
		return CircuitHalfOpen
	}
	return c.state
}
