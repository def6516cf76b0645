package integration_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
)

// A plan over two nodes leaves runs; a revision is replayed against them, refused where
// they speak against it, and otherwise reviewed and applied. No card is in any of it.
func TestPlanRunsAndTheirReplay(t *testing.T) {
	t.Parallel()
	s := startSchool(t, `{"min_evidence":1,"plan_replay":{"min_runs":3}}`, []string{"n1", "inventory"}, []string{"n2", "payments"})
	const good, bad = "4111222233334444", "4111222233330002"
	order := `{"order_id":"o-1","items":[{"sku":"tea","qty":1}]}`
	charge := func(card string) string { return `{"order_id":"o-1","amount_cents":450,"card":"` + card + `"}` }
	s.call("inventory.reserve", order)
	s.call("payments.charge", charge(good))
	eventually(t, startLimit, "the evidence is kept", func() bool {
		return len(list(s.get("/v1/evidence?type=call").doc, "evidence")) >= 2
	})
	hash := s.learn(proposal("plan", "entity:default/buy", "inventory.reserve payments.charge", map[string]any{
		"description": "Buy something", "when_to_use": "always", "nodes": []any{
			map[string]any{"id": "take", "tool": "inventory.reserve", "step": "Reserve."},
			map[string]any{"id": "pay", "tool": "payments.charge", "step": "Charge."},
		},
		"edges": []any{map[string]any{"src": "take", "dst": "pay"}},
	}))[0]
	s.adopt(hash)
	eventually(t, startLimit, "the plan is hosted", func() bool { return len(list(s.get("/v1/modules/plan.buy").doc, "hosts")) == 2 })

	buy := func(card string) answer {
		s.t.Helper()
		return s.call("plan.buy", `{"take":`+order+`,"pay":`+charge(card)+`}`)
	}
	for range 3 {
		if a := buy(good); a.status != http.StatusOK {
			t.Fatalf("the plan: %v", a)
		}
	}
	if a := buy(bad); a.code() != "PAYMENT_DECLINED" {
		t.Fatalf("the plan with a bad card: %v", a)
	}
	runs := func() (answer, []map[string]any) {
		s.t.Helper()
		a := s.get("/v1/loop/runs/plan.buy")
		return a, list(a.doc, "runs")
	}
	eventually(t, startLimit, "four runs are journaled", func() bool { _, r := runs(); return len(r) == 4 })
	raw, journaled := runs()
	versions := map[any]int{}
	outcomes := map[any]int{}
	for _, r := range journaled {
		versions[r["plan_hash"]]++
		outcomes[fmt.Sprint(r["outcome"], r["failed_node"])]++
		steps := list(r, "steps")
		if len(steps) != 2 || steps[0]["tool"] != "inventory.reserve" || fmt.Sprint(steps[0]["output"]) == "<nil>" || r["trace_id"] == nil || r["identity_id"] != "ann" {
			t.Errorf("a run: %v", r)
		}
	}
	if len(versions) != 1 || outcomes["ok<nil>"] != 3 || outcomes["errorpay"] != 1 {
		t.Errorf("runs of versions %v, outcomes %v", versions, outcomes)
	}
	evidence := s.get("/v1/evidence?limit=500")
	for _, secret := range []string{good, bad} {
		for what, a := range map[string]answer{"the journal": raw, "evidence": evidence} {
			if strings.Contains(a.raw, secret) {
				t.Errorf("a card is in %s: %s", what, a.raw)
			}
		}
	}
	if !strings.Contains(raw.raw, "tea") {
		t.Errorf("nothing but the card is hidden: %s", raw.raw)
	}
	if a := s.as(strangerToken+"x", http.MethodGet, "/v1/loop/runs/plan.buy", ""); a.status != http.StatusUnauthorized {
		t.Errorf("runs for nobody: %v", a)
	}

	revise := func(summary string, cond string) map[string]any {
		s.t.Helper()
		d := proposal("plan_revision", "grain:$plan", "buy", map[string]any{
			"edits": []any{map[string]any{"path": "edges.0.cond", "from": nil, "to": cond}},
		})
		d["summary"] = summary
		s.drafts(d)
		recs, _ := s.pass()["recs"].([]any)
		for _, h := range recs {
			if r := s.as(deciderToken, http.MethodGet, "/v1/recommendations/"+fmt.Sprint(h), ""); strings.HasPrefix(fmt.Sprint(r.doc["summary"]), summary) {
				return r.doc
			}
		}
		t.Fatalf("nothing came of %q: %v", summary, recs)
		return nil
	}
	body := func(r map[string]any) map[string]any { b, _ := r["recommendation"].(map[string]any); return b }
	refused := revise("Never charge anybody", "take.total_cents == 0")
	replay, _ := body(refused)["replay"].(map[string]any)
	if refused["executable"] != false || replay["verdict"] != "refused" || replay["worse"] != 3.0 || replay["same"] != 1.0 || len(replay["worse_runs"].([]any)) != 3 {
		t.Errorf("a revision under which nobody would pay: %v", refused)
	}
	if a := s.act(deciderToken, fmt.Sprint(refused["hash"]), "approve"); a.status == http.StatusOK {
		if a := s.act(deciderToken, fmt.Sprint(refused["hash"]), "apply"); a.code() != "LOOP_ILLEGAL_TRANSITION" {
			t.Errorf("what was refused is applied: %v", a)
		}
	}
	passed := revise("Charge for what was taken", "take.reservation_id exists")
	replay, _ = body(passed)["replay"].(map[string]any)
	if passed["executable"] != true || replay["verdict"] != "passed" || replay["runs"] != 4.0 || replay["same"] != 4.0 || replay["calls_after"] != 8.0 {
		t.Errorf("a revision that changes nothing for these runs: %v", passed)
	}
	revision := fmt.Sprint(passed["hash"])
	if stdout, _ := s.cli("recs", "show", revision[:12]); !strings.Contains(stdout, "4: 4 same") || !strings.Contains(stdout, "passed") {
		t.Errorf("apbus recs show: %s", stdout)
	}
	s.adopt(revision)
	history := fmt.Sprint(s.as(deciderToken, http.MethodGet, "/v1/recommendations/"+revision, "").doc["history"])
	if !strings.Contains(history, "verdict:passed") {
		t.Errorf("the audit log does not say by what it was allowed: %s", history)
	}
	eventually(t, startLimit, "a run of the new version is journaled", func() bool {
		buy(good)
		_, list := runs()
		return len(list) > 0 && list[0]["plan_hash"] != journaled[0]["plan_hash"]
	})
	stdout, p := s.cli("loop", "runs", "plan.buy", "--limit=1")
	if p.exit(startLimit) != 0 || !strings.Contains(stdout, "payments.charge") || !strings.Contains(stdout, "edge 0, round 1: its condition held") {
		t.Errorf("apbus loop runs: %s", stdout)
	}
	s.must(revision, "rollback")
	s.must(hash, "rollback")
}
