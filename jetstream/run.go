package jetstream

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/apbus/apbus/module"
	"github.com/apbus/apbus/task"
)

// LeadingWriter is a writer for one leadership: *task.Writer.
type LeadingWriter interface {
	Writer
	// Run reads the log and works until ctx ends or the lead is lost.
	Run(ctx context.Context) error
	// Ready is closed once the log has been read.
	Ready() <-chan struct{}
}

// TasksOptions configures a process that may lead the tasks of a namespace. JS and
// NewWriter are required.
type TasksOptions struct {
	Options
	// Requests is the connection on which requests are answered and signals are sent,
	// the one of JS when nil.
	Requests *nats.Conn
	// Approvals is where decisions come from that tasks wait for, nil for nowhere. The
	// writer is woken by each of them; give it Approvals.Decided too, by which it learns
	// of those made while nobody led, and of time running out.
	Approvals *ApprovalStore
	// NewWriter makes the writer of one leadership over its log. signal tells a node
	// about an attempt; it does not block.
	NewWriter func(log *Log, signal func(task.Signal)) (LeadingWriter, error)
}

// electAgain is how long after a failure the process stands for election again.
const electAgain = time.Second

// RunTasks takes part in the election for the writer of a namespace's tasks until
// ctx is done, and runs and serves the writer while this process leads. Then it
// answers what it can still answer, gives the lead up, and returns nil. It returns
// an error only before that: when the stream cannot be used as it is.
func RunTasks(ctx context.Context, o TasksOptions) error {
	if o.NewWriter == nil {
		return module.Errorf(module.CodeConfigInvalid, "no writer is given to run the tasks")
	}
	store, err := Open(ctx, o.Options)
	if err != nil && ctx.Err() != nil {
		return nil
	}
	if err != nil {
		return err
	}
	if o.Requests == nil {
		o.Requests = o.JS.Conn()
	}
	t := &tasks{store: store, o: o, wire: messenger{o.Requests, newBlobs(&store.o)}}
	for {
		err := store.Elect(ctx, t.lead)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			store.o.Logger.Error("leading the tasks failed", "namespace", store.o.Namespace, "cause", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(electAgain):
		}
	}
}

type tasks struct {
	store *Store
	o     TasksOptions
	wire  messenger
}

// lead is one leadership: read the log, serve, hand over.
func (t *tasks) lead(ctx context.Context, log *Log) error {
	w, err := t.o.NewWriter(log, t.signal)
	if err != nil {
		return fmt.Errorf("make the task writer: %w", err)
	}
	// The writer outlives ctx for as long as it takes to answer what it was asked. When
	// the lead is lost there is nothing left to answer.
	running, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	defer stop(nil)
	var wg sync.WaitGroup
	defer wg.Wait()
	if a := t.o.Approvals; a != nil {
		listening, deaf := context.WithCancel(running)
		defer deaf()
		// The end of the bucket is looked up before the log is read, so that what is decided
		// from now on is heard, and what was decided before is looked up.
		after, err := a.tip(ctx)
		wg.Go(func() {
			if err != nil {
				t.store.o.Logger.Debug("every approval is looked at, since the last one is not known", "cause", err)
			}
			a.tell(listening, w, after)
		})
	}
	ended := make(chan error, 1)
	wg.Go(func() { ended <- w.Run(running) })
	started := time.Now()
	select {
	case <-w.Ready():
	case err := <-ended:
		return err
	case <-ctx.Done():
		stop(context.Cause(ctx))
		return errors.Join(<-ended, context.Cause(ctx))
	}
	s, err := serve(ctx, t.store.names, t.wire, w, t.store.o.Logger)
	if err != nil {
		stop(err)
		return errors.Join(err, <-ended)
	}
	t.store.o.Logger.Info("serving the tasks", "namespace", t.store.o.Namespace, "took", time.Since(started))
	select {
	case err = <-ended:
		s.close()
		return err
	case <-ctx.Done():
	}
	cause := context.Cause(ctx)
	if errors.Is(cause, task.ErrDeposed) {
		stop(cause)
		s.close()
		<-ended //nolint:errcheck // that it was deposed
		return cause
	}
	s.close()
	stop(cause)
	if err := <-ended; err != nil && !errors.Is(err, cause) {
		return err
	}
	return nil
}

// signal tells a node what concerns an attempt there. Nobody has to listen.
func (t *tasks) signal(sig task.Signal) {
	body, err := encode(sig)
	if err == nil {
		err = t.wire.nc.Publish(t.store.names.signal(sig.Node, sig.Boot), body)
	}
	if err != nil {
		t.store.o.Logger.Debug("a node was not told", "node", sig.Node, "task_id", sig.TaskID, "cause", err)
	}
}

// Signals calls f with each signal for the attempts of a process, one at a time,
// from a goroutine of the NATS library, until the returned func is called.
func (c *TaskClient) Signals(node, boot string, f func(task.Signal)) (stop func(), err error) {
	sub, err := c.wire.nc.Subscribe(c.names.signal(node, boot), func(m *nats.Msg) {
		sig, err := decode[task.Signal](m.Data)
		if err != nil {
			c.log.Warn("a signal about a task cannot be read", "cause", err)
			return
		}
		f(sig)
	})
	if err != nil {
		return nil, unavailable(fmt.Errorf("listen for signals: %w", err))
	}
	return func() {
		_ = sub.Unsubscribe() // fails only on a closed connection
	}, nil
}
