package jetstream

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/module"
	"github.com/apbus/apbus/task"
)

// Writer is what is served: *task.Writer.
type Writer interface {
	task.Service
	task.WorkSource
	// FinishAll hears many reports of finished attempts at once.
	FinishAll(ctx context.Context, req task.FinishAllRequest) (task.FinishAllAnswer, error)
	// Undelivered takes back grants that reached nobody. It must not block.
	Undelivered(refs []task.LeaseRef)
}

const (
	// maxRequests is how many requests are worked on at once, most of them waiting.
	maxRequests = 16384
	// answerLimit is how long a request without a budget may take.
	answerLimit = 30 * time.Second
)

// handler answers one verb.
type handler func(ctx context.Context, body []byte) (any, error)

// handle makes a handler of a method.
func handle[Ask, Answer any](f func(context.Context, Ask) (Answer, error)) handler {
	return func(ctx context.Context, body []byte) (any, error) {
		ask, err := decode[Ask](body)
		if err != nil {
			return nil, err
		}
		return f(ctx, ask)
	}
}

// handleQuiet is handle for a method that answers nothing.
func handleQuiet[Ask any](f func(context.Context, Ask) error) handler {
	return handle(func(ctx context.Context, ask Ask) (nothing, error) { return nothing{}, f(ctx, ask) })
}

// handlers lists what the writer can be asked.
func handlers(w Writer) map[string]handler {
	return map[string]handler{
		verbSubmit:  handle(w.Submit),
		verbGet:     handle(func(ctx context.Context, a taskAsk) (task.Record, error) { return w.Get(ctx, a.TaskID) }),
		verbList:    handle(w.List),
		verbResult:  handle(w.Result),
		verbEvents:  handle(w.Events),
		verbCancel:  handle(w.Cancel),
		verbRetry:   handle(w.Retry),
		verbRequeue: handle(w.Requeue),
		verbBulk:    handle(w.Bulk),
		verbInputs: handle(func(ctx context.Context, a taskAsk) (inputsAnswer, error) {
			inputs, err := w.RawInputs(ctx, a.TaskID, a.By)
			return inputsAnswer{inputs}, err
		}),
		verbDelete: handleQuiet(func(ctx context.Context, a taskAsk) error { return w.Delete(ctx, a.TaskID, a.By) }),
		verbQueues: handle(func(ctx context.Context, _ nothing) (queueList, error) {
			list, err := w.Queues(ctx)
			return queueList{list}, err
		}),
		verbQueueSet: handle(func(ctx context.Context, a queueAsk) (task.QueueState, error) {
			if a.Settings == nil {
				return task.QueueState{}, module.Errorf(module.CodeInvalidInput, "settings are missing")
			}
			return w.SetQueue(ctx, a.ModuleID, *a.Settings)
		}),
		verbQueueLimit: handle(func(ctx context.Context, a limitAsk) (task.QueueState, error) {
			return w.LimitQueue(ctx, a.ModuleID, a.Limits)
		}),
		verbPause: handle(func(ctx context.Context, a queueAsk) (task.QueueState, error) {
			return w.Pause(ctx, a.ModuleID, a.By, a.Reason)
		}),
		verbResume: handle(func(ctx context.Context, a queueAsk) (task.QueueState, error) {
			return w.Resume(ctx, a.ModuleID, a.By)
		}),
		verbSchedPut: handle(func(ctx context.Context, a schedulePut) (task.Schedule, error) {
			return w.PutSchedule(ctx, a.Schedule, a.By, a.Replace)
		}),
		verbSchedGet: handle(func(ctx context.Context, a scheduleAsk) (task.Schedule, error) { return w.Schedule(ctx, a.Name) }),
		verbSchedList: handle(func(ctx context.Context, _ nothing) (scheduleList, error) {
			list, err := w.Schedules(ctx)
			return scheduleList{list}, err
		}),
		verbSchedDel:   handleQuiet(func(ctx context.Context, a scheduleAsk) error { return w.DeleteSchedule(ctx, a.Name) }),
		verbWake:       handle(w.Wake),
		verbClaim:      handle(w.Claim),
		verbStart:      handle(w.Start),
		verbRenew:      handle(w.Renew),
		verbProgress:   handleQuiet(w.Progress),
		verbCheckpoint: handleQuiet(w.Checkpoint),
		verbFinish:     handle(w.Finish),
		verbFinishAll:  handle(w.FinishAll),
		verbRelease:    handleQuiet(w.Release),
	}
}

// server answers for a writer while it leads.
type server struct {
	names names
	wire  messenger
	log   *slog.Logger
	// life ends every request, patience those that wait for something to happen.
	life, patience     context.Context //nolint:containedctx // the lifetime given to serve
	stop, stopPatience context.CancelCauseFunc
	unhook             func() bool
	subs               []*nats.Subscription
	bounces            bounces

	wg sync.WaitGroup

	mu      sync.Mutex
	closed  bool
	waiting map[string]context.CancelCauseFunc // requests in work, by call
	count   int
}

var (
	errAborted = errors.New("the caller has left")
	errStopped = errors.New("the writer stops")
	errNoTime  = errors.New("the time for the request is over")
)

// serve answers on the subjects of the writer until close. What is in work goes on
// after ctx is done, unless its cause is that the lead is lost.
func serve(ctx context.Context, n names, wire messenger, w Writer, log *slog.Logger) (*server, error) {
	s := &server{names: n, wire: wire, log: log, waiting: map[string]context.CancelCauseFunc{}}
	s.life, s.stop = context.WithCancelCause(context.WithoutCancel(ctx))
	s.unhook = context.AfterFunc(ctx, func() {
		if cause := context.Cause(ctx); errors.Is(cause, task.ErrDeposed) {
			s.stop(cause)
		}
	})
	s.patience, s.stopPatience = context.WithCancelCause(s.life)
	subscribe := func(verb string, f nats.MsgHandler) error {
		sub, err := wire.nc.QueueSubscribe(n.rpc(verb), queueGroup, f)
		if err != nil {
			return fmt.Errorf("serve %s: %w", verb, err)
		}
		s.subs = append(s.subs, sub)
		return nil
	}
	// Whoever waits for an answer of the writer before asks again. It hears of it before
	// it can have asked this one.
	if err := wire.nc.Publish(n.writer(), nil); err != nil {
		log.Debug("the new writer was not announced", "cause", err)
	}
	err := s.bounces.listen(wire.nc, w.Undelivered)
	if err == nil {
		err = subscribe(verbAbort, s.abort)
	}
	for verb, h := range handlers(w) {
		waits := verb == verbClaim || verb == verbResult || verb == verbEvents
		if err == nil {
			err = subscribe(verb, func(m *nats.Msg) { s.accept(m, h, waits) }) //nolint:contextcheck // a request has a life of its own
		}
	}
	if err == nil {
		flushing, stop := context.WithTimeoutCause(ctx, exchangeLimit, errNoAnswer)
		if err = wire.nc.FlushWithContext(flushing); err != nil {
			err = fmt.Errorf("serve tasks: %w", withCause(flushing, err))
		}
		stop()
	}
	if err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

// closeGrace is how long requests that do not wait may take to end.
const closeGrace = 5 * time.Second

// close takes nothing new, ends what waits, and returns when everything is
// answered; what does not end in time, or once the lead is lost, is cut short.
func (s *server) close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	for _, sub := range s.subs {
		// What has arrived is still refused, so that its caller need not wait. Without a
		// connection that would leave a subscription behind with the server, which nats.go
		// makes again when it reconnects and then forgets: it would swallow its share of
		// the requests to whoever leads next.
		if !s.wire.nc.IsConnected() || sub.Drain() != nil {
			_ = sub.Unsubscribe() // fails only when it is gone
		}
	}
	s.stopPatience(errStopped)
	cut := time.AfterFunc(closeGrace, func() { s.stop(errStopped) })
	s.wg.Wait()
	cut.Stop()
	s.bounces.close()
	s.unhook()
	s.stop(errStopped)
}

// accept takes a request on, or refuses it, without blocking.
func (s *server) accept(m *nats.Msg, h handler, waits bool) {
	if m.Reply == "" {
		return
	}
	head := contextwire.Header(m.Header)
	limit := budget(head)
	if limit == 0 {
		limit = answerLimit
	}
	ctx, stop, err := s.begin(head.Get(contextwire.HeaderCall), waits)
	if err != nil {
		s.reply(s.life, m, nil, err)
		return
	}
	go func() {
		defer s.wg.Done()
		defer s.finished(head.Get(contextwire.HeaderCall), stop)
		ctx, stopTimer := context.WithTimeoutCause(ctx, limit, errNoTime)
		defer stopTimer()
		s.answer(ctx, m, h)
	}()
}

// begin counts a request in and gives it a life of its own.
func (s *server) begin(call string, waits bool) (context.Context, context.CancelCauseFunc, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return nil, nil, module.Errorf(module.CodeTaskStoreUnavailable, "this process no longer leads the tasks").NotExecuted()
	case s.count >= maxRequests:
		return nil, nil, module.Errorf(module.CodeBusOverloaded, "too many requests about tasks at once").NotExecuted()
	}
	life := s.life
	if waits {
		life = s.patience
	}
	ctx, stop := context.WithCancelCause(life)
	s.count++
	s.wg.Add(1)
	if call != "" {
		s.waiting[call] = stop
	}
	return ctx, stop, nil
}

func (s *server) finished(call string, stop context.CancelCauseFunc) {
	stop(nil)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.count--
	delete(s.waiting, call)
}

// answer works on one request. A panic is its answer, not the end of the writer.
func (s *server) answer(ctx context.Context, m *nats.Msg, h handler) {
	body, err := s.wire.unpack(ctx, contextwire.Header(m.Header), m.Data, false)
	var answer any
	if err == nil {
		answer, err = s.guarded(ctx, body, h)
	}
	s.reply(context.WithoutCancel(ctx), m, answer, err)
}

func (s *server) guarded(ctx context.Context, body []byte, h handler) (answer any, err error) {
	defer func() {
		if p := recover(); p != nil {
			s.log.Error("a request about tasks panicked", "cause", p)
			err = module.Errorf(module.CodeInternal, "the request failed")
		}
	}()
	return h(ctx, body)
}

// reply answers. What cannot be sent is answered with why.
func (s *server) reply(ctx context.Context, m *nats.Msg, answer any, err error) {
	ctx, stop := context.WithTimeoutCause(ctx, answerLimit, errNoAnswer)
	defer stop()
	var msg *nats.Msg
	if err == nil {
		var body []byte
		if body, err = encode(answer); err == nil {
			msg, _, err = s.wire.pack(ctx, m.Reply, nats.Header{
				contextwire.HeaderFrame:       {string(contextwire.FrameResult)},
				contextwire.HeaderContentType: {string(contextwire.JSON)},
			}, body)
		}
	}
	if err != nil {
		h, body := failure(err)
		msg = &nats.Msg{Subject: m.Reply, Header: h, Data: body}
	} else if a, ok := answer.(task.ClaimAnswer); ok && len(a.Grants) > 0 {
		msg.Reply = s.bounces.expect(refsOf(a.Grants))
	}
	if err := s.wire.nc.PublishMsg(msg); err != nil {
		s.log.Warn("a request about tasks was not answered", "cause", err)
	}
}

// abort ends the wait of a caller that has left.
func (s *server) abort(m *nats.Msg) {
	s.mu.Lock()
	stop := s.waiting[contextwire.Header(m.Header).Get(contextwire.HeaderCall)]
	s.mu.Unlock()
	if stop != nil {
		stop(errAborted)
	}
}
