package bus

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/apbus/apbus/cancel"
)

// hardStop is how long cancelled calls may take to end.
const hardStop = time.Second

// Drain takes the node out of service: it leaves the catalogue and the queue
// groups, finishes what it accepted until ctx ends or the node's DrainGrace is
// over, cancels the rest with cause shutdown, and answers what still arrives
// with BUS_OVERLOADED, unexecuted (wire protocol section 5, Drain). It returns
// an error when calls were cut short. Close the node afterwards.
func (n *Node) Drain(ctx context.Context) error {
	ctx, stop := context.WithTimeoutCause(ctx, n.opts.DrainGrace, errDrainGrace)
	defer stop()
	return n.drain(ctx)
}

func (n *Node) drain(ctx context.Context) error {
	n.mu.Lock()
	n.draining = true
	n.mu.Unlock()
	n.facts.poke()
	// What the server had already routed here is answered: refused, or accepted
	// before.
	if err := n.subs.drain(hardStop); err != nil { //nolint:contextcheck // bounded by itself, so that a late ctx still leaves the queue groups
		n.log.Warn("drain without the bus", "cause", err)
	}
	err := n.awaitWork(ctx)
	if err != nil {
		err = fmt.Errorf("drain: %w", err)
		n.cancelRest() //nolint:contextcheck // ctx is over, the calls are not
	}
	if ferr := n.flushReplies(); ferr != nil && err == nil { //nolint:contextcheck // answers leave though ctx may be over
		err = fmt.Errorf("drain: flush replies: %w", ferr)
	}
	n.drainOnce.Do(func() { close(n.drained) })
	return err
}

// awaitWork waits until every call is over and its answer is on its way; the
// node takes no new ones by then.
func (n *Node) awaitWork(ctx context.Context) error {
	done := make(chan struct{})
	n.mu.Lock()
	if n.closed { // Close waits, and nothing may join what it waits for
		n.mu.Unlock()
		return n.table.WaitEmpty(ctx)
	}
	n.wg.Go(func() {
		n.work.Wait()
		close(done)
	})
	n.mu.Unlock()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// flushReplies makes sure that the answers have left, when there is a connection
// to leave by.
func (n *Node) flushReplies() error {
	if !n.conns.Calls.Connected() {
		return nil
	}
	ctx, stop := context.WithTimeoutCause(context.Background(), hardStop, errors.New("the bus did not answer"))
	defer stop()
	return n.conns.Calls.Flush(ctx)
}

// cancelRest cancels every call and waits a moment for it to end.
func (n *Node) cancelRest() {
	n.cancelRunning(cancel.Because(cancel.Shutdown, n.opts.ID, "node is draining"))
	ctx, stop := context.WithTimeoutCause(n.life, hardStop, errors.New("calls ignore their cancellation"))
	defer stop()
	if err := n.awaitWork(ctx); err != nil {
		n.log.Warn("calls outlive the drain", "cause", err)
	}
}
