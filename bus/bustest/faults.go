package bustest

import (
	"slices"

	"github.com/nats-io/nats.go"
)

// Faults are what happens to messages at one place of a [Mem]. The rules are
// tried in the order they were made, and the first that matches decides. Safe
// for concurrent use.
type Faults struct {
	mem   *Mem
	rules []*rule // guarded by the broker's lock
}

type rule struct {
	matches func(m *nats.Msg) bool
	left    int // messages it still applies to, negative without end
	act     func(m *nats.Msg, pass func(*nats.Msg))
	held    []func()
}

// Drop loses the next n messages whose subject matches pattern, all of them
// when n is negative.
func (f *Faults) Drop(pattern string, n int) {
	f.add(pattern, n, func(*nats.Msg, func(*nats.Msg)) {})
}

// DropIf loses every message for which lose returns true, until the returned
// func is called. lose must not block or use the broker.
func (f *Faults) DropIf(lose func(m *nats.Msg) bool) (stop func()) {
	r := &rule{matches: lose, left: -1, act: func(*nats.Msg, func(*nats.Msg)) {}}
	return f.install(r)
}

// Duplicate delivers the next n messages whose subject matches pattern twice.
func (f *Faults) Duplicate(pattern string, n int) {
	f.add(pattern, n, func(m *nats.Msg, pass func(*nats.Msg)) { pass(m); pass(m) })
}

// Hold keeps back every message whose subject matches pattern. The returned
// func lets them go, in order, and ends the hold.
func (f *Faults) Hold(pattern string) (release func()) {
	r := &rule{left: -1, matches: func(m *nats.Msg) bool { return Matches(pattern, m.Subject) }}
	r.act = func(m *nats.Msg, pass func(*nats.Msg)) { r.held = append(r.held, func() { pass(m) }) }
	remove := f.install(r)
	return func() {
		remove()
		f.mem.mu.Lock()
		defer f.mem.mu.Unlock()
		for _, deliver := range r.held {
			deliver()
		}
		r.held = nil
	}
}

func (f *Faults) add(pattern string, n int, act func(*nats.Msg, func(*nats.Msg))) {
	f.install(&rule{left: n, act: act, matches: func(m *nats.Msg) bool { return Matches(pattern, m.Subject) }})
}

func (f *Faults) install(r *rule) (remove func()) {
	f.mem.mu.Lock()
	defer f.mem.mu.Unlock()
	// Spent rules go when a new one comes.
	f.rules = append(slices.DeleteFunc(f.rules, func(r *rule) bool { return r.left == 0 }), r)
	return func() {
		f.mem.mu.Lock()
		defer f.mem.mu.Unlock()
		r.left = 0
	}
}

// applyLocked runs the first matching rule, or passes the message on.
func (f *Faults) applyLocked(m *nats.Msg, pass func(*nats.Msg)) {
	for _, r := range f.rules {
		if r.left == 0 || !r.matches(m) {
			continue
		}
		if r.left > 0 {
			r.left--
		}
		r.act(m, pass)
		return
	}
	pass(m)
}
