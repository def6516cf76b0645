package bus

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/apbus/apbus/contextwire"
)

// publisher keeps the node's record in the catalogue. A nil publisher does
// nothing, for a bus without JetStream.
type publisher struct {
	node    *Node
	cat     *catalogue
	due     chan struct{} // capacity 1
	written map[string]bool
	renew   atomic.Bool // the server may have lost what was written
}

func newPublisher(n *Node, cat *catalogue) *publisher {
	return &publisher{node: n, cat: cat, due: make(chan struct{}, 1), written: map[string]bool{}}
}

// poke asks for the record to be written soon.
func (p *publisher) poke() {
	if p == nil {
		return
	}
	select {
	case p.due <- struct{}{}:
	default: // it is due already
	}
}

// reconnected makes the next write start from nothing: the server may be
// another one, or have lost its memory.
func (p *publisher) reconnected() {
	if p == nil {
		return
	}
	p.renew.Store(true)
	p.poke()
}

// run writes the record every recordEvery and when poked, until the node ends.
func (p *publisher) run() {
	t := time.NewTicker(recordEvery)
	defer t.Stop()
	soon := time.NewTimer(recordEvery) // after a failure
	defer soon.Stop()
	for {
		select {
		case <-p.node.life.Done():
			return
		case <-t.C:
		case <-soon.C:
		case <-p.due:
		}
		ctx, stop := context.WithTimeoutCause(p.node.life, recordEvery, errors.New("the catalogue did not answer"))
		if err := p.publish(ctx); err != nil && p.node.life.Err() == nil {
			p.node.calm.warn("cannot write the node record", "cause", err)
			soon.Reset(time.Second)
		}
		stop()
	}
}

// publish writes new descriptors and then the record that names them. Only run
// and the start of the node call it, one after the other.
func (p *publisher) publish(ctx context.Context) error {
	if p.renew.Swap(false) {
		if err := p.reopen(ctx); err != nil {
			p.renew.Store(true)
			return err
		}
	}
	err := p.write(ctx)
	if err != nil {
		p.renew.Store(true)
	}
	return err
}

func (p *publisher) reopen(ctx context.Context) error {
	cat, err := openCatalogue(ctx, p.node.conns.JS, p.node.conns.replicas)
	if err != nil {
		return err
	}
	p.cat = cat
	clear(p.written)
	return nil
}

func (p *publisher) write(ctx context.Context) error {
	n := p.node
	record := contextwire.NodeRecord{
		Protocol: contextwire.ProtocolVersion, Node: n.opts.ID, Boot: n.boot, NS: n.subjects.ns,
		Version: n.opts.Version, MaxPayload: n.conns.Calls.MaxPayload(), Capacity: n.opts.MaxInFlight,
		Draining: n.isDraining(), GraceMS: n.opts.CallGrace().Milliseconds(), At: time.Now().UTC(),
		NamedOnly: n.opts.NamedOnly, Modules: []contextwire.ModuleRef{},
	}
	record.InFlight, _ = n.gate.load()
	if !record.Draining {
		for _, d := range n.host.Descriptors() {
			hash := d.Hash()
			if !p.written[hash] {
				if err := p.cat.putDescriptor(ctx, d, hash); err != nil {
					return err
				}
				p.written[hash] = true
			}
			record.Modules = append(record.Modules, contextwire.ModuleRef{ID: d.ID, Version: d.EffectiveVersion(), Hash: hash})
		}
	}
	body, err := contextwire.EncodeControl(&record, contextwire.JSON)
	if err != nil {
		return err
	}
	_, err = p.cat.nodes.Put(ctx, recordKey(n.subjects.ns, n.opts.ID, n.boot), body)
	return err
}

// leave takes the record away, so that callers need not wait for its expiry.
func (p *publisher) leave() {
	if p == nil {
		return
	}
	ctx, stop := context.WithTimeoutCause(context.Background(), time.Second, errors.New("the catalogue did not answer"))
	defer stop()
	n := p.node
	err := p.cat.nodes.Delete(ctx, recordKey(n.subjects.ns, n.opts.ID, n.boot))
	if err != nil && !errors.Is(err, jetstream.ErrKeyNotFound) {
		n.log.Debug("cannot remove the node record, it will expire", "cause", err)
	}
}
