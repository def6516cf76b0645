package integration_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// Who learns and who decides.
const (
	learnerToken = "learner-secret" // ann, who has passes made
	deciderToken = "decider-secret" // bob, who decides and administers
)

// school is an installation with a model that drafts what a test tells it to.
type school struct {
	*system
	script string // the transcript of the model
	flags  []string
}

func startSchool(t *testing.T, policy string, nodes ...[]string) *school {
	t.Helper()
	s := newSchool(t, policy)
	s.startRouter(append([]string{
		"--embed-listen", "127.0.0.1:0", "--data", filepath.Join(s.dir, "nats"), "--durability", "process-safe",
	}, s.flags...)...)
	s.startNodes(nodes...)
	return s
}

// newSchool prepares the files and the flags of a router.
func newSchool(t *testing.T, policy string) *school {
	t.Helper()
	s := &school{system: newSystem(t)}
	s.token = learnerToken
	s.script = filepath.Join(s.dir, "transcript.json")
	s.drafts()
	rules := filepath.Join(s.dir, "policy.json")
	if err := os.WriteFile(rules, []byte(policy), 0o600); err != nil {
		t.Fatal(err)
	}
	tokens := filepath.Join(s.dir, "tokens.yaml")
	const all = "call, cancel, operate, review, apply"
	writeTokens(t, tokens,
		[3]string{learnerToken, `{id: ann, type: user}`, all},
		[3]string{deciderToken, `{id: bob, type: user}`, all},
		[3]string{strangerToken, `{id: eve, type: user}`, all},
	)
	s.flags = []string{
		"--tokens", tokens, "--loop-policy", rules, "--loop-every", "0",
		"--llm-cmd", program(t, "apbus") + " demo-model --transcript " + s.script,
	}
	return s
}

const openPolicy = `{"min_evidence":1,"code":{"enabled":true}}`

// draft is what the model drafts.
type draft map[string]any

// drafts tells the model what to draft from now on.
func (s *school) drafts(list ...draft) {
	s.t.Helper()
	if list == nil {
		list = []draft{}
	}
	raw, err := json.Marshal(map[string]any{"model": "scripted", "drafts": list})
	if err == nil {
		err = os.WriteFile(s.script, raw, 0o600)
	}
	if err != nil {
		s.t.Fatal(err)
	}
}

// lesson drafts a lesson about demo.fail.
func lesson(text string) draft {
	return draft{"cites": []string{"demo.fail"}, "summary": "It fails: " + text, "target": "entity:lessons/demo.fail", "confidence": 0.9, "lesson": text}
}

func proposal(kind, target, cited string, fields map[string]any) draft {
	p := map[string]any{"kind": kind}
	for key, v := range fields {
		p[key] = v
	}
	return draft{"cites": strings.Fields(cited), "summary": "A " + kind + " for " + target, "target": target, "confidence": 0.9, "proposal": p}
}

// pass has one pass made over all evidence and returns its result.
func (s *school) pass() map[string]any {
	s.t.Helper()
	var a answer
	eventually(s.t, startLimit, "nobody else makes a pass", func() bool {
		a = s.do(http.MethodPost, "/v1/loop/run", `{"full_sweep":true}`)
		return a.doc["skip_reason"] != "lock_held"
	})
	if a.status != http.StatusOK || a.doc["outcome"] != "ran" {
		s.t.Fatalf("a pass: %v", a)
	}
	return a.doc
}

// learn has the model draft and returns the hashes of what it proposes, in the order
// of the drafts; each must be executable and of its kind.
func (s *school) learn(list ...draft) []string {
	s.t.Helper()
	s.drafts(list...)
	res := s.pass()
	recs, _ := res["recs"].([]any)
	var hashes []string
	for _, d := range list {
		summary, _ := d["summary"].(string)
		found := ""
		for _, h := range recs {
			r := s.as(deciderToken, http.MethodGet, "/v1/recommendations/"+fmt.Sprint(h), "")
			if strings.HasPrefix(fmt.Sprint(r.doc["summary"]), summary+" --") && r.doc["executable"] == true {
				found = fmt.Sprint(h)
			}
		}
		if found == "" {
			s.t.Fatalf("nothing executable came of %v: %v", d, res)
		}
		hashes = append(hashes, found)
	}
	return hashes
}

func (s *school) act(token, hash, verb string) answer {
	s.t.Helper()
	return s.as(token, http.MethodPost, "/v1/recommendations/"+hash+"/"+verb, `{"because":"the test says so"}`)
}

// must takes steps of bob's that are to succeed.
func (s *school) must(hash string, verbs ...string) {
	s.t.Helper()
	for _, verb := range verbs {
		if a := s.act(deciderToken, hash, verb); a.status != http.StatusOK {
			s.t.Fatalf("%s: %v", verb, a)
		}
	}
}

// adopt approves and applies.
func (s *school) adopt(hashes ...string) {
	s.t.Helper()
	for _, h := range hashes {
		s.must(h, "approve", "apply")
	}
}

// guidance is what callers are told about a module, as one text.
func (s *school) guidance(id string) string {
	s.t.Helper()
	var lines []string
	for _, g := range list(s.get("/v1/modules/"+id).doc, "guidance") {
		lines = append(lines, fmt.Sprintf("%v: %v", g["kind"], g["text"]))
	}
	return strings.Join(lines, "\n")
}

// happen makes calls that leave evidence, and waits until it is there.
func (s *school) happen() {
	s.t.Helper()
	for range 6 {
		if a := s.call("demo.fail", `{"code":"SHOP_CLOSED"}`); a.code() != "SHOP_CLOSED" {
			s.t.Fatalf("demo.fail: %v", a)
		}
		s.call("demo.whoami", `{}`)
		s.call("demo.sleep", `{"ms":1}`)
	}
	eventually(s.t, startLimit, "the evidence is kept", func() bool {
		return len(list(s.get("/v1/evidence?type=call").doc, "evidence")) >= 18
	})
}

// Guidance, from a run to its rollback, seen by a caller of another node.
func TestLoopFromRunToRollback(t *testing.T) {
	t.Parallel()
	s := startSchool(t, openPolicy, []string{"n1", "demo"}, []string{"n2", "math,demo"})
	s.happen()
	const text = "Ask when the shop opens."
	hash := s.learn(lesson(text))[0]
	if got := s.guidance("demo.fail"); got != "" {
		t.Errorf("guidance before anybody decided: %s", got)
	}
	if a := s.act(deciderToken, hash, "apply"); a.status != http.StatusConflict {
		t.Errorf("apply before approve: %v", a)
	}
	if a := s.act(learnerToken, hash, "approve"); a.code() != "LOOP_SELF_APPROVAL" {
		t.Errorf("self-approval: %v", a)
	}
	again := s.pass()
	if again["stored"] != 0.0 {
		t.Errorf("a second pass stored something: %v", again)
	}

	// Of two reviewers at once one decides.
	var wg sync.WaitGroup
	answers := make([]answer, 2)
	for i, token := range []string{deciderToken, strangerToken} {
		wg.Go(func() {
			answers[i], _ = s.try(t.Context(), http.MethodPost, "/v1/recommendations/"+hash+"/approve", `{"because":"x"}`, "Authorization: Bearer "+token)
		})
	}
	wg.Wait()
	if a, b := answers[0].status, answers[1].status; a+b != http.StatusOK+http.StatusConflict {
		t.Errorf("two reviewers: %v and %v", answers[0], answers[1])
	}
	s.must(hash, "apply")
	if got := s.guidance("demo.fail"); got != "lesson: "+text {
		t.Errorf("guidance after the apply: %q", got)
	}
	stdout, p := s.cli("modules", "demo.fail")
	if p.exit(startLimit) != 0 || !strings.Contains(stdout, text) {
		t.Errorf("apbus modules demo.fail: %s", stdout)
	}
	if stdout, _ := s.cli("recs", "show", hash[:12]); !strings.Contains(stdout, text) || !strings.Contains(stdout, "SHOP_CLOSED") || !strings.Contains(stdout, "the test says so") {
		t.Errorf("apbus recs show: %s", stdout)
	}
	s.must(hash, "rollback")
	if got := s.guidance("demo.fail"); got != "" {
		t.Errorf("guidance after the rollback: %q", got)
	}
}

// Each kind of proposal changes something real, and its rollback restores it.
func TestLoopEveryKind(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"greet.sh":      "printf '{\"text\":\"hello\"}'\n",
		"bindings.yaml": "bindings:\n- module_id: shop.greet\n  description: Greet\n  command: {argv: [sh, \"{source}\"], source: greet.sh}\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s := startSchool(t, openPolicy, []string{"n1", "demo"}, []string{"n2", "math", "--bindings", filepath.Join(dir, "bindings.yaml")})
	s.happen()
	s.call("shop.greet", `{}`)

	t.Run("fact and skill", func(t *testing.T) {
		s := &school{s.in(t), s.script, s.flags}
		hashes := s.learn(
			proposal("fact", "entity:lessons/demo.sleep", "demo.sleep", map[string]any{"relation": "needs_timeout", "object": "ms and a little"}),
			proposal("skill", "entity:default/patience", "demo.sleep", map[string]any{
				"description": "Wait well", "when_to_use": "before demo.sleep", "steps": []string{"Breathe.", "Call demo.sleep."},
			}))
		s.adopt(hashes...)
		got := s.guidance("demo.sleep")
		if !strings.Contains(got, "fact: needs_timeout ms and a little") || !strings.Contains(got, "skill: patience: Wait well") {
			t.Errorf("guidance %q", got)
		}
		for _, h := range hashes {
			s.must(h, "rollback")
		}
		if got := s.guidance("demo.sleep"); got != "" {
			t.Errorf("guidance after the rollback: %q", got)
		}
	})

	t.Run("plan and its revision", func(t *testing.T) { (&school{s.in(t), s.script, s.flags}).plans() })
	t.Run("saved query", func(t *testing.T) {
		s := &school{s.in(t), s.script, s.flags}
		shown := func() any {
			s.t.Helper()
			s.drafts()
			return s.pass()["llm_funnel"].(map[string]any)["evidence"]
		}
		hash := s.learn(proposal("query_revision", "query:discover", "demo.fail", map[string]any{"body": "module=no.such"}))[0]
		before := shown()
		s.adopt(hash)
		if after := shown(); after.(float64) >= before.(float64) {
			t.Errorf("the model is shown %v records with the query, %v without", after, before)
		}
		s.must(hash, "rollback")
		if after := shown(); after != before {
			t.Errorf("the model is shown %v records after the rollback, %v before", after, before)
		}
	})
	t.Run("program", func(t *testing.T) { (&school{s.in(t), s.script, s.flags}).programs() })
	t.Run("lessons and their consolidation", func(t *testing.T) { (&school{s.in(t), s.script, s.flags}).consolidations() })
}

// A call leaves evidence of the guidance that was in force for its module, so that the
// loop finds out that a skill does not help.
func TestLoopFindsASkillThatDoesNotHelp(t *testing.T) {
	t.Parallel()
	s := startSchool(t, openPolicy, []string{"n1", "demo"}, []string{"n2", "math"})
	s.happen()
	hash := s.learn(proposal("skill", "entity:default/knock", "demo.fail", map[string]any{
		"description": "Knock before demo.fail", "when_to_use": "the shop is closed", "steps": []string{"Knock.", "Call demo.fail."},
	}))[0]
	// with counts the records of calls of a module with and without guidance.
	with := func(module string) (guided, bare int) {
		t.Helper()
		for _, r := range list(s.get("/v1/evidence?limit=500&type=call&module="+module).doc, "evidence") {
			if named, _ := r["guidance"].([]any); len(named) > 0 {
				guided++
			} else {
				bare++
			}
		}
		return guided, bare
	}
	if guided, bare := with("demo.fail"); guided != 0 || bare < 6 {
		t.Errorf("%d of %d calls name guidance before there is any", guided, guided+bare)
	}
	s.adopt(hash)
	eventually(t, startLimit, "calls are recorded with the skill", func() bool {
		s.call("demo.fail", `{"code":"SHOP_CLOSED"}`)
		s.call("demo.whoami", `{}`)
		guided, _ := with("demo.fail")
		return guided >= 5
	})
	if guided, _ := with("demo.whoami"); guided != 0 {
		t.Errorf("%d calls of a module that the skill does not name", guided)
	}
	s.drafts()
	s.pass()
	found := list(s.as(deciderToken, http.MethodGet, "/v1/recommendations?analyzer=exec.skill_stall", "").doc, "recommendations")
	if len(found) != 1 || !strings.Contains(fmt.Sprint(found[0]), "entity:skills/knock") || !strings.Contains(fmt.Sprint(found[0]), "the skill knock was in force, 0 % succeeded") {
		t.Errorf("findings: %v", found)
	}
	s.must(hash, "rollback")
	guided, _ := with("demo.fail")
	eventually(t, startLimit, "calls are recorded without the skill", func() bool {
		_, before := with("demo.fail")
		s.call("demo.fail", `{"code":"SHOP_CLOSED"}`)
		eventually(t, startLimit, "the call is recorded", func() bool { g, b := with("demo.fail"); return g+b > guided+before })
		now, after := with("demo.fail")
		guided = now
		return after > before
	})
}

func (s *school) plans() {
	t := s.t
	hash := s.learn(proposal("plan", "entity:default/try-shop", "demo.fail demo.whoami", map[string]any{
		"description": "Try the shop", "when_to_use": "always", "nodes": []any{
			map[string]any{"id": "look", "tool": "demo.whoami", "step": "Look."},
			map[string]any{"id": "shop", "tool": "demo.fail", "step": "Try."},
		},
		"edges": []any{map[string]any{"src": "look", "dst": "shop"}},
	}))[0]
	if a := s.call("plan.try_shop", `{}`); a.status != http.StatusNotFound {
		t.Errorf("a plan that nobody applied: %v", a)
	}
	s.adopt(hash)
	tries := func(key string) answer {
		s.t.Helper()
		return s.call("plan.try_shop", `{"look":{},"shop":{"code":"SHOP_CLOSED","times":1,"key":"`+key+`"}}`)
	}
	eventually(t, startLimit, "the plan is hosted", func() bool { return len(list(s.get("/v1/modules/plan.try_shop").doc, "hosts")) == 2 })
	// Both calls of a key may meet different nodes only in the plan, not in demo.fail,
	// which one node hosts.
	if a := tries("k1"); a.code() != "SHOP_CLOSED" {
		t.Errorf("the plan's first run: %v", a)
	}
	a := tries("k1")
	outputs, _ := a.doc["outputs"].(map[string]any)
	if a.status != http.StatusOK || outputs["look"] == nil || outputs["shop"] == nil || len(list(a.doc, "timeline")) != 2 {
		t.Errorf("the plan's second run: %v", a)
	}

	revise := proposal("plan_revision", "grain:$plan", "try-shop", map[string]any{
		"edits": []any{map[string]any{"path": "retries.shop", "from": nil, "to": 2}},
	})
	revise["summary"] = "The shop opens late"
	revision := s.learn(revise)[0]
	s.adopt(revision)
	retries := func(want string) {
		s.t.Helper()
		n := 0
		eventually(t, startLimit, "the plan answers "+want, func() bool {
			n++
			a := tries(fmt.Sprint(want, n)) // a key that has never failed
			return a.code() == want && (want != "" || a.status == http.StatusOK)
		})
	}
	retries("")
	s.must(revision, "rollback")
	retries("SHOP_CLOSED")
	s.must(hash, "rollback")
	eventually(t, startLimit, "the plan is gone", func() bool { return s.get("/v1/modules/plan.try_shop").status == http.StatusNotFound })
}

func (s *school) programs() {
	t := s.t
	says := func(want string) {
		s.t.Helper()
		eventually(t, startLimit, "shop.greet says "+want, func() bool { return s.call("shop.greet", `{}`).doc["text"] == want })
	}
	says("hello")
	cases := `{"cases":[{"inputs":{},"output":{"text":"good day"}}]}`
	if a := s.as(deciderToken, http.MethodPost, "/v1/loop/evalsets/shop.greet", cases); a.status != http.StatusOK {
		t.Fatalf("evalset: %v", a)
	}
	// The live program against its evalset, as its outcome is measured by it.
	tried := func(passed, failed float64) {
		s.t.Helper()
		a := s.as(deciderToken, http.MethodPost, "/v1/loop/evalsets/shop.greet/run", "")
		if a.doc["passed"] != passed || a.doc["failed"] != failed {
			t.Errorf("a run of the evalset: %v, want %v passed and %v failed", a, passed, failed)
		}
	}
	tried(0, 1)
	program := func(summary, text string) string {
		d := proposal("code_revision", "tool:shop.greet", "demo.fail", map[string]any{"source": "printf '{\"text\":\"" + text + "\"}'\n"})
		d["summary"] = summary
		return s.learn(d)[0]
	}
	worse := program("It is too rude", "what")
	s.must(worse, "approve")
	better := program("It is too short", "good day")
	s.must(better, "approve")
	eventually(t, startLimit, "the evalset has passed and the program is applied", func() bool {
		a := s.act(deciderToken, better, "apply")
		if a.status != http.StatusOK && a.code() != "LOOP_GATED" {
			t.Fatalf("apply: %v", a)
		}
		return a.status == http.StatusOK
	})
	says("good day")
	tried(1, 0)
	if a := s.act(deciderToken, worse, "apply"); a.code() != "LOOP_GATED" && a.code() != "LOOP_STALE" {
		t.Errorf("a program that fails its evalset: %v", a)
	}
	s.must(better, "rollback")
	says("hello")
	eventually(t, startLimit, "the evalset of the worse program has failed", func() bool {
		a := s.act(deciderToken, worse, "apply")
		if a.status == http.StatusOK {
			t.Fatalf("a program that fails its evalset was applied")
		}
		return a.code() == "LOOP_GATED" && strings.Contains(a.raw, "0 of 1 cases passed")
	})
}

func (s *school) consolidations() {
	t := s.t
	var lessons []draft
	for _, text := range []string{
		"Doors open at nine.", "Bring exact change.", "Parking costs extra.", "Mondays are quiet.", "Returns need receipts.",
		"Cards beat cash here.", "Queues form at noon.", "Dogs must wait outside.", "Gift wrapping takes minutes.",
	} {
		lessons = append(lessons, lesson(text))
	}
	hashes := append(s.learn(lessons[:5]...), s.learn(lessons[5:]...)...)
	s.adopt(hashes...)
	before := s.guidance("demo.fail")
	if strings.Count(before, "lesson:") != len(lessons) {
		t.Fatalf("guidance %q, want %d lessons", before, len(lessons))
	}
	one := proposal("consolidation", "entity:default/demo.fail", "demo.fail", map[string]any{"lesson": "Come early and with a receipt.", "supersedes": "$lessons"})
	hash := s.learn(one)[0]
	s.adopt(hash)
	if got := s.guidance("demo.fail"); got != "lesson: Come early and with a receipt." {
		t.Errorf("guidance after the consolidation: %q", got)
	}
	s.must(hash, "rollback")
	if got := s.guidance("demo.fail"); got != before {
		t.Errorf("guidance after the rollback: %q, want %q", got, before)
	}
}

// However many routers run the loop, a pass is made by one.
func TestLoopOfTwoRouters(t *testing.T) {
	t.Parallel()
	server := startServer(t)
	s := newSchool(t, openPolicy)
	s.flags = append(s.flags[:len(s.flags):len(s.flags)], "--nats", server.url)
	first := s.startRouter(s.flags...)
	s.startNodes([]string{"n1", "demo"})
	s.happen()
	second := &school{system: newSystem(t), script: s.script, flags: s.flags}
	second.token = s.token
	second.startRouter(s.flags...)

	s.drafts(lesson("Knock first."), lesson("Ring the bell."))
	var wg sync.WaitGroup
	results := make([]answer, 6)
	for i := range results {
		wg.Go(func() {
			results[i], _ = []*school{s, second}[i%2].try(t.Context(), http.MethodPost, "/v1/loop/run", `{"full_sweep":true}`)
		})
	}
	wg.Wait()
	ran := 0
	for _, a := range results {
		switch {
		case a.doc["outcome"] == "ran":
			ran++
		case a.doc["skip_reason"] != "lock_held":
			t.Errorf("a pass beside others: %v", a)
		}
	}
	if ran == 0 {
		t.Error("no pass was made")
	}
	drafted := list(second.as(deciderToken, http.MethodGet, "/v1/recommendations?origin=llm", "").doc, "recommendations")
	if len(drafted) != 2 {
		t.Errorf("%d drafts are stored, want 2: %v", len(drafted), drafted)
	}

	// What one router was told, the other one shows; a router that is killed leaves
	// no lock behind for long.
	first.kill()
	first.exit(startLimit)
	if last, _ := second.get("/v1/loop").doc["last_run"].(map[string]any); last["trigger"] != "ann" {
		t.Errorf("the last pass is %v", last)
	}
	eventually(t, startLimit, "a pass after the other router was killed", func() bool {
		return second.do(http.MethodPost, "/v1/loop/run", `{}`).doc["outcome"] == "ran"
	})
}

// The schedule makes passes by itself, one at a time.
func TestLoopSchedule(t *testing.T) {
	t.Parallel()
	s := newSchool(t, `{}`)
	for i, f := range s.flags {
		if f == "--loop-every" {
			s.flags[i+1] = "1s"
		}
	}
	s.startRouter(append([]string{
		"--embed-listen", "127.0.0.1:0", "--data", filepath.Join(s.dir, "nats"), "--durability", "process-safe",
	}, s.flags...)...)
	eventually(t, startLimit, "a pass was made by the schedule", func() bool {
		last, _ := s.get("/v1/loop").doc["last_run"].(map[string]any)
		return last["trigger"] == "system:loop"
	})
}

// A router that is killed in the middle of an apply leaves one outcome.
func TestLoopRouterKilledWhileApplying(t *testing.T) {
	t.Parallel()
	server := startServer(t)
	s := newSchool(t, openPolicy)
	s.flags = append(s.flags[:len(s.flags):len(s.flags)], "--nats", server.url)
	s.startRouter(s.flags...)
	s.startNodes([]string{"n1", "demo"})
	s.happen()
	const rounds = 6
	for i := range rounds {
		text := fmt.Sprintf("Lesson %s of many.", strings.Repeat("x", i+1))
		hash := s.learn(lesson(text))[0]
		s.must(hash, "approve")
		done := make(chan struct{})
		go func() {
			defer close(done)
			_, _ = s.try(t.Context(), http.MethodPost, "/v1/recommendations/"+hash+"/apply", `{"because":"x"}`, "Authorization: Bearer "+deciderToken)
		}()
		time.Sleep(time.Duration(i) * 700 * time.Microsecond) //archtest:real-time a kill somewhere between the writes of a real process
		s.router.kill()
		<-done
		s.startRouter(s.flags...)
		eventually(t, startLimit, "the module is known again", func() bool { return s.get("/v1/modules/demo.fail").status == http.StatusOK })
		// Nobody waits: the router that starts, or whoever reads it, finishes what was cut
		// off.
		r := s.as(deciderToken, http.MethodGet, "/v1/recommendations/"+hash, "").doc
		known := strings.Count(s.guidance("demo.fail"), text)
		switch {
		case r["intent"] != nil:
			t.Errorf("it is stuck in %v", r["intent"])
		case r["state"] == "applied" && known == 1:
		case r["state"] == "approved" && known == 0:
			s.must(hash, "apply")
		default:
			t.Errorf("state %v, and the lesson is there %d times", r["state"], known)
		}
	}
}
