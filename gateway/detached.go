package gateway

import (
	"context"
	"net/http"
	"time"

	"github.com/apbus/apbus/cancel"
	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/module"
)

// detach answers at once; the gateway stays the call's caller and keeps its
// outcome.
func (g *Gateway) detach(x *exchange, req *contextwire.Request) error {
	d := &detachedCall{
		call: req.CallID, moduleID: req.ModuleID, traceID: req.Context.TraceID(),
		identity: x.principal.Identity, startedAt: time.Now(), budget: req.Budget,
	}
	// In flight before the answer, so that Close waits for it and a cancel finds it.
	ctx, _, end, err := g.begin(req)
	if err != nil {
		return err
	}
	err = g.detached.begin(d, func() {
		g.wg.Go(func() {
			defer end()
			g.runDetached(ctx, req)
		})
	})
	if err != nil {
		end()
		return err
	}
	x.w.Header().Set("Preference-Applied", "respond-async")
	x.w.Header().Set("Location", "/v1/calls/"+req.CallID)
	return x.json(http.StatusAccepted, map[string]any{
		"call": req.CallID, "module_id": req.ModuleID, "trace_id": d.traceID, "state": StateRunning,
	})
}

func (g *Gateway) runDetached(ctx context.Context, req *contextwire.Request) {
	how, err := g.invokeDetached(ctx, req)
	if err != nil {
		how = ending{failure: g.failureOf(req, err)}
	}
	g.detached.end(req.CallID, how)
}

// failureOf is the JSON of what the outside may see of err.
func (g *Gateway) failureOf(req *contextwire.Request, err error) []byte {
	e := coded(err).At(req.Context, req.ModuleID)
	if !e.Remote && StatusOf(e.Code) == http.StatusInternalServerError {
		g.log.Error("detached call failed here",
			"code", e.Code, "cause", err, "call_id", req.CallID, "trace_id", req.Context.TraceID(), "module_id", req.ModuleID)
	}
	return encodeError(outward(e, req.Context.TraceID()), func(m map[string]any) any { return m })
}

func (g *Gateway) invokeDetached(ctx context.Context, req *contextwire.Request) (how ending, err error) {
	defer func() {
		if v := recover(); v != nil {
			err = module.Errorf(module.CodeInternal, "detached call panicked: %v", v)
		}
	}()
	reply, err := g.invoker.Invoke(ctx, req)
	if err != nil {
		return how, endOf(ctx, err)
	}
	output, err := encodeOutput(reply)
	if err != nil {
		return how, err
	}
	return ending{output: output, node: reply.Node, boot: reply.Boot, attempt: reply.Attempt}, nil
}

// view is what GET /v1/calls/{call} shows of a call that has ended. The outcome
// is for who made the call and for operators; others see that it ended.
func (d *detachedCall) view(withOutcome bool) ([]byte, error) {
	m := map[string]any{
		"call": d.call, "attempt": int64(max(d.attempt, 1)), "root": d.call, "parent": nil, "module_id": d.moduleID,
		"node": orNull(d.node), "boot": orNull(d.boot), "caller_id": nil, "identity_id": nil, "trace_id": d.traceID,
		"mode": contextwire.ModeUnary, "started_at": timestamp(d.startedAt), "budget_ms": nil, "state": StateFinished,
		"finished_at": timestamp(d.finishedAt),
	}
	if d.identity != nil {
		m["identity_id"] = d.identity.ID()
	}
	if d.budget > 0 {
		m["budget_ms"] = d.budget.Milliseconds()
	}
	body, err := contextwire.EncodeCanonical(contextwire.JSON, m)
	if err != nil || !withOutcome {
		return body, err
	}
	// The outcome is JSON already; it goes in as it is, before the last brace.
	key, outcome := `,"output":`, d.output
	if d.failure != nil {
		key, outcome = `,"error":`, d.failure
	}
	body = append(body[:len(body)-1], key...)
	return append(append(body, outcome...), '}'), nil
}

// localState is the state of a call that this gateway makes; ok is false when
// it does not.
func (g *Gateway) localState(call string) (v cancel.CallView, ok bool) {
	if !g.inFlight.Has(cancel.Key{Call: call}) {
		return v, false
	}
	for _, v := range g.inFlight.List() {
		if v.Call.Call == call {
			return v, true
		}
	}
	return v, false
}
