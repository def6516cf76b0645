package bus

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/apbus/apbus/module"
)

// moduleSubs keeps the subscriptions in line with what the host holds: one for
// each module and version token, so that 503 means nobody hosts it.
type moduleSubs struct {
	node *Node

	mu     sync.Mutex
	subs   map[string]*moduleSub
	closed bool
}

type moduleSub struct {
	major int
	list  []Subscription
}

// update subscribes to new modules and leaves those that are gone. What was
// routed to a subscription it leaves is still handled.
func (s *moduleSubs) update() error {
	left, err := s.follow()
	s.node.leave(left)
	return err
}

func (s *moduleSubs) follow() (left []Subscription, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, nil
	}
	held := map[string]bool{}
	var errs []error
	for _, d := range s.node.host.Descriptors() {
		held[d.ID] = true
		major := majorOf(d.EffectiveVersion())
		old := s.subs[d.ID]
		if old != nil && old.major == major {
			continue
		}
		sub, err := s.join(d, major)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		s.subs[d.ID] = sub
		if old != nil { // after the new one has joined, so that somebody always listens
			left = append(left, old.list...)
		}
	}
	for id, sub := range s.subs {
		if !held[id] {
			left = append(left, sub.list...)
			delete(s.subs, id)
		}
	}
	return left, errors.Join(errs...)
}

func (s *moduleSubs) join(d module.Descriptor, major int) (*moduleSub, error) {
	n, sub := s.node, &moduleSub{major: major}
	add := func(conn Conn, subject, queue string, handler func(*nats.Msg)) error {
		one, err := conn.Subscribe(subject, queue, handler)
		if err != nil {
			sub.leave()
			return err
		}
		sub.list = append(sub.list, one)
		return nil
	}
	for _, kind := range []string{kindCall, kindCheck} {
		receive := func(m *nats.Msg) { n.receive(kind, m) }
		if err := add(n.conns.Calls, n.subjects.any(kind, d.ID), queueGroup, receive); err != nil {
			return nil, err
		}
		if err := add(n.conns.Calls, n.subjects.major(kind, major, d.ID), queueGroup, receive); err != nil {
			return nil, err
		}
	}
	if err := add(n.conns.Control, n.subjects.cancelModule(d.ID), "", n.onCancelBroadcast); err != nil {
		return nil, err
	}
	return sub, nil
}

func (s *moduleSub) leave() {
	for _, one := range s.list {
		_ = one.Unsubscribe() // the connection is gone when it fails
	}
	s.list = nil
}

// close leaves all queue groups for good, and takes them out.
func (s *moduleSubs) close() []Subscription {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	var all []Subscription
	for _, sub := range s.subs {
		all = append(all, sub.list...)
	}
	clear(s.subs)
	return all
}

// drain leaves all queue groups for good. It returns when everything that came
// by them is answered or in its own goroutine, at the latest after limit.
func (s *moduleSubs) drain(limit time.Duration) error { return drainAll(s.close(), limit) }

func drainAll(subs []Subscription, limit time.Duration) error {
	ctx, stop := context.WithTimeoutCause(context.Background(), limit, errors.New("the bus did not answer"))
	defer stop()
	errs := make([]error, len(subs))
	var wg sync.WaitGroup
	for i, sub := range subs {
		wg.Go(func() { errs[i] = sub.Drain(ctx) })
	}
	wg.Wait()
	return errors.Join(errs...)
}
