package executor

import (
	"context"
	"errors"

	"github.com/apbus/apbus/cancel"
	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/module"
)

// stream runs a streaming module in a goroutine of its own and hands its chunks on.
func (p *Pipeline) stream() error {
	p.executed = true
	e := p.newExecution()
	e.chunks = make(chan module.Chunk, p.ahead)
	merged := module.NewMerge(p.set.merge)
	go e.run(p.ctx)
	if err := p.relay(e, merged); err != nil {
		return err
	}
	p.streamed = true
	if p.output = merged.Value(); p.output == nil {
		p.output = map[string]any{}
	}
	return nil
}

// relay hands chunks on until the module has returned or the call has ended.
func (p *Pipeline) relay(e *execution, merged *module.Merge) error {
	settled, dropped := false, false
	defer func() {
		if settled {
			return
		}
		// The reader's goroutine is on its way out: it panicked or exited.
		p.token.Cancel(errReaderLeft())
		if !p.awaitStopped(e) {
			_ = p.abandon()
		}
	}()
	for p.ctx.Err() == nil {
		select {
		case c := <-e.chunks:
			if dropped = p.ctx.Err() != nil; dropped {
				continue // no more chunks
			}
			merged.Add(c)
			if err := p.handOver(c); err != nil {
				settled = true
				return p.readerLeft(e, err)
			}
		case <-e.done:
			if len(e.chunks) > 0 {
				e.done <- struct{}{} // after the chunks that came before it
				continue
			}
			settled = true
			return p.finished(e)
		case <-p.ctx.Done():
		}
	}
	settled = true
	if !p.awaitStopped(e) {
		return p.abandon()
	}
	if dropped || len(e.chunks) > 0 {
		return p.ended(p.ctx) // the module was done, its reader was not
	}
	return p.finished(e)
}

func (p *Pipeline) handOver(c module.Chunk) error {
	p.chunks++
	return p.sink(c)
}

// finished is the end of a module that has returned.
func (p *Pipeline) finished(e *execution) error {
	switch {
	case e.late:
		return p.ended(p.ctx)
	case e.err != nil:
		p.foreign = true
		return e.err
	}
	return nil
}

// readerLeft ends the module because nobody takes its chunks.
func (p *Pipeline) readerLeft(e *execution, why error) error {
	p.cancelFor(why)
	if !p.awaitStopped(e) {
		_ = p.abandon()
	}
	return p.unread(why)
}

// cancelFor cancels the call's token because of an error of the sink.
func (p *Pipeline) cancelFor(why error) {
	cause, ok := errors.AsType[*cancel.Cause](why)
	if !ok {
		cause = errReaderLeft()
	}
	p.token.Cancel(cause)
}

// unread is the error of a call whose chunks could not be handed over.
func (p *Pipeline) unread(why error) error {
	if coded := module.AsError(why); coded != nil {
		return coded
	}
	return p.ended(p.ctx)
}

// produce ranges over the module's stream in the module's goroutine. A chunk is
// judged before anybody gets it.
func (e *execution) produce(ctx context.Context) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = e.panicked(ctx, StepExecute, v, module.CodeModuleExecuteError)
		}
	}()
	index := 0
	for chunk, err := range e.entry.Streamer.Stream(ctx, e.inputs) {
		if err != nil {
			return err
		}
		if chunk == nil {
			return module.ChunkNotObject(index, nil)
		}
		normal, err := module.NormalizeMap(chunk)
		if err != nil {
			return module.Wrap(module.CodeModuleExecuteError, err, "module "+e.moduleID+" streamed a chunk without a json form")
		}
		select {
		case e.chunks <- normal:
			index++
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// forwardStream is forward for a stream.
func (p *Pipeline) forwardStream(req *contextwire.Request) error {
	remote, ok := p.x.remote.(RemoteStreamer)
	if !ok {
		return module.Errorf(module.CodeNotImplemented, "module %s lives on another node, whose streams cannot be carried here", p.moduleID).
			NotExecuted()
	}
	var left error
	reply, err := remote.InvokeStream(p.ctx, req, func(c module.Chunk) error {
		if left == nil && p.ctx.Err() != nil {
			left = context.Cause(p.ctx)
		}
		if left != nil {
			return left
		}
		if left = p.handOver(c); left != nil {
			p.cancelFor(left)
		}
		return left
	})
	p.adoptTrace(reply)
	switch {
	case left != nil:
		return p.unread(left)
	case err != nil && p.ctx.Err() != nil && module.AsError(err) == nil:
		return p.ended(p.ctx)
	case err != nil:
		return err
	case reply == nil:
		return module.Errorf(module.CodeInternal, "module %s: the remote returned nothing", p.moduleID)
	}
	p.streamed = true
	if p.output = reply.Output; p.output == nil {
		p.output = map[string]any{}
	}
	return nil
}
