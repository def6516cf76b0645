package gateway_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/gateway"
	"github.com/apbus/apbus/loop"
	"github.com/apbus/apbus/module"
	"github.com/apbus/apbus/schema"
)

// queue is a loop with recommendations, and the gateway before it.
type queue struct {
	store  *loop.MemStore
	engine *loop.Engine
}

// learned is the engine with what a router adds.
type learned struct {
	*loop.Engine
	last *gateway.LoopRun
}

func (l *learned) LastRun(context.Context) (*gateway.LoopRun, error) { return l.last, nil }

func (l *learned) Guidance(ctx context.Context, id string) ([]loop.Guidance, error) {
	return l.Knowledge().Guidance(ctx, id) //nolint:wrapcheck // coded
}

// PlanRuns knows runs of plan.shop.
func (l *learned) PlanRuns(_ context.Context, id string, limit int) ([]*loop.JournaledRun, error) {
	if id != "plan.shop" {
		return nil, nil
	}
	var runs []*loop.JournaledRun
	for i := range min(limit, 30) {
		r := new(loop.JournaledRun)
		if err := module.FromMap(map[string]any{
			"id": fmt.Sprintf("%064x", i), "v": int64(1), "plan": id, "plan_hash": fmt.Sprintf("%064x", 7), "started_ms": int64(1), "ended_ms": int64(2),
			"outcome": "error", "code": "BROKEN", "failed_node": "pay", "inputs": map[string]any{"order": "o-1"},
			"steps": []any{
				map[string]any{"node": "look", "tool": "shop.look", "generation": int64(1), "attempt": int64(1), "outcome": "ok", "output": map[string]any{"ok": true}},
				map[string]any{"node": "pay", "tool": "shop.pay", "generation": int64(1), "attempt": int64(1), "outcome": "error", "code": "BROKEN", "reads": map[string]any{"look": int64(1)}, "final": true},
			},
			"decisions": []any{map[string]any{"edge": int64(0), "generation": int64(1), "held": true, "reads": map[string]any{"look": int64(1)}}},
		}, r); err != nil {
			return nil, err
		}
		runs = append(runs, r)
	}
	return runs, nil
}

func newQueue(t *testing.T) *queue {
	t.Helper()
	q := &queue{store: loop.NewMemStore()}
	var err error
	q.engine, err = loop.New(loop.Options{Store: q.store, Reader: loop.NewMemReader(), Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	return q
}

// lesson stores a pending recommendation of a lesson about math.add and returns its
// hash.
func (q *queue) lesson(t *testing.T, text string, change func(r *loop.Recommendation)) string {
	t.Helper()
	r := &loop.Recommendation{
		V: 1, Analyzer: "exec.module_failure/1", Params: map[string]any{}, Origin: loop.Origin{Kind: loop.OriginBuiltin},
		Target: "entity:lessons/math.add", Action: loop.ActionClusterFailure, Kind: loop.KindLesson, DedupKey: text,
		Summary: loop.Text{TemplateID: "loop.llm.change", Args: map[string]any{"text": "It fails", "change": text}}, Severity: loop.SeverityLow,
		Proposal: loop.Change{Kind: loop.ChangeOps, Ops: []loop.Op{{
			Op: loop.OpAdd, Type: loop.ItemFact, Namespace: "default", Name: "math.add",
			Fields: map[string]any{"relation": loop.RelationLesson, "object": text, "confidence": 0.9},
		}}},
		Rollbackable: true, Evidence: []string{schema.ContentHash(text)}, Confidence: 0.9, Importance: 0.5,
		CreatedAtMS: time.Now().UnixMilli() - 1000, Scope: []string{}, Creator: "engine:exec.module_failure/1",
	}
	if change != nil {
		change(r)
	}
	body, hash, err := r.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := q.store.Put(t.Context(), loop.BucketRecs, hash, body, 0); err != nil {
		t.Fatal(err)
	}
	return hash
}

// as is the gateway as one person sees it who holds the scopes, all when none is named.
func (q *queue) as(t *testing.T, id string, scopes ...gateway.Scope) *gateway.Gateway {
	t.Helper()
	if len(scopes) == 0 {
		scopes = gateway.Scopes()
	}
	return newGateway(t, withModules, func(o *gateway.Options) {
		o.Auth = grants{module.NewIdentity(id, "user", nil, nil), scopes}
		o.Loop = &learned{Engine: q.engine}
	})
}

func because(text string) string { return fmt.Sprintf(`{"because":%q}`, text) }

func TestRecommendationsFromProposalToRollback(t *testing.T) {
	q := newQueue(t)
	hash := q.lesson(t, "Numbers first.", nil)
	g := q.as(t, "ana")
	path := "/v1/recommendations/" + hash
	guidance := func() string {
		return fmt.Sprint(record(g, "GET", "/v1/modules/math.add", "").fields(t)["guidance"])
	}
	if got := guidance(); got != "[]" {
		t.Fatalf("guidance %s before anything was applied", got)
	}
	res := record(g, "POST", path+"/apply", because("too early"))
	if res.status != 409 || !strings.Contains(res.body, "LOOP_ILLEGAL_TRANSITION") {
		t.Errorf("apply before approve: %d %s", res.status, res.body)
	}
	for _, step := range []struct{ act, state string }{{"approve", "approved"}, {"apply", "applied"}} {
		res := record(g, "POST", path+"/"+step.act, because("I looked"))
		if res.status != 200 || res.fields(t)["state"] != step.state {
			t.Fatalf("%s: %d %s", step.act, res.status, res.body)
		}
	}
	if got := guidance(); !strings.Contains(got, "Numbers first.") || !strings.Contains(got, hash) || !strings.Contains(got, "kind:lesson") {
		t.Errorf("guidance %s after the apply", got)
	}
	res = record(g, "POST", path+"/rollback", because("it was wrong"))
	if res.status != 200 || res.fields(t)["state"] != "rolled_back" {
		t.Fatalf("rollback: %d %s", res.status, res.body)
	}
	if got := guidance(); got != "[]" {
		t.Errorf("guidance %s after the rollback", got)
	}
	history := fmt.Sprint(res.fields(t)["history"])
	for _, part := range []string{"event:approved", "event:apply_intent", "event:applied", "event:rolled_back", "actor:ana", "observer_type:human", "because:it was wrong"} {
		if !strings.Contains(history, part) {
			t.Errorf("history lacks %s: %s", part, history)
		}
	}
}

func TestRecommendationsRefusals(t *testing.T) {
	q := newQueue(t)
	hash := q.lesson(t, "Numbers first.", func(r *loop.Recommendation) {
		r.Analyzer, r.Origin, r.Creator, r.CoCreator = loop.AnalyzerLLM, loop.Origin{Kind: loop.OriginLLM, Model: "m"}, "engine:loop.llm/1", "ana"
	})
	path := "/v1/recommendations/" + hash
	all := gateway.Scopes()
	tests := []struct {
		name, who    string
		scopes       []gateway.Scope
		method, path string
		body         string
		status       int
		code         string
	}{
		{"whoever had it drafted", "ana", all, "POST", path + "/approve", because("mine"), 403, "LOOP_SELF_APPROVAL"},
		{"no reason", "bob", all, "POST", path + "/approve", `{}`, 400, "LOOP_INVALID"},
		{"a blank reason", "bob", all, "POST", path + "/reject", because("  \t "), 400, "LOOP_INVALID"},
		{"a long reason", "bob", all, "POST", path + "/approve", because(strings.Repeat("x", 501)), 400, "LOOP_INVALID"},
		{"a reason that is no text", "bob", all, "POST", path + "/approve", `{"because":7}`, 400, "GENERAL_INVALID_INPUT"},
		{"an actor in the body", "bob", all, "POST", path + "/approve", `{"because":"x","actor":"eve"}`, 400, "GENERAL_INVALID_INPUT"},
		{"without review", "bob", []gateway.Scope{gateway.ScopeCall, gateway.ScopeApply}, "POST", path + "/approve", because("x"), 403, "ACL_DENIED"},
		{"review does not apply", "bob", []gateway.Scope{gateway.ScopeReview}, "POST", path + "/apply", because("x"), 403, "ACL_DENIED"},
		{"unknown", "bob", all, "GET", "/v1/recommendations/" + strings.Repeat("0", 64), "", 404, "LOOP_NOT_FOUND"},
		{"too short a beginning", "bob", all, "GET", "/v1/recommendations/" + hash[:11], "", 404, "LOOP_NOT_FOUND"},
		{"not a hash", "bob", all, "GET", "/v1/recommendations/x%2f..", "", 404, "LOOP_NOT_FOUND"},
		{"unknown state", "bob", all, "GET", "/v1/recommendations?state=open", "", 400, "GENERAL_INVALID_INPUT"},
		{"unknown cursor", "bob", all, "GET", "/v1/recommendations?cursor=x", "", 400, "GENERAL_INVALID_INPUT"},
		{"run options", "bob", all, "POST", "/v1/loop/run", `{"min_new":-1}`, 400, "GENERAL_INVALID_INPUT"},
		{"runs without operate", "bob", []gateway.Scope{gateway.ScopeCall, gateway.ScopeReview}, "GET", "/v1/loop/runs/plan.shop", "", 403, "ACL_DENIED"},
		{"runs of no module", "bob", all, "GET", "/v1/loop/runs/plan.*", "", 400, "INVALID_MODULE_ID"},
		{"too many runs", "bob", all, "GET", "/v1/loop/runs/plan.shop?limit=101", "", 400, "GENERAL_INVALID_INPUT"},
		{"no number of runs", "bob", all, "GET", "/v1/loop/runs/plan.shop?limit=x", "", 400, "GENERAL_INVALID_INPUT"},
		{"cases of an evalset", "bob", all, "POST", "/v1/loop/evalsets/math.add", `{"cases":[{"inputs":{}}]}`, 400, "GENERAL_INVALID_INPUT"},
		{"an evalset by who is no administrator", "bob", []gateway.Scope{gateway.ScopeApply}, "POST", "/v1/loop/evalsets/math.add", `{"cases":[{"inputs":{},"output":{}}]}`, 403, "LOOP_SCOPE"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			res := record(q.as(t, tt.who, tt.scopes...), tt.method, tt.path, tt.body)
			if res.status != tt.status || !strings.Contains(res.body, tt.code) {
				t.Errorf("got %d %s, want %d %s", res.status, res.body, tt.status, tt.code)
			}
		})
	}
	if c, err := q.engine.Case(t.Context(), hash); err != nil || c.Status.State != loop.StatePending || len(c.Status.History) != 0 {
		t.Errorf("a refusal left a trace: %+v, %v", c, err)
	}
}

func TestTwoReviewersRace(t *testing.T) {
	q := newQueue(t)
	hash := q.lesson(t, "Numbers first.", nil)
	g := []*gateway.Gateway{q.as(t, "ana"), q.as(t, "bob")}
	statuses := make([]int, 20)
	var wg sync.WaitGroup
	for i := range statuses {
		wg.Go(func() {
			act := []string{"approve", "reject"}[i/2%2]
			statuses[i] = record(g[i%2], "POST", "/v1/recommendations/"+hash+"/"+act, because("I was first")).status
		})
	}
	wg.Wait()
	won := 0
	for _, s := range statuses {
		switch s {
		case 200:
			won++
		case 409:
		default:
			t.Errorf("status %d, want 200 or 409", s)
		}
	}
	if won != 1 {
		t.Errorf("%d decisions were taken, want 1", won)
	}
}

func TestRecommendationsList(t *testing.T) {
	q := newQueue(t)
	high := q.lesson(t, "one", func(r *loop.Recommendation) { r.Severity = loop.SeverityHigh })
	old := q.lesson(t, "two", nil)
	late := q.lesson(t, "three", func(r *loop.Recommendation) { r.CreatedAtMS++ })
	other := q.lesson(t, "four", func(r *loop.Recommendation) { r.CreatedAtMS += 2; r.Target = "entity:lessons/no.such" })
	g := q.as(t, "ana")
	if res := record(g, "POST", "/v1/recommendations/"+late[:12]+"/reject", because("no")); res.status != 200 {
		t.Fatalf("reject by the beginning of the hash: %d %s", res.status, res.body)
	}
	for query, want := range map[string][]string{
		"":                               {high, old, late, other},
		"?state=rejected":                {late},
		"?state=pending,approved":        {high, old, other},
		"?severity=medium":               {high},
		"?module=math.add":               {high, old, late},
		"?analyzer=exec.module_failure":  {high, old, late, other},
		"?analyzer=exec.module":          nil,
		"?origin=llm":                    nil,
		"?limit=2":                       {high, old},
		"?cursor=" + old:                 {late, other},
		"?state=pending&cursor=" + high:  {old, other},
		"?state=pending&limit=1&cursor=": {high},
	} {
		res := record(g, "GET", "/v1/recommendations"+query, "")
		if res.status != 200 {
			t.Fatalf("%s: %d %s", query, res.status, res.body)
		}
		var got []string
		for _, item := range res.fields(t)["recommendations"].([]any) {
			got = append(got, item.(map[string]any)["hash"].(string))
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%q: got %v, want %v", query, got, want)
		}
		if next := res.fields(t)["next_cursor"]; (next != nil) != strings.Contains(query, "limit") {
			t.Errorf("%q: next_cursor %v", query, next)
		}
	}
}

func TestLoopStatusAndRun(t *testing.T) {
	q := newQueue(t)
	q.lesson(t, "one", nil)
	g := q.as(t, "ana")
	res := record(g, "POST", "/v1/loop/run", `{"full_sweep":true}`)
	if res.status != 200 || res.fields(t)["outcome"] != "ran" {
		t.Fatalf("run: %d %s", res.status, res.body)
	}
	res = record(g, "GET", "/v1/loop?probe=1", "")
	status := res.fields(t)
	if res.status != 200 || status["last_run_at"] == nil || fmt.Sprint(status["recommendations"]) != "map[pending:1]" ||
		fmt.Sprint(status["probe"].(map[string]any)["ok"]) != "false" {
		t.Errorf("status: %d %s", res.status, res.body)
	}
	if again := record(g, "POST", "/v1/loop/run", `{"if_stale_ms":3600000}`).fields(t); again["outcome"] != "skipped" || again["skip_reason"] != "not_stale" {
		t.Errorf("a second pass: %v", again)
	}
}

func TestRecommendationAnswersFitTheDocument(t *testing.T) {
	doc := openAPI(t)
	schemas := doc["components"].(map[string]any)["schemas"].(map[string]any)
	q := newQueue(t)
	hash := q.lesson(t, "one", nil)
	g := newGateway(t, withModules, func(o *gateway.Options) {
		o.Auth = grants{module.NewIdentity("ana", "user", nil, nil), gateway.Scopes()}
		o.Loop = &learned{q.engine, &gateway.LoopRun{At: time.Now(), Trigger: "ana", Router: "r1", Result: &loop.Result{Outcome: "ran", Funnel: &loop.Funnel{}}}}
	})
	for _, tt := range []struct{ method, path, body, schema string }{
		{"GET", "/v1/recommendations", "", "RecommendationList"},
		{"GET", "/v1/recommendations/" + hash, "", "Recommendation"},
		{"POST", "/v1/recommendations/" + hash + "/approve", because("x"), "Recommendation"},
		{"POST", "/v1/recommendations/" + hash + "/apply", because("x"), "Recommendation"},
		{"GET", "/v1/modules/math.add", "", "Module"},
		{"POST", "/v1/loop/run", "{}", "LoopResult"},
		{"GET", "/v1/loop?probe=1", "", "LoopStatus"},
		{"POST", "/v1/loop/evalsets/math.add", `{"cases":[{"inputs":{"a":1},"output":{}}]}`, "EvalsetStored"},
		{"POST", "/v1/loop/evalsets/math.add/run", "", "EvalsetRun"},
		{"GET", "/v1/loop/runs/plan.shop?limit=2", "", "PlanRuns"},
		{"GET", "/v1/loop/runs/plan.other", "", "PlanRuns"},
	} {
		t.Run(tt.method+" "+tt.path, func(t *testing.T) {
			compiled, err := schema.Compile(map[string]any{"$ref": "#/components/schemas/" + tt.schema, "components": map[string]any{"schemas": schemas}})
			if err != nil {
				t.Fatal(err)
			}
			res := record(g, tt.method, tt.path, tt.body)
			if res.status != 200 {
				t.Fatalf("%d %s", res.status, res.body)
			}
			if err := compiled.Validate(res.fields(t)); err != nil {
				t.Errorf("%s: %v", res.body, err)
			}
		})
	}
}

func TestRunsOfAPlan(t *testing.T) {
	g := newQueue(t).as(t, "ana")
	for path, want := range map[string]int{"plan.shop": 20, "plan.shop?limit=3": 3, "plan.other": 0} {
		res := record(g, "GET", "/v1/loop/runs/"+path, "")
		runs, _ := res.fields(t)["runs"].([]any)
		if res.status != 200 || len(runs) != want {
			t.Errorf("%s: %d, %d runs, want %d", path, res.status, len(runs), want)
		}
		if want == 0 {
			continue
		}
		r, _ := runs[0].(map[string]any)
		steps, _ := r["steps"].([]any)
		if r["id"] == nil || r["failed_node"] != "pay" || len(steps) != 2 || steps[1].(map[string]any)["code"] != "BROKEN" {
			t.Errorf("%s: %v", path, r)
		}
	}
}

// The cases of an evalset are called as whoever asks for the run, without a calling
// module, and are calls in flight like any other: they end with the gateway.
func TestEvalsetsRunAsWhoeverAsks(t *testing.T) {
	ana := module.NewIdentity("ana", "user", []string{"ops"}, nil)
	q := newQueue(t)
	var g *gateway.Gateway
	asked := 0
	g = newGateway(t, withModules, withInvoker(invoke(func(ctx context.Context, req *contextwire.Request) (*contextwire.Reply, error) {
		asked++
		if c := req.Context; c.Identity() != ana || c.CallerID() != "" || len(c.CallChain()) != 0 || req.ModuleID != "math.add" {
			t.Errorf("called as %v by %q: %+v", c.Identity(), c.CallerID(), req)
		}
		if asked == 2 {
			over, stop := context.WithCancel(t.Context())
			stop()
			g.Close(over) // which has no time to wait for it
			<-ctx.Done()
			return nil, module.Wrap(module.CodeExecutionCancelled, context.Cause(ctx), "it ended")
		}
		return &contextwire.Reply{Output: map[string]any{"sum": int64(3)}}, nil
	})), func(o *gateway.Options) {
		o.Auth, o.Loop = grants{ana, gateway.Scopes()}, &learned{q.engine, nil}
	})
	const one = `{"inputs":{"a":1,"b":2},"output":{"sum":3}}`
	if res := record(g, "POST", "/v1/loop/evalsets/math.add", `{"cases":[`+one+`,`+one+`,`+one+`]}`); res.status != 200 {
		t.Fatalf("%d %s", res.status, res.body)
	}
	res := record(g, "POST", "/v1/loop/evalsets/math.add/run", "")
	if asked != 2 || !strings.Contains(res.body, "EXECUTION_CANCELLED") {
		t.Errorf("%d calls, %d %s", asked, res.status, res.body)
	}
}
