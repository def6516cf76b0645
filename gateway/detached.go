package gateway

import (
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
	err := g.detached.begin(d, func() { g.wg.Go(func() { g.runDetached(req) }) })
	if err != nil {
		return err
	}
	x.w.Header().Set("Preference-Applied", "respond-async")
	x.w.Header().Set("Location", "/v1/calls/"+req.CallID)
	return x.json(http.StatusAccepted, map[string]any{
		"call": req.CallID, "module_id": req.ModuleID, "trace_id": d.traceID, "state": StateRunning,
	})
}

func (g *Gateway) runDetached(req *contextwire.Request) {
	output, err := g.invokeDetached(req)
	if err == nil {
		g.detached.end(req.CallID, output, nil)
		return
	}
	e := coded(err).At(req.Context, req.ModuleID)
	if !e.Remote && StatusOf(e.Code) == http.StatusInternalServerError {
		g.log.Error("detached call failed here",
			"code", e.Code, "cause", err, "call_id", req.CallID, "trace_id", req.Context.TraceID(), "module_id", req.ModuleID)
	}
	e = outward(e, req.Context.TraceID())
	failure, err := contextwire.EncodeCanonical(contextwire.JSON, e.Map())
	if err != nil { // details without a JSON form: the code still counts
		failure, err = contextwire.EncodeCanonical(contextwire.JSON, e.WithDetails(nil).WithMessage("the details of this error cannot be shown").Map())
	}
	if err != nil {
		failure = []byte(`{"code":"` + string(module.CodeInternal) + `"}`)
	}
	g.detached.end(req.CallID, nil, failure)
}

func (g *Gateway) invokeDetached(req *contextwire.Request) (output []byte, err error) {
	ctx, _, end, err := g.begin(req)
	if err != nil {
		return nil, err
	}
	defer end()
	defer func() {
		if v := recover(); v != nil {
			err = module.Errorf(module.CodeInternal, "detached call panicked: %v", v)
		}
	}()
	reply, err := g.invoker.Invoke(ctx, req)
	if err != nil {
		return nil, endOf(ctx, err)
	}
	return encodeOutput(reply)
}

// view is what GET /v1/calls/{call} shows of the call. The outcome is for who
// made the call and for operators; others see that it ended.
func (d *detachedCall) view(state string, withOutcome bool) ([]byte, error) {
	m := map[string]any{
		"call": d.call, "attempt": int64(1), "root": nil, "parent": nil, "module_id": d.moduleID,
		"node": nil, "boot": nil, "caller_id": nil, "identity_id": nil, "trace_id": d.traceID,
		"mode": contextwire.ModeUnary, "started_at": timestamp(d.startedAt), "budget_ms": nil, "state": state,
	}
	if d.identity != nil {
		m["identity_id"] = d.identity.ID()
	}
	if d.budget > 0 {
		m["budget_ms"] = d.budget.Milliseconds()
	}
	if !d.finishedAt.IsZero() {
		m["finished_at"] = timestamp(d.finishedAt)
	}
	body, err := contextwire.EncodeCanonical(contextwire.JSON, m)
	if err != nil || !withOutcome || d.finishedAt.IsZero() {
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
