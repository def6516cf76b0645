package executor

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/apbus/apbus/module"
)

// settleTime is how long a call that was stopped from outside waits for its
// module. A module that obeys its context has returned by then, its clean-up done
// before the caller goes on; one that does not holds nobody longer.
const settleTime = 10 * time.Millisecond

// execution is one run of a module in its own goroutine, which works on a copy of
// what it needs: once abandoned it must not look at the pipeline. The goroutine
// writes the result and then decides state; who waits reads it after that.
type execution struct {
	callRef
	began  time.Time
	state  atomic.Int32
	done   chan struct{}
	chunks chan module.Chunk // of a stream; nil otherwise
	output map[string]any
	err    error
	// late is true when the call had ended before the module returned.
	late bool
}

// newExecution makes the one execution of a run.
func (p *Pipeline) newExecution() *execution {
	return &execution{callRef: p.ref(), began: p.clock.began, done: make(chan struct{}, 1)}
}

// execute runs the module and waits for it. Without anything that could stop the
// call there is nothing to wait beside, and the module runs where its caller does,
// as one does that declares to return by itself.
func (p *Pipeline) execute(now time.Time) (map[string]any, error) {
	p.executed = true
	if p.clock.free && p.clock.alarm == nil || p.inline() {
		return p.executeInline(now)
	}
	e := p.newExecution()
	go e.run(p.ctx)
	select {
	case <-e.done:
	case <-p.ctx.Done():
		if !p.awaitStopped(e) {
			return nil, p.abandon()
		}
	}
	if !e.late {
		return p.accept(e.output, e.err)
	}
	return nil, p.endedWith(e.output, e.err)
}

// endedWith is the end of a call whose module returned after it.
func (p *Pipeline) endedWith(output map[string]any, err error) *module.Error {
	ended := p.ended(p.ctx)
	if ended.Code == module.CodeModuleTimeout && err == nil && output != nil {
		ended = ended.WithDetail("partial", p.redactPartial(output))
	}
	return ended
}

// A module that takes longer than inlineTime three times in a row, or longer than
// inlineMost once, gets a goroutine for its further calls. Both are far above what
// one needs that may run inline, since a busy machine may take the processor away in
// the middle of a run.
const (
	inlineTime = 20 * time.Millisecond
	inlineMost = 10 * inlineTime
)

// inline reports whether the module runs where its caller does.
func (p *Pipeline) inline() bool { return p.entry != nil && p.entry.Inline() }

// executeInline runs the module in the goroutine of its caller, from started on.
func (p *Pipeline) executeInline(started time.Time) (map[string]any, error) {
	ref := p.ref()
	output, err := ref.invoke(p.ctx)
	now := p.now()
	took := now.Sub(started)
	if p.outgrown(took) {
		p.x.log.LogAttrs(p.ctx, levelWarn, "module is too slow to run inline and gets a goroutine from now on",
			p.attrs(slog.Float64("duration_ms", float64(took)/float64(time.Millisecond)))...)
	}
	switch a := p.clock.alarm; {
	case !p.over(now):
		return p.accept(output, err)
	case a != nil && now.Sub(a.expiry.At()) > p.set.grace:
		p.x.log.LogAttrs(p.ctx, levelWarn, "late result discarded",
			p.attrs(slog.Float64("duration_ms", float64(took)/float64(time.Millisecond)))...)
		return nil, p.ended(p.ctx)
	}
	return nil, p.endedWith(output, err)
}

// outgrown notes how long an inline run took and reports whether it was the last.
func (p *Pipeline) outgrown(took time.Duration) bool {
	switch {
	case took > inlineMost:
		return p.entry.Strike(3)
	case took > inlineTime:
		return p.entry.Strike(1)
	}
	p.entry.Prompt()
	return false
}

// awaitStopped waits for a module that was told to stop: for the grace period when
// the call's own time is over and its caller still wants it, for the settling time
// otherwise. It reports whether the module has returned.
func (p *Pipeline) awaitStopped(e *execution) bool {
	returned := p.clock.own(context.Cause(p.ctx)) && p.awaitGrace(e)
	if !returned && p.settles() {
		timer := time.NewTimer(settleTime)
		defer timer.Stop()
		select {
		case <-e.done:
			returned = true
		case <-timer.C:
		}
	}
	if returned {
		return true
	}
	p.x.debt.add()
	if e.state.CompareAndSwap(taskRunning, taskAbandoned) {
		return false
	}
	p.x.debt.done()
	<-e.done
	return true
}

// awaitGrace waits out the grace period, unless the caller leaves meanwhile.
func (p *Pipeline) awaitGrace(e *execution) bool {
	if p.set.grace == 0 {
		return false
	}
	var above <-chan struct{}
	if t := p.parent.Token(); t != nil {
		above = t.Done()
	}
	timer := time.NewTimer(p.set.grace)
	defer timer.Stop()
	select {
	case <-e.done:
		return true
	case <-p.outer.Done():
	case <-above:
	case <-timer.C:
	}
	return false
}

// settles reports whether the caller is leaving, so that the module gets the
// settling time: a call whose own time is over has had its grace.
func (p *Pipeline) settles() bool {
	t := p.parent.Token()
	return p.outer.Err() != nil || (t != nil && t.IsCancelled()) || !p.clock.own(context.Cause(p.ctx))
}

// abandon leaves the module to its goroutine, which now holds the registry entry.
func (p *Pipeline) abandon() error {
	p.held, p.abandoned = false, true
	ended := p.ended(p.ctx)
	p.x.log.LogAttrs(p.ctx, levelWarn, "module abandoned", p.attrs(slog.String("code", string(ended.Code)))...)
	return ended
}

// stackRoom is what a goroutine of a module gets at once. A goroutine starts with
// a stack too small for most modules, and growing it step by step from deep inside
// one costs more than all the other steps of a call together.
const stackRoom = 4 << 10

// growStack makes sure of stackRoom while there is nothing on the stack to copy.
//
//go:noinline
func growStack(i int) byte {
	var room [stackRoom]byte
	return room[i&(stackRoom-1)]
}

// run is the body of the module's goroutine.
func (e *execution) run(ctx context.Context) {
	growStack(0)
	returned := false
	defer func() {
		if !returned {
			// Goexit: there is no panic to recover and nobody else to tell.
			e.err = module.Errorf(module.CodeModuleExecuteError, "module %s ended its goroutine", e.moduleID)
		}
		e.late = ctx.Err() != nil
		if e.state.CompareAndSwap(taskRunning, taskFinished) {
			e.done <- struct{}{}
			return
		}
		e.x.log.LogAttrs(ctx, levelWarn, "late result discarded",
			e.attrs(slog.Float64("duration_ms", float64(time.Since(e.began))/float64(time.Millisecond)))...)
		e.entry.Release()
		e.x.debt.done()
	}()
	if e.chunks != nil {
		e.err = e.produce(ctx)
	} else {
		e.output, e.err = e.invoke(ctx)
	}
	returned = true
}

// invoke calls the module's code; a panic becomes MODULE_EXECUTE_ERROR.
func (r *callRef) invoke(ctx context.Context) (output map[string]any, err error) {
	defer func() {
		if v := recover(); v != nil {
			output, err = nil, r.panicked(ctx, StepExecute, v, module.CodeModuleExecuteError)
		}
	}()
	return r.entry.Module.Execute(ctx, r.inputs)
}

// redactPartial is what a module returned after its time, without what may not be
// seen.
func (p *Pipeline) redactPartial(output map[string]any) any {
	return p.x.redactor.Redact(p.entry.Output, output)
}
