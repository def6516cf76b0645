package executor

import (
	"context"
	"iter"
	"log/slog"

	"github.com/apbus/apbus/cancel"
	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/module"
)

// Stream runs one governed call and yields its output in chunks as they come; the
// call begins when the result is ranged over, and each range is a call of its own.
// A module that does not stream, and a middleware that recovers a failure before
// the first chunk, give one chunk. A failure is the last element, with a nil chunk;
// its errors are those of [Executor.Call]. Chunks must not be modified.
//
// The module is held back while the loop body runs, whose time counts towards the
// module's. A reader that leaves the loop ends the module. Time and cancellation
// are looked at between chunks.
//
// Once the last chunk is out, the merged value is validated and after hooks run;
// what fails there cannot be taken back, so it is logged, told as event
// apcore.stream.post_validation_failed, and not an error (protocol §12.2).
func (x *Executor) Stream(ctx context.Context, id string, inputs map[string]any, opts ...module.CallOption) iter.Seq2[module.Chunk, error] {
	return func(yield func(module.Chunk, error) bool) {
		p := x.pipeline(id, x.strategy.Load())
		for _, o := range opts {
			o(&p.opts)
		}
		if err := p.admit(inputs); err != nil {
			yield(nil, err)
			return
		}
		r := &reader{yield: yield}
		p.sink = r.take
		p.parent = module.FromContext(ctx)
		defer x.enterRoot(p.parent)()
		_, err := p.runTraced(ctx)
		switch {
		case r.panicked:
			panic(r.value) // the loop body's, now that the call has ended
		case err != nil && !r.left:
			yield(nil, err)
		}
	}
}

// reader is the loop body of a range over a stream.
type reader struct {
	yield    func(module.Chunk, error) bool
	left     bool
	panicked bool
	value    any
}

func (r *reader) take(c module.Chunk) (err error) {
	// A panic of the loop body is none of the module's: it waits until the call
	// was brought to its end.
	defer func() {
		if v := recover(); v != nil {
			r.left, r.panicked, r.value = true, true, v
			err = errReaderLeft()
		}
	}()
	if r.left = !r.yield(c, nil); r.left {
		return errReaderLeft()
	}
	return nil
}

func errReaderLeft() *cancel.Cause {
	return cancel.Because(cancel.Caller, "", "the reader of the stream has left")
}

// streamAhead is how many chunks a module may be ahead of send. Without it the two
// goroutines would change places for every chunk; the reader's window holds back
// what counts.
const streamAhead = 32

// InvokeStream runs a call that came over the bus on the module's owner, as
// [Executor.Invoke] does, and passes every chunk to send, one at a time. An error
// of send ends the call: a coded one is its error, any other cancels it. send must
// return when ctx is done, since the call's own limits wait for it. The reply's
// output is the merged value, validated unless
// apcore.stream.post_validation_failed was told.
func (x *Executor) InvokeStream(ctx context.Context, req *contextwire.Request, send func(module.Chunk) error) (*contextwire.Reply, error) {
	p := x.incoming(req)
	p.sink, p.ahead = send, streamAhead
	return p.reply(ctx, req)
}

// deliverWhole gives a stream that was none its only chunk.
func (p *Pipeline) deliverWhole() error {
	if p.sink == nil || p.streamed {
		return nil
	}
	p.chunks++
	if err := p.sink(p.output); err != nil {
		coded := module.AsError(err)
		if coded == nil {
			coded = module.Wrap(module.CodeExecutionCancelled, err, "the reader of module "+p.moduleID+" has left").
				WithDetails(map[string]any{"module_id": p.moduleID, "reason": string(cancel.Caller)})
		}
		return &StepError{Step: StepReturnResult, Err: coded}
	}
	return nil
}

// failedAfterStream is the end of a stream whose chunks are out.
func (p *Pipeline) failedAfterStream(ctx context.Context, step string, failure *module.Error) {
	p.postError = failure
	p.x.log.LogAttrs(ctx, levelError, "stream failed after its last chunk", p.attrs(
		slog.String("event", module.EventStreamPostValidationFailed),
		slog.String("step", step), slog.String("code", string(failure.Code)))...)
	p.emit(module.EventStreamPostValidationFailed, module.SeverityError, map[string]any{
		"error_type": string(failure.Code), "message": failure.Message,
	})
	if p.entered > 0 && failure.Code != module.CodeExecutionCancelled {
		p.recover(ctx, failure) // so that the middlewares know; what they offer is too late
	}
}
