package gateway

import (
	"net/http"
	"slices"
	"time"

	"github.com/apbus/apbus/cancel"
	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/module"
)

// listCalls serves GET /v1/calls.
func (g *Gateway) listCalls(x *exchange) error {
	records, err := g.calls.Calls(x.r.Context())
	if err != nil {
		return err
	}
	list := make([]any, len(records))
	for i := range records {
		list[i] = callView(&records[i])
	}
	return x.json(http.StatusOK, map[string]any{"calls": list})
}

// callView shows a call in flight; every key is present, null where nobody knows.
func callView(c *contextwire.CallRecord) map[string]any {
	m := map[string]any{
		"call": c.Call, "attempt": int64(max(c.Attempt, 1)), "root": orNull(c.Root), "parent": orNull(c.Parent),
		"module_id": c.ModuleID, "node": orNull(c.Node), "boot": orNull(c.Boot),
		"caller_id": orNull(c.CallerID), "identity_id": orNull(c.IdentityID), "trace_id": orNull(c.TraceID),
		"mode": c.Mode, "started_at": timestamp(c.StartedAt), "budget_ms": nil, "state": publicState(c.State),
	}
	if c.Mode == "" {
		m["mode"] = contextwire.ModeUnary
	}
	if c.BudgetMS > 0 {
		m["budget_ms"] = c.BudgetMS
	}
	return m
}

// publicState folds what a node distinguishes into what callers are promised:
// running or cancelling.
func publicState(state string) string {
	switch state {
	case StateCancelling, "abandoned":
		return StateCancelling
	}
	return StateRunning
}

func orNull(s string) any {
	if s == "" {
		return nil
	}
	return s
}

// timestampLayout is that of the catalogue and of errors.
const timestampLayout = "2006-01-02T15:04:05.000Z"

// timestamp renders RFC 3339 in UTC, null for the zero time.
func timestamp(t time.Time) any {
	if t.IsZero() {
		return nil
	}
	return t.UTC().Format(timestampLayout)
}

// showCall serves GET /v1/calls/{call}: a detached call of this gateway, or any
// call in flight.
func (g *Gateway) showCall(x *exchange) error {
	id := x.r.PathValue("call")
	if !contextwire.ValidCallID(id) {
		return unknownCall()
	}
	if shown, err := g.showOutcome(x, id); shown {
		return err
	}
	records, err := g.calls.Calls(x.r.Context())
	for i := range records {
		if records[i].Call == id {
			return x.json(http.StatusOK, callView(&records[i]))
		}
	}
	// No node has it yet, or none answers, but this gateway is making it.
	if local, ok := g.localState(id); ok {
		return x.json(http.StatusOK, callView(&contextwire.CallRecord{
			Call: id, Root: local.Root, ModuleID: local.ModuleID, TraceID: local.Trace, IdentityID: local.IdentityID,
			Mode: local.Mode, StartedAt: local.StartedAt, BudgetMS: local.Budget.Milliseconds(), State: local.State,
		}))
	}
	// It may have ended while the nodes were asked.
	if shown, err := g.showOutcome(x, id); shown {
		return err
	}
	if err != nil {
		return err
	}
	return unknownCall()
}

// showOutcome answers with a detached call that has ended; shown is false when
// there is none of this ID.
func (g *Gateway) showOutcome(x *exchange, id string) (shown bool, err error) {
	d, kept := g.detached.get(id)
	if !kept || d.finishedAt.IsZero() {
		return false, nil
	}
	body, err := d.view(x.principal.May(ScopeOperate) || x.principal.Identity.Equal(d.identity))
	if err != nil {
		return true, err
	}
	return true, x.raw(http.StatusOK, body)
}

func unknownCall() *module.Error { return notFound("nobody knows this call") }

// cancelCall serves DELETE /v1/calls/{call}.
func (g *Gateway) cancelCall(x *exchange) error {
	id := x.r.PathValue("call")
	if !contextwire.ValidCallID(id) {
		return unknownCall()
	}
	return g.cancel(x, cancel.Selector{Call: id})
}

// cancelMany serves DELETE /v1/calls?root=…|trace=….
func (g *Gateway) cancelMany(x *exchange) error {
	q := x.r.URL.Query()
	root, trace := q.Get("root"), q.Get("trace")
	if (root == "") == (trace == "") || len(q["root"]) > 1 || len(q["trace"]) > 1 {
		return invalid("give exactly one of the query parameters root and trace")
	}
	if root != "" && !contextwire.ValidCallID(root) || trace != "" && !printable(trace) {
		return unknownCall()
	}
	return g.cancel(x, cancel.Selector{Root: root, Trace: trace})
}

// cancel asks the bus first, so that the owners' answers are heard, and then
// ends what this gateway itself still waits for.
func (g *Gateway) cancel(x *exchange, sel cancel.Selector) error {
	reason := x.r.URL.Query().Get("reason")
	if len(reason) > maxReason {
		return invalid("query parameter reason is longer than %d bytes", maxReason)
	}
	by := x.principal.by(g.name)
	res, err := g.calls.Cancel(x.r.Context(), sel, reason, by)
	if err != nil || res.State != StateCancelling {
		matched, _ := g.inFlight.Cancel(sel, cancel.CancelRequest{
			Issuer: by, Privileged: true, Cause: cancel.Because(cancel.Caller, by, reason),
		})
		for _, c := range matched {
			if !slices.Contains(res.Calls, c.Call) {
				res.Calls = append(res.Calls, c.Call)
			}
			res.State, err = StateCancelling, nil
		}
	}
	if err != nil {
		return err
	}
	if d, kept := g.detached.get(sel.Call); kept && !d.finishedAt.IsZero() && res.State != StateCancelling {
		res.State, res.Calls = StateFinished, []string{sel.Call}
	}
	if res.State == StateUnknown || res.State == "" {
		return unknownCall()
	}
	return x.json(http.StatusAccepted, map[string]any{
		"nodes": texts(res.Nodes), "calls": texts(res.Calls), "state": res.State,
	})
}

// texts is a list that is never null.
func texts(list []string) []any {
	out := make([]any, len(list))
	for i, s := range list {
		out[i] = s
	}
	return out
}
