package bus

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/apbus/apbus/module"
)

// moduleSubs keeps the subscriptions in line with what the host holds: one for
// each module and version token, so that 503 means nobody hosts it.
type moduleSubs struct {
	node *Node

	hosted atomic.Int64 // modules

	mu     sync.Mutex
	subs   map[string]*moduleSub
	closed bool
}

type moduleSub struct {
	major     int
	lasting   []Subscription // whatever the version
	versioned []Subscription // to the subjects of the major version
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
		gone, err := s.followModule(d)
		left = append(left, gone...)
		if err != nil {
			errs = append(errs, err)
		}
	}
	for id, sub := range s.subs {
		if !held[id] {
			left = append(left, sub.all()...)
			delete(s.subs, id)
		}
	}
	s.hosted.Store(int64(len(held)))
	return left, errors.Join(errs...)
}

// followModule subscribes to a new module, or to another version of a known one.
// The subjects without a version are not touched then: between two
// subscriptions of one process a server may find nobody.
func (s *moduleSubs) followModule(d module.Descriptor) (left []Subscription, err error) {
	major, sub := majorOf(d.EffectiveVersion()), s.subs[d.ID]
	switch {
	case sub == nil:
		sub = &moduleSub{}
		if sub.lasting, err = s.join(d.ID, s.node.subjects.any, true); err != nil {
			return nil, err
		}
	case sub.major == major:
		return nil, nil
	}
	at := func(kind, id string) string { return s.node.subjects.major(kind, major, id) }
	versioned, err := s.join(d.ID, at, false)
	if err != nil {
		if s.subs[d.ID] == nil {
			left = sub.lasting
		}
		return left, err
	}
	left, sub.versioned, sub.major = sub.versioned, versioned, major
	s.subs[d.ID] = sub
	return left, nil
}

// join subscribes to calls and checks at the subjects that at gives, and where
// asked to cancels of the module.
func (s *moduleSubs) join(id string, at func(kind, id string) string, cancels bool) (list []Subscription, err error) {
	n := s.node
	add := func(conn Conn, subject, queue string, handler func(*nats.Msg)) {
		if err != nil {
			return
		}
		var one Subscription
		if one, err = conn.Subscribe(subject, queue, handler); err == nil {
			list = append(list, one)
		}
	}
	for _, kind := range []string{kindCall, kindCheck} {
		if n.opts.NamedOnly {
			break
		}
		add(n.conns.Calls, at(kind, id), queueGroup, func(m *nats.Msg) { n.receive(kind, m) })
	}
	if cancels {
		add(n.conns.Control, n.subjects.cancelModule(id), "", n.onCancelBroadcast)
	}
	if err != nil {
		for _, one := range list {
			_ = one.Unsubscribe() // the connection is gone when it fails
		}
		return nil, err
	}
	return list, nil
}

func (s *moduleSub) all() []Subscription { return slices.Concat(s.lasting, s.versioned) }

// close leaves all queue groups for good, and takes them out.
func (s *moduleSubs) close() []Subscription {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	var all []Subscription
	for _, sub := range s.subs {
		all = append(all, sub.all()...)
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
