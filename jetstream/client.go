package jetstream

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/module"
	"github.com/apbus/apbus/task"
)

// ClientOptions says how to reach the writer. JS is required.
type ClientOptions struct {
	// Options names the connection to JetStream, the prefix and the namespace. What
	// only concerns the writer is ignored.
	Options
	// Requests is the connection that requests go over, the one of JS when nil. Its
	// reconnect buffer should be off, so that nothing is sent after its caller has
	// given up.
	Requests *nats.Conn
	// Patience is how long a request whose context has no deadline waits for a writer;
	// 15 s when zero.
	Patience time.Duration
}

// TaskClient asks the writer of a namespace, wherever it is. It has the methods of
// *task.Writer: [task.Service] for front doors and programs, [task.WorkSource] for a
// node's worker. Safe for concurrent use. Close it.
//
// While there is no writer, and during a change of writers, a request is repeated
// until its context ends; then the error is TASK_STORE_UNAVAILABLE. A request that
// may have been carried out and would do something else the second time, such as a
// submit in which a task has no idempotency key, is not repeated: that error says
// outcome: unknown in its details.
//
// Outputs over 512 KiB go to the object store and come back from there unseen.
type TaskClient struct {
	names    names
	wire     messenger
	patience time.Duration
	log      *slog.Logger
	sub      *nats.Subscription

	// What is asked often shares messages; submits that may not be repeated are kept
	// apart from those that may.
	submits, keyedSubmits merger[task.Verdict]
	finishes              merger[task.FinishVerdict]
	rooms, lists          rooms // for single requests and for merged ones

	wg   sync.WaitGroup
	stop context.CancelCauseFunc
	life context.Context //nolint:containedctx // from NewTaskClient to Close

	mu sync.Mutex
	// outstanding ends the requests that a new writer has to be asked again, by call.
	outstanding map[string]func()
	// arrived is closed and replaced when a new writer says that it is there.
	arrived chan struct{}
}

var (
	_ task.Service    = (*TaskClient)(nil)
	_ task.WorkSource = (*TaskClient)(nil)
	_ LeadingWriter   = (*task.Writer)(nil)
)

const (
	// pollLimit is how long one request waits for something to happen; the client asks
	// again while its caller wants to wait.
	pollLimit = 5 * time.Second
	// exchangeLimit is how long the writer may take besides.
	exchangeLimit = 3 * time.Second
	// onceLimit is the same for a request that is not repeated: giving up early would only
	// make its outcome unknown, as of a large submit on a busy machine.
	onceLimit = 10 * time.Second
	// shortestPause and longestPause are between two attempts.
	shortestPause = 25 * time.Millisecond
	longestPause  = 400 * time.Millisecond
)

var (
	errNewWriter    = errors.New("another writer has come")
	errClientClosed = errors.New("the client is closed")
)

// NewTaskClient makes a client. It does not wait for a writer.
func NewTaskClient(o ClientOptions) (*TaskClient, error) {
	if err := o.setDefaults(); err != nil {
		return nil, err
	}
	n, err := newNames(o.Prefix, o.Namespace)
	if err != nil {
		return nil, err
	}
	c := &TaskClient{
		names: n, wire: messenger{o.Requests, newBlobs(&o.Options)}, patience: o.Patience, log: o.Logger,
		outstanding: map[string]func(){}, arrived: make(chan struct{}),
	}
	if c.wire.nc == nil {
		c.wire.nc = o.JS.Conn()
	}
	if c.patience <= 0 {
		c.patience = 15 * time.Second
	}
	c.life, c.stop = context.WithCancelCause(context.Background())
	c.submits = merger[task.Verdict]{c: c, r: once, send: c.sendSubmits(once)}
	c.keyedSubmits = merger[task.Verdict]{c: c, r: again, send: c.sendSubmits(again)}
	c.finishes = merger[task.FinishVerdict]{c: c, r: again, send: c.sendFinishes}
	if c.sub, err = c.wire.nc.Subscribe(n.writer(), func(*nats.Msg) { c.newWriter() }); err != nil {
		return nil, unavailable(fmt.Errorf("listen for the writer: %w", err))
	}
	return c, nil
}

// Close ends what is waiting and what the client does in the background.
func (c *TaskClient) Close() {
	_ = c.sub.Unsubscribe() // fails only on a closed connection
	c.stop(errClientClosed)
	c.wg.Wait()
}

// newWriter ends the attempts that the former writer will not answer.
func (c *TaskClient) newWriter() {
	c.mu.Lock()
	outstanding := c.outstanding
	c.outstanding = map[string]func(){}
	close(c.arrived)
	c.arrived = make(chan struct{})
	c.mu.Unlock()
	for _, end := range outstanding {
		end()
	}
}

// repeat says what may be done with a request that was perhaps carried out.
type repeat int

const (
	// once: the second time would do something else.
	once repeat = iota
	// again: it may be repeated, and a new writer is asked at once.
	again
)

// ask sends a request until it is answered.
func ask[Answer any](ctx context.Context, c *TaskClient, verb string, r repeat, request any) (Answer, error) {
	var zero Answer
	body, err := encode(request)
	if err != nil {
		return zero, err
	}
	return askRaw[Answer](ctx, c, verb, r, body, nil)
}

// askRaw is ask for a request that is encoded already.
func askRaw[Answer any](ctx context.Context, c *TaskClient, verb string, r repeat, body []byte, out *atomic.Bool) (Answer, error) {
	var zero Answer
	answer, _, err := c.exchange(ctx, verb, r, body, 0, out)
	if err != nil {
		return zero, err
	}
	return decode[Answer](answer)
}

// exchange sends a body until it is answered, and says when what was answered was
// sent. wait is how long the writer may wait for something to happen. out, when not
// nil, is true while the request may have reached a writer.
func (c *TaskClient) exchange(ctx context.Context, verb string, r repeat, body []byte, wait time.Duration, out *atomic.Bool) (answer []byte, sent time.Time, err error) {
	if _, limited := ctx.Deadline(); !limited {
		var stop context.CancelFunc
		ctx, stop = context.WithTimeoutCause(ctx, c.patience+wait, context.DeadlineExceeded)
		defer stop()
	}
	pause := shortestPause
	for {
		arrived := c.nextWriter()
		sent = time.Now()
		if out != nil {
			out.Store(true)
		}
		if answer, err = c.attempt(ctx, verb, r, body, wait); err == nil {
			return answer, sent, nil
		}
		v := judge(err)
		if out != nil && v == unsent {
			out.Store(false)
		}
		if v == final {
			return nil, sent, err
		}
		if unknown := v == unclear && r == once; unknown || !c.pause(ctx, arrived, &pause) {
			return nil, sent, c.gaveUp(ctx, err, unknown)
		}
	}
}

// pause waits before another attempt, and returns false when there is no time for
// one. A new writer is asked at once.
func (c *TaskClient) pause(ctx context.Context, arrived <-chan struct{}, pause *time.Duration) bool {
	timer := time.NewTimer(*pause/2 + rand.N(*pause)) //nolint:gosec // only spreads attempts
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-c.life.Done():
	case <-arrived:
		*pause = shortestPause
	case <-timer.C:
		*pause = min(2**pause, longestPause)
	}
	return ctx.Err() == nil && c.life.Err() == nil
}

// nextWriter returns a channel that is closed when a new writer comes.
func (c *TaskClient) nextWriter() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.arrived
}

// verdict says what an error of an attempt means.
type verdict int

const (
	// final is the writer's answer.
	final verdict = iota
	// unsent was certainly not carried out.
	unsent
	// unclear may have been carried out.
	unclear
)

func judge(err error) verdict {
	if e := module.AsError(err); e != nil {
		switch {
		case e.Code == module.CodeTaskStoreUnavailable && e.Unexecuted, e.Code == module.CodeBusOverloaded && e.Unexecuted:
			return unsent
		case e.Code == module.CodeTaskStoreUnavailable:
			return unclear
		}
		return final
	}
	switch {
	case errors.Is(err, nats.ErrNoResponders), errors.Is(err, nats.ErrReconnectBufExceeded),
		errors.Is(err, nats.ErrConnectionReconnecting), errors.Is(err, nats.ErrConnectionClosed):
		return unsent
	}
	return unclear
}

// gaveUp says that nobody answered. Somebody's own decision to leave stays what it
// is.
func (c *TaskClient) gaveUp(ctx context.Context, last error, unknown bool) error {
	cause := context.Cause(ctx)
	if c.life.Err() != nil {
		cause = context.Cause(c.life) //nolint:contextcheck // the client's own end is asked for
	}
	if errors.Is(ctx.Err(), context.Canceled) {
		return fmt.Errorf("ask the task writer: %w", cause)
	}
	text := "no task writer has answered"
	if unknown {
		text = "no task writer has answered, and the request may have been carried out"
	}
	e := module.Wrap(module.CodeTaskStoreUnavailable, last, text)
	if unknown {
		e = e.WithDetail("outcome", "unknown").WithRetryable(module.False)
	}
	return e
}

// attempt sends a request once and waits for its answer.
func (c *TaskClient) attempt(ctx context.Context, verb string, r repeat, body []byte, wait time.Duration) ([]byte, error) {
	call := contextwire.NewCallID()
	if verb == verbClaim {
		var unhook func()
		ctx, unhook = c.outliving(ctx, call)
		defer unhook()
	}
	limit := exchangeLimit
	if r == once {
		limit = onceLimit
	}
	ctx, stopTimer := context.WithTimeoutCause(ctx, wait+limit, errNoAnswer)
	defer stopTimer()
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	unwatch := context.AfterFunc(c.life, func() { stop(errClientClosed) }) //nolint:contextcheck // the request ends with the client too
	defer unwatch()
	if r == again {
		end := func() { stop(errNewWriter) }
		if verb == verbClaim {
			// It may be the new writer that has it; what that has granted must not be lost.
			end = func() {
				c.leave(call)
				time.AfterFunc(lateGrace, func() { stop(errNewWriter) })
			}
		}
		c.mu.Lock()
		c.outstanding[call] = end
		c.mu.Unlock()
		defer func() {
			c.mu.Lock()
			defer c.mu.Unlock()
			delete(c.outstanding, call)
		}()
	}
	end, _ := ctx.Deadline()
	h := nats.Header{
		contextwire.HeaderVersion:     {protocolVersion},
		contextwire.HeaderCall:        {call},
		contextwire.HeaderBudget:      {strconv.FormatInt(max(time.Until(end).Milliseconds(), 1), 10)},
		contextwire.HeaderContentType: {string(contextwire.JSON)},
	}
	msg, remove, err := c.wire.pack(ctx, c.names.rpc(verb), h, body)
	if err != nil {
		return nil, err
	}
	answer, err := c.wire.nc.RequestMsgWithContext(ctx, msg)
	if msg.Data == nil && len(body) > 0 {
		c.background(remove) //nolint:contextcheck // not on the caller's time
	}
	if err != nil {
		if ctx.Err() != nil && wait > 0 {
			c.leave(call)
		}
		return nil, fmt.Errorf("ask the task writer: %w", withCause(ctx, err))
	}
	return c.wire.answered(ctx, answer)
}

// background runs f detached from any caller, for at most a few seconds.
func (c *TaskClient) background(f func(context.Context)) {
	c.own(func() {
		ctx, stop := context.WithTimeoutCause(c.life, exchangeLimit, errNoAnswer)
		defer stop()
		f(ctx)
	})
}

// own runs f, which Close waits for; false when the client is closed.
func (c *TaskClient) own(f func()) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.life.Err() != nil {
		return false
	}
	c.wg.Go(f)
	return true
}

// leave tells the writer that nobody waits for an answer any more.
func (c *TaskClient) leave(call string) {
	err := c.wire.nc.PublishMsg(&nats.Msg{Subject: c.names.rpc(verbAbort), Header: nats.Header{contextwire.HeaderCall: {call}}})
	if err != nil {
		c.log.Debug("the writer was not told that nobody waits", "cause", err)
	}
}
