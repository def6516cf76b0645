package main

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const (
	recHash = "aaaaaaaaaaaabbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
	recHead = `"hash":"` + recHash + `","state":"pending","intent":null,"analyzer":"loop.llm/1","origin":"llm","model":"m-small","target":"entity:lessons/math.add",` +
		`"action":"record","kind":"skill","severity":"low","summary":"Sums fail\u001b[2J -- skill","guidance":"Look twice.","confidence":0.83,"importance":0.6,"executable":true,` +
		`"destructive":false,"rollbackable":true,"near_duplicates":1,"created_at":"2026-01-02T03:04:05.000Z","changed_at":"2026-01-02T03:04:05.000Z","verdict":null`
	recAdvice = `{"hash":"ccccccccccccdddddddddddddddddddddddddddddddddddddddddddddddddddd","state":"approved","analyzer":"exec.acl_denial/1","origin":"builtin","target":"host:acl/orders.place",` +
		`"action":"flag","kind":null,"severity":"medium","summary":"orders.place is denied","executable":false,"destructive":false,"rollbackable":false,"created_at":"2026-01-02T03:04:05.000Z"}`
	recDoc = `{` + recHead + `,"recommendation":{"co_creator":"ana","proposal":{"kind":"ops","ops":[{"op":"add","type":"skill","namespace":"default","name":"sum-up",` +
		`"fields":{"description":"Add","steps":["Look.","Add\u202e."],"source":"a = 1\n\tb = 2\n"}},{"op":"hide","type":"fact","name":"math.add","replaces":"ee","fields":{"relation":"lesson","object":"x"}}]},` +
		`"replay":{"runs":4,"same":2,"better":0,"worse":1,"out_of_support":1,"calls_before":7,"calls_after":6,"no_worse":false,"verdict":"refused","because":"1 of 4 journaled runs would end worse","worse_runs":["` + recHash + `"]},` +
		`"near_duplicate_of":[{"hash":"ff","score":0.75,"method":"jaccard","state":"rejected"}]},` +
		`"evidence":[{"time":"2026-01-02T03:04:05.000Z","type":"call","module_id":"math.add","outcome":"error","code":"SHOP_CLOSED","node":"n1","message":"no"}],"evidence_gone":2,` +
		`"history":[{"at":"2026-01-02T03:04:05.000Z","event":"pending","actor":"engine:loop.llm/1","observer_type":"system","because":"proposed by loop.llm/1"}]}`
	loopDoc = `{"last_run_at":"2026-01-02T03:04:05.000Z","model":"m-small","stale":true,"new_grains":12,"new_error_events":3,"unread":0,"recommendations":{"pending":2,"applied":1,"rejected":0},` +
		`"analyzers":[{"id":"exec.cold_module/1","title":"Cold","description":"Never called.","runs":false}],"last_run":{"at":"2026-01-02T03:04:05.000Z","trigger":"ana","router":"r1",` +
		`"result":` + passDoc + `}}`
	runsDoc = `{"runs":[{"id":"` + recHash + `","v":1,"plan":"plan.shop","plan_hash":"` + recHash + `","node":"n1","call":"c1","trace_id":"t1","identity_id":"ana","started_ms":1767323045000,"ended_ms":1767323045120,` +
		`"outcome":"error","code":"BROKEN","failed_node":"pay","inputs":{"order":"o-1"},"dropped":3,"steps":[{"node":"look","tool":"shop.look","generation":1,"attempt":1,"outcome":"ok","started_ms":1767323045001,"ended_ms":1767323045020,"output":{"ok":true}},` +
		`{"node":"pay","tool":"shop.pay","generation":2,"attempt":3,"outcome":"error","code":"BROKEN","started_ms":1767323045021,"ended_ms":1767323045119},{"node":"big","tool":"shop.big","generation":1,"attempt":1,"outcome":"ok","output_left_out":true,"started_ms":1767323045021,"ended_ms":1767323045022},{"node":"tell","tool":"shop.tell","generation":1,"outcome":"dead"}],` +
		`"decisions":[{"edge":0,"generation":1,"held":true},{"edge":2,"generation":1,"held":false}]},` +
		`{"id":"` + recHash + `","plan":"plan.shop","plan_hash":"` + recHash + `","started_ms":1767323045000,"ended_ms":1767323045000,"outcome":"ok","steps":[]}]}`
	passDoc = `{"outcome":"ran","proposed":5,"deduped":3,"stored":2,"expired":1,"analyzers_run":[],"analyzers_skipped":[{"id":"exec.x/1","reason":"denied by policy"}],` +
		`"llm_funnel":{"evidence":9,"proposed":3,"cited":3,"grounded":2,"kept":1,"stored":1,"ground_call_failed":true,"verify_call_failed":false}}`
)

func recAnswers() map[string]fakeAnswer {
	return map[string]fakeAnswer{
		"GET /v1/recommendations":               {body: `{"recommendations":[{` + recHead + `},` + recAdvice + `],"next_cursor":null,"unreadable":0}`},
		"GET /v1/recommendations?state=pending": {body: `{"recommendations":[{` + recHead + `}],"next_cursor":"c1","unreadable":3}`},
		"GET /v1/recommendations?cursor=c&module=m&origin=llm&severity=low&state=a%2Cb": {body: `{"recommendations":[],"next_cursor":null,"unreadable":0}`},
		"GET /v1/recommendations/aaaaaaaaaaaa":                                          {body: recDoc},
		"POST /v1/recommendations/aaaaaaaaaaaa/approve":                                 {body: strings.Replace(recDoc, `"pending"`, `"approved"`, 1)},
		"POST /v1/recommendations/aaaaaaaaaaaa/apply":                                   {body: strings.Replace(recDoc, `"pending"`, `"applied"`, 1)},
		"POST /v1/recommendations/aaaaaaaaaaaa/rollback":                                {body: strings.Replace(recDoc, `"pending"`, `"rolled_back"`, 1)},
		"POST /v1/recommendations/aaaaaaaaaaaa/reject":                                  {status: 409, body: `{"error":{"code":"LOOP_CONFLICT","message":"somebody else has changed this recommendation meanwhile"}}`},
		"GET /v1/loop":                        {body: loopDoc},
		"GET /v1/loop/runs/plan.shop?limit=2": {body: runsDoc},
		"GET /v1/loop/runs/plan.none?limit=5": {body: `{"runs":[]}`},
		"GET /v1/loop?probe=1":                {body: `{"probe":{"ok":true,"model":"m-small","message":null}}`},
		"POST /v1/loop/run":                   {body: passDoc},
		"POST /v1/loop/evalsets/math.add/run": {body: `{"module_id":"math.add","passed":3,"failed":1,"duration_ms":12}`},
		"POST /v1/loop/evalsets/math.add":     {body: `{"module_id":"math.add","evalset_hash":"abc"}`},
	}
}

func TestRecs(t *testing.T) {
	for _, tt := range []struct {
		name     string
		args     []string
		stdin    string
		exit     int
		stdout   string // "golden" is a file
		stderr   []string
		requests []string
	}{
		{name: "recs", args: []string{"recs"}, stdout: "golden", stderr: []string{"--cursor c1", "3 recommendations cannot be read"}, requests: []string{"GET /v1/recommendations?state=pending"}},
		{name: "recs all", args: []string{"recs", "list", "--state", "all"}, stdout: "golden", requests: []string{"GET /v1/recommendations"}},
		{name: "recs json", args: []string{"recs", "list", "--state=a,b", "--severity=low", "--module=m", "--origin=llm", "--cursor=c", "--json"}, stdout: `{"next_cursor":null,"recommendations":[],"unreadable":0}` + "\n"},
		{name: "rec", args: []string{"recs", "show", "aaaaaaaaaaaa"}, stdout: "golden"},
		{name: "rec json", args: []string{"recs", "show", "aaaaaaaaaaaa", "--json"}, stdout: "golden"},
		{name: "rec unknown", args: []string{"recs", "show", "zz"}, exit: 1, stderr: []string{"GATEWAY_NOT_FOUND"}},
		{
			name: "rec approve", args: []string{"recs", "approve", "aaaaaaaaaaaa", "--because", "I looked"}, stdout: "approved aaaaaaaaaaaa: Sums fail[2J -- skill\n",
			requests: []string{`POST /v1/recommendations/aaaaaaaaaaaa/approve {"because":"I looked"}`},
		},
		{
			name: "rec apply", args: []string{"recs", "apply", "aaaaaaaaaaaa", "--because=x", "--allow-destructive"}, stdout: "applied aaaaaaaaaaaa: Sums fail[2J -- skill\n",
			requests: []string{`POST /v1/recommendations/aaaaaaaaaaaa/apply {"allow_destructive":true,"because":"x"}`},
		},
		{name: "rec rollback", args: []string{"recs", "rollback", "aaaaaaaaaaaa", "--because=x"}, stdout: "rolled_back aaaaaaaaaaaa: Sums fail[2J -- skill\n"},
		{name: "rec lost race", args: []string{"recs", "reject", "aaaaaaaaaaaa", "--because=x"}, exit: 1, stderr: []string{"LOOP_CONFLICT: somebody else"}},
		{name: "rec without reason", args: []string{"recs", "approve", "aaaaaaaaaaaa"}, exit: 2, stderr: []string{"--because"}, requests: []string{}},
		{name: "rec with a blank reason", args: []string{"recs", "apply", "aaaaaaaaaaaa", "--because= "}, exit: 2, stderr: []string{"--because"}, requests: []string{}},
		{name: "recs without router", args: []string{"--nats=nats://127.0.0.1:1", "recs"}, exit: 2, stderr: []string{"--nats"}, requests: []string{}},
		{name: "loop", args: []string{"loop"}, stdout: "golden", requests: []string{"GET /v1/loop"}},
		{name: "loop json", args: []string{"loop", "status", "--json"}, stdout: "golden"},
		{name: "loop run", args: []string{"loop", "run", "--full-sweep", "--if-stale=6h"}, stdout: "golden", requests: []string{`POST /v1/loop/run {"full_sweep":true,"if_stale_ms":21600000}`}},
		{name: "loop probe", args: []string{"loop", "probe"}, stdout: "m-small\n", requests: []string{"GET /v1/loop?probe=1"}},
		{name: "loop runs", args: []string{"loop", "runs", "plan.shop", "--limit=2"}, stdout: "golden", requests: []string{"GET /v1/loop/runs/plan.shop?limit=2"}},
		{name: "loop runs of nothing", args: []string{"loop", "runs", "plan.none"}, stdout: "no run of plan.none is journaled\n"},
		{name: "loop runs of too many", args: []string{"loop", "runs", "plan.none", "--limit=101"}, exit: 2, stderr: []string{"--limit"}, requests: []string{}},
		{
			name: "loop evalset", args: []string{"loop", "evalset", "math.add", "-"}, stdin: `[{"inputs":{"a":1},"output":{"sum":1}}]`, stdout: "abc\n",
			requests: []string{`POST /v1/loop/evalsets/math.add {"cases":[{"inputs":{"a":1},"output":{"sum":1}}]}`},
		},
		{
			name: "loop evalset tried", args: []string{"loop", "evalset", "math.add", "--try"}, stdout: "3 passed, 1 failed, in 12 ms\n",
			requests: []string{`POST /v1/loop/evalsets/math.add/run`},
		},
		{name: "loop evalset of nothing", args: []string{"loop", "evalset", "math.add"}, exit: 2, stderr: []string{"--try"}, requests: []string{}},
		{name: "loop evalset broken", args: []string{"loop", "evalset", "math.add", "-"}, stdin: `[`, exit: 2, stderr: []string{"the cases"}, requests: []string{}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := newFakeRouter(t, recAnswers())
			got := runCLI(t.Context(), tt.stdin, map[string]string{"APBUS_ROUTER": f.URL}, tt.args...)
			if got.exit != tt.exit {
				t.Errorf("exit code %d (%v), want %d", got.exit, got.err, tt.exit)
			}
			if tt.stdout == "golden" {
				golden(t, strings.ReplaceAll(tt.name, " ", "-"), got.stdout)
			} else if d := cmp.Diff(tt.stdout, got.stdout); d != "" {
				t.Errorf("stdout: %s", d)
			}
			for _, part := range tt.stderr {
				if !strings.Contains(got.stderr, part) {
					t.Errorf("stderr lacks %q:\n%s", part, got.stderr)
				}
			}
			if tt.requests != nil && strings.Join(tt.requests, "\n") != strings.Join(f.requests(), "\n") {
				t.Errorf("requests %q, want %q", f.requests(), tt.requests)
			}
		})
	}
}

// What a module's page says of what was learned.
func TestModuleWithGuidance(t *testing.T) {
	f := newFakeRouter(t, map[string]fakeAnswer{"GET /v1/modules/math.add": {body: strings.Replace(addDoc, `"guidance":[]`,
		`"guidance":[{"kind":"lesson","text":"Numbers first.","rec":"`+recHash+`","applied_at":"2026-01-02T03:04:05.000Z"}]`, 1)}})
	got := runCLI(t.Context(), "", map[string]string{"APBUS_ROUTER": f.URL}, "modules", "math.add")
	if want := "lesson\tNumbers first.\taaaaaaaaaaaa\t2026-01-02T03:04:05.000Z\n"; !strings.HasSuffix(got.stdout, "\nguidance\n"+want) {
		t.Errorf("got\n%s", got.stdout)
	}
}
