package gateway

import (
	"context"
	"net/http"

	"github.com/apbus/apbus/cancel"
	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/module"
)

// approvalKey is the input under which an approval token travels (protocol
// §7.7: the gate takes it out before the module sees the inputs).
const approvalKey = "_approval_token"

// request reads a call or check from HTTP. The call ID and trace are known to x
// as soon as possible, so that errors carry them.
func (g *Gateway) request(x *exchange) (*contextwire.Request, callHeaders, error) {
	x.callID = contextwire.NewCallID()
	x.w.Header().Set(headerCall, x.callID)
	id := x.r.PathValue("id")
	h, err := readCallHeaders(x.r.Header)
	if err != nil {
		return nil, h, err
	}
	c := module.NewContext(module.ContextOptions{Identity: x.principal.Identity, TraceParent: h.traceParent})
	x.traceID = c.TraceID()
	if err := module.ValidateID(id); err != nil {
		return nil, h, err
	}
	if h.node != "" && !g.knowsNode(h.node) {
		return nil, h, unknownNode(h.node)
	}
	inputs, err := g.object(x)
	if err != nil {
		return nil, h, err
	}
	if h.approval != "" {
		if had, ok := inputs[approvalKey]; ok && had != h.approval {
			return nil, h, invalid("the approval token in the body differs from the one in the header %s", headerApproval)
		}
		inputs[approvalKey] = h.approval
	}
	return &contextwire.Request{
		CallID: x.callID, Attempt: 1, ModuleID: id,
		Budget: h.timeout, Version: h.version, Node: h.node, Trace: h.trace, IdempotencyKey: h.idempotencyKey,
		Context: c, Inputs: inputs, TraceParent: h.traceParent,
	}, h, nil
}

// begin enters a call into the table of calls in flight and gives it a context
// that ends with the gateway, with the call's time, and with a cancel. end must
// be called when the call is over.
func (g *Gateway) begin(req *contextwire.Request) (ctx context.Context, tok *cancel.Token, end func(), err error) {
	ctx, tok = cancel.Join(g.life, nil)
	call := cancel.Call{
		Key: cancel.Key{Call: req.CallID}, Root: req.CallID, Trace: req.Context.TraceID(),
		ModuleID: req.ModuleID, Issuer: g.name, Mode: contextwire.ModeUnary, Budget: req.Budget, Token: tok,
	}
	if req.Stream {
		call.Mode = contextwire.ModeStream
	}
	if id := req.Context.Identity(); id != nil {
		call.IdentityID = id.ID()
	}
	entry, err := g.inFlight.Begin(call)
	if err != nil {
		tok.Release()
		return nil, nil, nil, module.Errorf(module.CodeInternal, "begin call: %w", err)
	}
	stop := context.CancelFunc(func() {})
	if req.Budget > 0 {
		ctx, stop = context.WithTimeoutCause(ctx, req.Budget,
			cancel.Because(cancel.Timeout, g.name, "the time given by "+headerTimeout+" is over"))
	}
	return ctx, tok, func() {
		stop()
		entry.End()
		tok.Release()
	}, nil
}

// attached ties a call to its connection: when the client closes it, the call
// is cancelled.
func (g *Gateway) attached(x *exchange, tok *cancel.Token) (stop func() bool) {
	by := x.principal.by(g.name)
	return context.AfterFunc(x.r.Context(), func() {
		tok.Cancel(cancel.Because(cancel.Caller, by, "the caller closed the connection"))
	})
}

// call serves POST /v1/modules/{id}/call.
func (g *Gateway) call(x *exchange) error {
	req, h, err := g.request(x)
	if err != nil {
		return err
	}
	if h.async {
		return g.detach(x, req)
	}
	ctx, tok, end, err := g.begin(req)
	if err != nil {
		return err
	}
	defer end()
	defer g.attached(x, tok)()
	reply, err := g.invoker.Invoke(ctx, req)
	if req.Trace {
		x.trace = outwardTrace(reply, x.traceID)
	}
	if err != nil {
		return coded(endOf(ctx, err)).At(req.Context, req.ModuleID)
	}
	body, err := encodeOutput(reply)
	if err == nil && req.Trace {
		body, err = traced(body, x.trace)
	}
	if err != nil {
		return err
	}
	if reply.Node != "" {
		x.w.Header().Set(headerNode, reply.Node+"."+reply.Boot)
	}
	return x.raw(http.StatusOK, body)
}

// encodeOutput keeps 64-bit integers as they are; a nil output is an empty object.
func encodeOutput(reply *contextwire.Reply) ([]byte, error) {
	if reply == nil {
		return nil, module.Errorf(module.CodeInternal, "the invoker gave neither a reply nor an error")
	}
	body, err := contextwire.Encode(contextwire.JSON, reply.Output)
	if err != nil {
		return nil, module.Errorf(module.CodeInternal, "encode the output: %w", err)
	}
	return body, nil
}

// check serves POST /v1/modules/{id}/check.
func (g *Gateway) check(x *exchange) error {
	req, _, err := g.request(x)
	if err != nil {
		if result, ok := failedCheck(err); ok {
			return x.json(http.StatusOK, g.preflight(result, x.traceID))
		}
		return err
	}
	ctx, tok, end, err := g.begin(req)
	if err != nil {
		return err
	}
	defer end()
	defer g.attached(x, tok)()
	result, err := g.invoker.Check(ctx, req)
	if err != nil {
		err = coded(endOf(ctx, err)).At(req.Context, req.ModuleID)
		var ok bool
		if result, ok = failedCheck(err); !ok {
			return err
		}
	}
	if result == nil {
		return module.Errorf(module.CodeInternal, "the invoker gave neither a result nor an error")
	}
	return x.json(http.StatusOK, g.preflight(result, x.traceID))
}

// preflight is the result as the outside may see it.
func (g *Gateway) preflight(r *module.PreflightResult, traceID string) map[string]any {
	seen := *r
	seen.Checks = make([]module.PreflightCheck, len(r.Checks))
	for i, c := range r.Checks {
		if c.Error != nil {
			c.Error = outward(c.Error, traceID)
		}
		seen.Checks[i] = c
	}
	return seen.Map()
}

// failedCheck turns an error that says that the call would be refused into the
// answer that says so. Failures to find out stay errors.
func failedCheck(err error) (*module.PreflightResult, bool) {
	e := module.AsError(err)
	if e == nil {
		return nil, false
	}
	var name string
	switch e.Code {
	case module.CodeInvalidModuleID:
		name = "module_id"
	case module.CodeModuleNotFound, module.CodeModuleDisabled, module.CodeVersionIncompatible,
		module.CodeVersionConstraintInvalid, module.CodeBusVersionMismatch:
		name = "module_lookup"
	case module.CodeCallDepthExceeded, module.CodeCircularCall, module.CodeCallFrequencyExceeded:
		name = "call_chain"
	case module.CodeACLDenied:
		name = "acl"
	case module.CodeApprovalDenied, module.CodeApprovalPending, module.CodeApprovalTimeout:
		name = "approval"
	case module.CodeSchemaValidation, module.CodeSchemaUnionNoMatch, module.CodeSchemaUnionAmbiguous:
		name = "schema"
	default:
		return nil, false
	}
	return &module.PreflightResult{Checks: []module.PreflightCheck{{Check: name, Error: e}}}, true
}
