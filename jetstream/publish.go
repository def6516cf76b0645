package jetstream

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/apbus/apbus/module"
)

const (
	// publishBatch is how many records are sent before one is acknowledged.
	publishBatch = 256
	// publishRetry is the pause before a batch is sent again, publishPatience how
	// long it is tried.
	publishRetry    = 250 * time.Millisecond
	publishPatience = 30 * time.Second
	publishAck      = 5 * time.Second
	// headerMsgID lets the stream drop what it has already.
	headerMsgID = "Nats-Msg-Id"
)

// PublisherOptions configures an [EvidencePublisher] or a [PlanRunPublisher]. The zero
// value is usable.
type PublisherOptions struct {
	// Node and Boot name this process in the records; a random Boot when empty.
	Node, Boot string
	// Buffer is how many records wait at most; 8192 when zero, of runs of plans 256.
	// What finds no room is dropped and counted.
	Buffer int
}

// origin is the process that records something, and how many of its records came
// before and with it.
type origin struct {
	node, boot string
	n          uint64
}

// publisher writes records of one kind in the background, in batches. Record never
// blocks. It is safe for concurrent use; it is to be closed before the connection.
type publisher[T any] struct {
	raw    *conn
	log    *slog.Logger
	what   string // is kept, for the log
	encode func(by origin, record T) (*nats.Msg, error)
	node   string
	boot   atomic.Pointer[string]
	queue  chan T
	n      uint64 // of the writing goroutine

	recorded, published, dropped, refused atomic.Uint64
	lastWarning                           time.Time // of the writing goroutine
	warned                                uint64

	closing  chan struct{}
	close    sync.Once
	life     context.Context
	giveUp   context.CancelCauseFunc
	finished chan struct{}
}

// PublisherStats counts what became of the records of one publisher.
type PublisherStats struct {
	// Recorded were taken; Published of these are stored.
	Recorded, Published uint64
	// Dropped found no room, or could not be stored in time. Refused had no form.
	Dropped, Refused uint64
	// Waiting are in the buffer now.
	Waiting int
}

// publish starts a publisher whose records encode writes, once each, in the background.
func publish[T any](raw *conn, log *slog.Logger, what string, o PublisherOptions, encode func(origin, T) (*nats.Msg, error)) *publisher[T] {
	if o.Boot == "" {
		o.Boot = module.NewSpanID()[:10]
	}
	p := &publisher[T]{
		raw: raw, log: log, what: what, encode: encode, node: o.Node, queue: make(chan T, o.Buffer),
		closing: make(chan struct{}), finished: make(chan struct{}),
	}
	p.boot.Store(&o.Boot)
	p.life, p.giveUp = context.WithCancelCause(context.Background())
	go func() {
		defer close(p.finished)
		p.run()
	}()
	return p
}

// SetBoot names the run of the process, once it is known.
func (p *publisher[T]) SetBoot(boot string) { p.boot.Store(&boot) }

// Record takes a record, whose namespace, process and number it fills in, and keeps
// it. It never blocks: without room the record is dropped and counted. After Close
// everything is.
func (p *publisher[T]) Record(e T) {
	select {
	case <-p.closing:
		p.dropped.Add(1)
		return
	default:
	}
	select {
	case p.queue <- e:
		p.recorded.Add(1)
	default:
		p.dropped.Add(1)
	}
}

// Stats tells what became of the records.
func (p *publisher[T]) Stats() PublisherStats {
	return PublisherStats{
		Recorded: p.recorded.Load(), Published: p.published.Load(),
		Dropped: p.dropped.Load(), Refused: p.refused.Load(), Waiting: len(p.queue),
	}
}

// Close stores what waits, until ctx ends, and stops. Closing twice waits too.
func (p *publisher[T]) Close(ctx context.Context) {
	p.close.Do(func() { close(p.closing) })
	select {
	case <-p.finished:
	case <-ctx.Done():
		p.giveUp(context.Cause(ctx))
		<-p.finished
	}
	p.giveUp(errors.New("the publisher is closed"))
}

// run sends batches: whatever has gathered while the last one was on its way.
func (p *publisher[T]) run() {
	batch := make([]*nats.Msg, 0, publishBatch)
	for {
		batch = batch[:0]
		open := true
		select {
		case e := <-p.queue:
			batch = p.add(batch, e)
		case <-p.closing:
			open = false
		}
		for full := false; len(batch) < publishBatch && !full; {
			select {
			case e := <-p.queue:
				batch = p.add(batch, e)
			default:
				full = true
			}
		}
		if len(batch) > 0 {
			p.send(batch)
		}
		if !open && len(batch) == 0 && len(p.queue) == 0 {
			return
		}
		p.warn()
	}
}

// add encodes a record. The same bytes are sent whenever it is sent again.
func (p *publisher[T]) add(batch []*nats.Msg, e T) []*nats.Msg {
	p.n++
	m, err := p.encode(origin{p.node, *p.boot.Load(), p.n}, e)
	if err != nil {
		p.refused.Add(1)
		return batch
	}
	return append(batch, m)
}

// send stores a batch. Only the last message asks for an acknowledgement: messages of
// one connection are stored in order, and one that comes again is dropped by its
// hash, so a batch that is not acknowledged is sent again as a whole.
func (p *publisher[T]) send(batch []*nats.Msg) {
	deadline := time.Now().Add(publishPatience)
	for {
		err := p.try(batch)
		if err == nil {
			p.published.Add(uint64(len(batch)))
			return
		}
		if p.life.Err() != nil || time.Now().After(deadline) {
			p.dropped.Add(uint64(len(batch)))
			p.log.Warn("records are lost", "what", p.what, "records", len(batch), "cause", err)
			return
		}
		pause := time.NewTimer(publishRetry)
		select {
		case <-pause.C:
		case <-p.life.Done():
			pause.Stop()
		}
	}
}

func (p *publisher[T]) try(batch []*nats.Msg) error {
	last := len(batch) - 1
	for _, m := range batch[:last] {
		if err := p.raw.nc.PublishMsg(m); err != nil {
			return err //nolint:wrapcheck // logged as the cause
		}
	}
	ctx, stop := context.WithTimeoutCause(p.life, publishAck, errNoAnswer)
	defer stop()
	_, err := p.raw.publish(ctx, batch[last])
	return err
}

// warn tells of drops, at most every ten seconds.
func (p *publisher[T]) warn() {
	dropped := p.dropped.Load() + p.refused.Load()
	if dropped == p.warned || time.Since(p.lastWarning) < 10*time.Second {
		return
	}
	p.log.LogAttrs(p.life, slog.LevelWarn, "records were dropped", slog.String("what", p.what),
		slog.Uint64("records", dropped-p.warned), slog.Uint64("total", dropped))
	p.warned, p.lastWarning = dropped, time.Now()
}
