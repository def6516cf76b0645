package task

import (
	"sync"
	"time"

	"github.com/apbus/apbus/schema"
)

// shape is what a writer makes of the description of a module.
type shape struct {
	known         bool
	hosts         int
	rerun         bool // running it twice does no harm
	input, output *schema.Compiled
	hash          string
	asked         time.Time
}

// shapes remembers descriptions for a moment, and their compiled schemas for as long
// as they do not change.
type shapes struct {
	describe func(string) (Described, bool)
	cache    *schema.Cache

	mu  sync.Mutex
	mem map[string]*shape
}

func (s *shapes) init(describe func(string) (Described, bool)) {
	s.describe, s.cache, s.mem = describe, schema.NewCache(), make(map[string]*shape)
}

// of returns the shape of a module, never nil. It must not be changed.
func (s *shapes) of(moduleID string) *shape {
	now := time.Now()
	s.mu.Lock()
	old := s.mem[moduleID]
	s.mu.Unlock()
	if old != nil && now.Sub(old.asked) < describeFor {
		return old
	}
	fresh := s.ask(moduleID, old)
	if fresh.known { // what is not known yet may be in a moment, when its first node has started
		fresh.asked = now
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.mem) > 10_000 {
		clear(s.mem)
	}
	s.mem[moduleID] = fresh
	return fresh
}

func (s *shapes) ask(moduleID string, old *shape) *shape {
	d, ok := s.describe(moduleID)
	if !ok {
		if old != nil && old.known { // its hosts are gone, its schema is still the best guess
			stale := *old
			stale.hosts = 0
			return &stale
		}
		return &shape{}
	}
	sh := &shape{known: true, hosts: d.Hosts, hash: d.Descriptor.Hash()}
	a := d.Descriptor.Annotations
	sh.rerun = a.Idempotent || a.Readonly
	if old != nil && old.known && old.hash == sh.hash && sh.hash != "" {
		sh.input, sh.output = old.input, old.output
		return sh
	}
	// A schema that does not compile refuses nothing: its owner will.
	sh.input, _ = s.cache.Compile(d.Descriptor.InputSchema)
	sh.output, _ = s.cache.Compile(d.Descriptor.OutputSchema)
	return sh
}

// recall returns what is remembered of a module, without asking again.
func (s *shapes) recall(moduleID string) *shape {
	s.mu.Lock()
	defer s.mu.Unlock()
	if sh := s.mem[moduleID]; sh != nil {
		return sh
	}
	return &shape{}
}
