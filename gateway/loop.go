package gateway

import (
	"context"
	"net/http"
	"strconv"
	"time"

	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/loop"
	"github.com/apbus/apbus/module"
)

// loopRoutes run the loop and tell how it does.
func (g *Gateway) loopRoutes() []*route {
	return []*route{
		{
			method: http.MethodGet, pattern: "/v1/loop", operation: "showLoop",
			summary: "How the loop does: the last pass and its funnel, the queue, the analyzers", scope: ScopeOperate, class: control,
			query:   []param{{"probe", "1 asks the model for its name too."}},
			answers: []outcome{{200, "LoopStatus", "The state of the loop."}}, handle: g.ofLoop(g.showLoop),
		},
		{
			method: http.MethodPost, pattern: "/v1/loop/run", operation: "runLoop",
			summary: "Make one pass; whoever asks cannot approve what a model drafts in it", scope: ScopeOperate, class: control, body: "LoopRunOptions",
			answers: []outcome{{200, "LoopResult", "What the pass did, or why it was skipped."}}, handle: g.ofLoop(g.runLoop),
		},
		{
			method: http.MethodPost, pattern: "/v1/loop/evalsets/{id}", operation: "putEvalset",
			summary: "Set the cases that a code revision of a module must pass", scope: ScopeApply, class: control, body: "Evalset",
			answers: []outcome{{200, "EvalsetStored", "The hash that code revisions pin."}}, handle: g.ofLoop(g.putEvalset),
		},
		{
			method: http.MethodPost, pattern: "/v1/loop/evalsets/{id}/run", operation: "runEvalset",
			summary: "Call a module with the cases of its evalset, in the name of whoever asks, and journal what they come to", scope: ScopeApply, class: control,
			answers: []outcome{{200, "EvalsetRun", "How many cases passed and failed."}}, handle: g.ofLoop(g.runEvalset),
		},
		{
			method: http.MethodGet, pattern: "/v1/loop/runs/{id}", operation: "listPlanRuns",
			summary: "What the newest runs of a plan did, step by step, redacted", scope: ScopeOperate, class: control,
			query:   []param{{"limit", "Most runs, 20 when absent, at most 100."}},
			answers: []outcome{{200, "PlanRuns", "The runs, newest first; none of what is no plan."}}, handle: g.ofLoop(g.listPlanRuns),
		},
	}
}

// showLoop serves GET /v1/loop.
func (g *Gateway) showLoop(x *exchange) error {
	probe := false
	switch x.r.URL.Query().Get("probe") {
	case "", "0":
	case "1":
		probe = true
	default:
		return invalid("query parameter probe is neither 0 nor 1")
	}
	ctx := x.r.Context()
	h, err := g.loop.Health(ctx, time.Now())
	if err != nil {
		return err //nolint:wrapcheck // coded
	}
	last, err := g.loop.LastRun(ctx)
	if err != nil {
		return err //nolint:wrapcheck // coded
	}
	health, err := module.ToMap(h)
	if err != nil {
		return module.Errorf(module.CodeInternal, "show the loop: %w", err)
	}
	delete(health, "last_run_ms")
	health["last_run_at"], health["model"], health["last_run"] = millis(h.LastRunMS), orNull(h.Model), nil
	if last != nil {
		result, err := module.ToMap(last.Result)
		if err != nil {
			return module.Errorf(module.CodeInternal, "show the loop: %w", err)
		}
		health["last_run"] = map[string]any{
			"at": timestamp(last.At), "trigger": orNull(last.Trigger), "router": orNull(last.Router), "result": result,
		}
	}
	if probe {
		health["probe"] = g.probeLoop(ctx)
	}
	return x.json(http.StatusOK, health)
}

// probeLoop tells who the model says it is, or that it does not.
func (g *Gateway) probeLoop(ctx context.Context) map[string]any {
	model, err := g.loop.Probe(ctx)
	if err != nil {
		return map[string]any{"ok": false, "model": nil, "message": module.AsError(err).Message}
	}
	return map[string]any{"ok": true, "model": model, "message": nil}
}

// runLoop serves POST /v1/loop/run.
func (g *Gateway) runLoop(x *exchange) error {
	body, err := g.object(x)
	if err != nil {
		return err
	}
	o, err := runOptionsOf(body)
	if err != nil {
		return err
	}
	o.Trigger = actor(x.principal)
	res, err := g.loop.Run(x.r.Context(), time.Now(), o)
	if err != nil {
		return err //nolint:wrapcheck // coded
	}
	answer, err := module.ToMap(res)
	if err != nil {
		return module.Errorf(module.CodeInternal, "show a pass: %w", err)
	}
	return x.json(http.StatusOK, answer)
}

func runOptionsOf(body map[string]any) (o loop.RunOptions, err error) {
	count := func(v any, most int64) (n int64) {
		n, ok := v.(int64)
		if !ok || n < 0 || n > most {
			err = invalid("min_new, min_new_errors and if_stale_ms are integers, not negative")
		}
		return n
	}
	const mostRecords, mostMS = 1 << 40, 10 * 365 * 24 * 3600 * 1000
	for key, v := range body {
		switch key {
		case "min_new":
			o.MinNew = int(count(v, mostRecords))
		case "min_new_errors":
			o.MinNewErrors = int(count(v, mostRecords))
		case "if_stale_ms":
			o.IfStale = time.Duration(count(v, mostMS)) * time.Millisecond
		case "full_sweep":
			var ok bool
			if o.FullSweep, ok = v.(bool); !ok {
				err = invalid("full_sweep is true or false")
			}
		case "namespaces":
			list, _ := v.([]any)
			for _, item := range list {
				ns, ok := item.(string)
				if !ok || ns == "" {
					return o, invalid("namespaces is a list of texts")
				}
				o.Namespaces = append(o.Namespaces, ns)
			}
		default:
			return o, invalid("the body may hold min_new, min_new_errors, if_stale_ms, namespaces and full_sweep only")
		}
	}
	return o, err
}

// putEvalset serves POST /v1/loop/evalsets/{id}.
func (g *Gateway) putEvalset(x *exchange) error {
	id := x.r.PathValue("id")
	if err := module.ValidateID(id); err != nil {
		return err //nolint:wrapcheck // coded
	}
	body, err := g.object(x)
	if err != nil {
		return err
	}
	cases, ok := body["cases"].([]any)
	if !ok || len(body) != 1 {
		return invalid("the body holds cases, a list, and nothing else")
	}
	for _, c := range cases {
		m, _ := c.(map[string]any)
		_, inputs := m["inputs"].(map[string]any)
		_, output := m["output"].(map[string]any)
		if !inputs || !output || len(m) != 2 {
			return invalid("a case is {inputs, output}, two objects")
		}
	}
	hash, err := g.loop.PutEvalset(x.r.Context(), time.Now(), actor(x.principal), id, cases)
	if err != nil {
		return err //nolint:wrapcheck // coded
	}
	return x.json(http.StatusOK, map[string]any{"module_id": id, "evalset_hash": hash})
}

// evalCase bounds the call of one case of an evalset.
const evalCase = 30 * time.Second

// runEvalset serves POST /v1/loop/evalsets/{id}/run.
func (g *Gateway) runEvalset(x *exchange) error {
	id := x.r.PathValue("id")
	if err := module.ValidateID(id); err != nil {
		return err //nolint:wrapcheck // coded
	}
	call := func(_ context.Context, moduleID string, inputs map[string]any) (map[string]any, error) {
		req := &contextwire.Request{
			CallID: contextwire.NewCallID(), Attempt: 1, ModuleID: moduleID, Budget: evalCase, Inputs: inputs,
			Context: module.NewContext(module.ContextOptions{Identity: x.principal.Identity}),
		}
		ctx, tok, end, err := g.begin(req)
		if err != nil {
			return nil, err
		}
		defer end()
		defer g.attached(x, tok)()               //nolint:contextcheck // by its connection it ends with the request
		reply, err := g.invoker.Invoke(ctx, req) //nolint:contextcheck // a call ends with the gateway
		if err != nil || reply == nil {
			return nil, err //nolint:wrapcheck // coded
		}
		return reply.Output, nil
	}
	run, err := g.loop.RunEvalset(x.r.Context(), time.Now, actor(x.principal), id, contextwire.NewCallID(), call)
	if err != nil {
		return err //nolint:wrapcheck // coded
	}
	return x.json(http.StatusOK, map[string]any{
		"module_id": id, "evalset_hash": run.Evalset, "run_id": run.RunID, "at": millis(run.AtMS),
		"passed": int64(run.Passed), "failed": int64(run.Failed), "duration_ms": run.DurationMS,
	})
}

// listPlanRuns serves GET /v1/loop/runs/{id}.
func (g *Gateway) listPlanRuns(x *exchange) error {
	id := x.r.PathValue("id")
	if err := module.ValidateID(id); err != nil {
		return err //nolint:wrapcheck // coded
	}
	const most = 100
	limit := 20
	if text := x.r.URL.Query().Get("limit"); text != "" {
		var err error
		if limit, err = strconv.Atoi(text); err != nil || limit < 1 || limit > most {
			return invalid("query parameter limit is an integer from 1 to 100")
		}
	}
	runs, err := g.loop.PlanRuns(x.r.Context(), id, limit)
	if err != nil {
		return err //nolint:wrapcheck // coded
	}
	list := make([]any, len(runs))
	for i, r := range runs {
		m, err := module.ToMap(r)
		if err != nil {
			return module.Errorf(module.CodeInternal, "show a run of a plan: %w", err)
		}
		list[i] = m
	}
	return x.json(http.StatusOK, map[string]any{"runs": list})
}

// guidanceOf is what was learned about a module. Failing to know it keeps nobody
// from the module.
func (g *Gateway) guidanceOf(x *exchange, id string) []any {
	if g.loop == nil {
		return []any{}
	}
	known, err := g.loop.Guidance(x.r.Context(), id)
	if err != nil {
		g.log.WarnContext(x.r.Context(), "guidance is not shown", "module_id", id, "cause", err)
		return []any{}
	}
	list := make([]any, len(known))
	for i, k := range known {
		list[i] = map[string]any{"kind": k.Kind, "text": k.Text, "rec": k.Rec, "applied_at": millis(k.AppliedAtMS)}
	}
	return list
}

func loopSchemas() map[string]any {
	text, integer, flag := typed("string"), typed("integer"), typed("boolean")
	counts := map[string]any{"type": "object", "additionalProperties": integer}
	result := map[string]any{
		"outcome": map[string]any{"type": "string", "enum": []any{"ran", "skipped"}}, "skip_reason": text,
		"new_grains": integer, "new_error_events": integer, "proposed": integer, "deduped": integer, "stored": integer, "auto_applied": integer,
		"analyzers_run": listOf(text), "analyzers_skipped": listOf(record([]string{"id", "reason"}, map[string]any{"id": text, "reason": text})),
		"llm_funnel": typed("object"), "llm_usage": typed("object"), "recs": listOf(text),
		"withdrawn": integer, "expired": integer, "measured": integer, "drifted": integer, "recovered": integer, "unread": integer,
	}
	return map[string]any{
		"LoopResult": record([]string{"outcome", "proposed", "deduped", "stored"}, result),
		"LoopRunOptions": record(nil, map[string]any{
			"min_new": integer, "min_new_errors": integer, "if_stale_ms": integer, "namespaces": listOf(text), "full_sweep": flag,
		}),
		"LoopStatus": record([]string{"last_run_at", "last_run", "new_grains", "stale", "recommendations", "analyzers"}, map[string]any{
			"last_run_at": nullable("string"), "watermark": integer, "llm_watermark": integer, "new_grains": integer, "new_error_events": integer,
			"stale": flag, "model": nullable("string"), "recommendations": counts, "unread": integer,
			"analyzers": listOf(record([]string{"id", "title", "runs"}, map[string]any{"id": text, "title": text, "description": text, "runs": flag})),
			"last_run": map[string]any{"anyOf": []any{typed("null"), record([]string{"at", "result"}, map[string]any{
				"at": text, "trigger": nullable("string"), "router": nullable("string"), "result": ref("LoopResult"),
			})}},
			"probe": record([]string{"ok"}, map[string]any{"ok": flag, "model": nullable("string"), "message": nullable("string")}),
		}),
		"PlanRuns": record([]string{"runs"}, map[string]any{"runs": listOf(ref("PlanRun"))}),
		"PlanRun":  planRunSchema(),
		"Evalset": record([]string{"cases"}, map[string]any{
			"cases": listOf(record([]string{"inputs", "output"}, map[string]any{"inputs": typed("object"), "output": typed("object")})),
		}),
		"EvalsetRun": record([]string{"module_id", "evalset_hash", "run_id", "at", "passed", "failed", "duration_ms"}, map[string]any{
			"module_id": text, "evalset_hash": text, "run_id": text, "at": text, "passed": integer, "failed": integer, "duration_ms": integer,
		}),
		"EvalsetStored": record([]string{"module_id", "evalset_hash"}, map[string]any{"module_id": text, "evalset_hash": text}),
	}
}

// planRunSchema is the form of a journaled run.
func planRunSchema() map[string]any {
	text, integer, flag, object := typed("string"), typed("integer"), typed("boolean"), typed("object")
	reads := map[string]any{"type": "object", "additionalProperties": integer}
	return record([]string{"id", "plan", "plan_hash", "started_ms", "ended_ms", "outcome", "steps"}, map[string]any{
		"v": integer, "id": text, "plan": text, "plan_hash": text, "rec": text, "ns": text, "node": text, "boot": text, "n": integer,
		"call": text, "attempt": integer, "trace_id": text, "caller_id": text, "identity_id": text, "started_ms": integer, "ended_ms": integer,
		"outcome": map[string]any{"type": "string", "enum": []any{"ok", "error", "cancelled"}}, "code": text, "failed_node": text,
		"inputs": object, "inputs_left_out": flag, "mask": text, "dropped": integer,
		"steps": listOf(record([]string{"node", "generation", "outcome"}, map[string]any{
			"node": text, "tool": text, "generation": integer, "attempt": integer,
			"outcome": map[string]any{"type": "string", "enum": []any{"ok", "error", "cancelled", "dead"}}, "code": text,
			"started_ms": integer, "ended_ms": integer, "reads": reads, "final": flag, "output": object, "output_left_out": flag,
		})),
		"decisions": listOf(record([]string{"edge", "generation", "held"}, map[string]any{
			"edge": integer, "generation": integer, "held": flag, "reads": reads,
		})),
	})
}
