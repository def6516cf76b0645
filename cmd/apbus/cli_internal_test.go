package main

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const (
	addDoc = `{"module_id":"math.add","version":"1.0.0","name":"Add","description":"Add two numbers","tags":["math"],` +
		`"annotations":{"readonly":true,"idempotent":true},"hash":"h1","guidance":[],` +
		`"hosts":[{"node":"n2","boot":"b2","version":"1.0.0","draining":true},{"node":"n1","boot":"b1","version":"1.0.0","draining":false}],` +
		`"input_schema":{"type":"object","properties":{"a":{"type":"number","description":"The first number"},"b":{"type":"number"}},"required":["a","b"]},` +
		`"output_schema":{"type":"object","properties":{"sum":{"type":"number"}},"required":["sum"]}}`
	payDoc = `{"module_id":"payments.charge","version":"2.1.0","description":"Charge\na card","tags":[],` +
		`"annotations":{"destructive":true,"requires_approval":true},"hosts":[],` +
		`"input_schema":{"type":"object","properties":{"card":{"type":"string","x-sensitive":true,"description":"The card"}},"required":["card"]},"output_schema":{}}`
	nodesDoc = `{"nodes":[{"node":"n1","boot":"b1","in_flight":3,"capacity":256,"draining":false,"stale":false,"version":"1.0.0","seen_at":"2026-01-02T03:04:05Z","modules":[{"id":"math.add"}]},` +
		`{"node":"n2","boot":"b2","in_flight":0,"capacity":8,"draining":true,"version":"","modules":[]},` +
		`{"node":"n3","boot":"b3","in_flight":0,"capacity":8,"stale":true,"modules":[]}]}`
	validCheck = `{"valid":true,"requires_approval":true,"checks":[{"check":"module_lookup","passed":true,"error":null,"warnings":[]},` +
		`{"check":"module_preflight","passed":true,"error":null,"warnings":["slow today"]}],` +
		`"predicted_changes":[{"action":"reserve","target":"inventory:tea","summary":"Reserve 2","before":{"available":5},"after":{"available":3}},` +
		`{"action":"charge","target":"order:o1","summary":"Charge 9.00"}],"errors":[]}`
	invalidCheck = `{"valid":false,"requires_approval":false,"checks":[{"check":"schema","passed":false,"warnings":[],` +
		`"error":{"code":"SCHEMA_VALIDATION_ERROR","message":"inputs do not fit","details":{"errors":[{"path":"/a","message":"is missing","keyword":"required"}]}}}],` +
		`"predicted_changes":[],"errors":[]}`
)

const (
	tracedAdd = `{"error":null,"hooks":[{"duration_ms":0.25,"error_code":null,"hook":"before","middleware":"logging","recovery":null,"replaced":true,"step":null}],` +
		`"module_id":"math.add",` + `"remote":{"error":null,"module_id":"math.add","steps":[{"duration_ms":11.0,"name":"execute"}],"strategy_name":"owner","success":true,"total_duration_ms":11.5},` +
		`"steps":[{"duration_ms":0.056,"error_code":null,"name":"context_creation","result":null,"skip_reason":null,"skipped":false},` +
		`{"duration_ms":0.3,"error_code":null,"name":"middleware_before","result":null,"skip_reason":null,"skipped":false},` +
		`{"duration_ms":0.0,"error_code":null,"name":"acl_check","result":null,"skip_reason":"remote","skipped":true},` +
		`{"duration_ms":12.5,"error_code":null,"name":"execute","result":null,"skip_reason":null,"skipped":false},` +
		`{"duration_ms":0.001,"error_code":null,"name":"return_result","result":null,"skip_reason":null,"skipped":false}],` +
		`"strategy_name":"standard","success":true,"total_duration_ms":13.125}`
	tracedFail = `{"error":{"code":"ACL_DENIED","message":"no"},"hooks":[{"duration_ms":0.5,"error_code":null,"hook":"on_error","middleware":"retry","recovery":"none","replaced":false,"step":null}],` +
		`"module_id":"traced.fail","steps":[{"duration_ms":0.1,"error_code":"ACL_DENIED","name":"acl_check",` +
		`"result":{"action":"abort","explanation":"no rule allows it","skip_to":null},"skip_reason":null,"skipped":false}],` +
		`"strategy_name":"standard","success":false,"total_duration_ms":0.2}`
)

// tracedNested is a call that calls two others, one of them on another node.
const tracedNested = `{"error":null,"hooks":[],"module_id":"shop.order","node":"n1","steps":[{"duration_ms":0.1,"name":"acl_check"},{"duration_ms":9.5,"name":"execute"},{"duration_ms":0.1,"name":"return_result"}],` +
	`"strategy_name":"standard","success":true,"total_duration_ms":10.0,"calls_dropped":3,"calls":[` +
	`{"error":null,"hooks":[],"module_id":"shop.price","offset_ms":0.2,"steps":[{"duration_ms":1.0,"name":"execute"}],"strategy_name":"standard","success":true,"total_duration_ms":1.5},` +
	`{"error":{"code":"SOLD_OUT","message":"no"},"hooks":[],"module_id":"stock.take","offset_ms":2.0,"steps":[{"duration_ms":5.0,"name":"execute"}],"strategy_name":"standard","success":false,"total_duration_ms":5.5,` +
	`"remote":{"error":{"code":"SOLD_OUT","message":"no"},"hooks":[],"module_id":"stock.take","node":"n2","steps":[{"duration_ms":4.0,"error_code":"SOLD_OUT","name":"execute"}],"strategy_name":"standard","success":false,"total_duration_ms":4.5}}]}`

// events is an answer of Server-Sent Events, each "name|id|data".
func events(list ...string) fakeAnswer {
	body := ": hello\n\n"
	for _, e := range list {
		parts := strings.SplitN(e, "|", 3)
		if body += "event: " + parts[0] + "\n"; parts[1] != "" {
			body += "id: " + parts[1] + "\n"
		}
		body += "data: " + parts[2] + "\n\n"
	}
	return fakeAnswer{body: body, header: map[string]string{"Content-Type": "text/event-stream"}}
}

// routes is the whole API as the fake serves it.
func routes() map[string]fakeAnswer { return routesWith("") }

// routesWith is the same with one more check of the doctor.
func routesWith(sick string) map[string]fakeAnswer {
	return map[string]fakeAnswer{
		"GET /v1/modules":                         {body: `{"modules":[` + addDoc + `,` + payDoc + `]}`},
		"GET /v1/modules/math.add":                {body: addDoc},
		"GET /v1/modules/payments.charge":         {body: payDoc},
		"GET /v1/modules/no.such":                 {status: 404, body: `{"error":{"code":"MODULE_NOT_FOUND","message":"no node hosts module no.such"}}`},
		"POST /v1/modules/math.add/call":          {body: `{"sum":18446744073709551615,"exact":9007199254740993,"f":3.0,"html":"<&>"}`},
		"POST /v1/modules/math.add/check":         {body: validCheck},
		"POST /v1/modules/payments.charge/check":  {body: invalidCheck},
		"POST /v1/modules/demo.fail/call":         {status: 500, body: `{"error":{"code":"SHOP_CLOSED","message":"come back\u001b[2J tomorrow","details":{"b":[1,2],"a":"x"},"cause":"night","suggestion":"wait","module_id":"demo.fail","trace_id":"t1","retryable":true,"timestamp":"2026-01-02T03:04:05.000Z"}}`},
		"POST /v1/modules/payments.refund/call":   {status: 202, body: `{"error":{"code":"APPROVAL_PENDING","message":"pending","details":{"approval_id":"ap1"}}}`},
		"POST /v1/modules/demo.sleep/call":        {status: 202, body: `{"call":"call-1","state":"running"}`, header: map[string]string{"Apbus-Call": "call-1"}},
		"GET /v1/nodes":                           {body: nodesDoc},
		"POST /v1/nodes/n1/drain":                 {status: 202, body: `{"node":"n1","in_flight":3}`},
		"POST /v1/nodes/n9/drain":                 {status: 404, body: `{"error":{"code":"GATEWAY_NOT_FOUND","message":"no node of this id is known"}}`},
		"GET /v1/doctor":                          {body: `{"checks":[{"check":"permissions","findings":[],"note":null,"state":"ok"},{"check":"catalogue","findings":[],"note":"there is none","state":"skipped"},{"check":"clock_skew","findings":[{"mend":"keep time","problem":"it is late","severity":"warning","what":"node n1"}],"note":null,"state":"found"}` + sick + `]}`},
		"DELETE /v1/calls/call-1":                 {status: 202, body: `{"nodes":["n1"],"calls":["call-1"],"state":"cancelling"}`},
		"DELETE /v1/calls/call-1?reason=too+slow": {status: 202, body: `{"nodes":["n1"],"calls":["call-1"],"state":"cancelling"}`},
		"DELETE /v1/calls?root=call-1":            {status: 202, body: `{"nodes":["n1","n2"],"calls":["call-1","call-2"],"state":"cancelling"}`},
		"DELETE /v1/calls?trace=t1":               {status: 202, body: `{"nodes":["n1"],"calls":["call-1"],"state":"cancelling"}`},
		"POST /v1/modules/text.words/stream": events(
			`accept||{"call":"c"}`, `data|0|{"index":0,"word":"to"}`, `progress||{"done":1,"total":2}`, `novelty||{}`, `data|1|{"count":1}`,
			`trace||`+tracedAdd, `end|2|{"count":1,"index":0,"word":"to"}`),
		"POST /v1/modules/odd.cut/stream":      events(`accept||{}`, `data|0|{"a":1}`),
		"POST /v1/modules/odd.gap/stream":      events(`data|0|{"a":1}`, `data|2|{"a":1}`),
		"POST /v1/modules/odd.short/stream":    events(`data|0|{"a":1}`, `end|2|{}`),
		"POST /v1/modules/odd.nonsense/stream": events(`data|0|<html>`),
		"POST /v1/modules/odd.plain/stream":    {body: `{"sum":3}`},
		"POST /v1/modules/demo.fail/stream":    events(`data|0|{"a":1}`, `error||{"error":{"code":"SHOP_CLOSED","message":"come back"}}`),
		"POST /v1/modules/no.such/stream":      {status: 404, body: `{"error":{"code":"MODULE_NOT_FOUND","message":"unknown"}}`},
		"POST /v1/modules/traced.add/call":     {body: `{"output":{"sum":3},"trace":` + tracedAdd + `}`},
		"POST /v1/modules/traced.fail/call":    {status: 403, body: `{"error":{"code":"ACL_DENIED","message":"no"},"trace":` + tracedFail + `}`},
		"POST /v1/modules/odd.answer/call":     {body: `<html>`},
		"POST /v1/modules/odd.failure/call":    {status: 502, body: `bad gateway`},
	}
}

func TestCommands(t *testing.T) {
	for _, tt := range []struct {
		name     string
		args     []string
		stdin    string
		exit     int
		stdout   string // "" is nothing, "golden" a file
		stderr   []string
		requests []string
	}{
		{name: "modules", args: []string{"modules"}, stdout: "golden", requests: []string{"GET /v1/modules"}},
		{name: "modules json", args: []string{"modules", "--json"}, stdout: "golden"},
		{name: "modules by prefix", args: []string{"modules", "--prefix", "pay", "--json"}, stdout: "golden"},
		{name: "modules by text", args: []string{"modules", "--q", "TWO numbers"}, stdout: "golden"},
		{name: "modules by tag", args: []string{"modules", "--tag", "math"}, stdout: "golden"},
		{name: "module", args: []string{"modules", "payments.charge"}, stdout: "golden", requests: []string{"GET /v1/modules/payments.charge"}},
		{name: "module json", args: []string{"modules", "math.add", "--json"}, stdout: "golden"},
		{name: "module unknown", args: []string{"modules", "no.such"}, exit: 1, stderr: []string{"MODULE_NOT_FOUND: no node hosts module no.such"}},
		{name: "nodes", args: []string{"nodes"}, stdout: "golden", requests: []string{"GET /v1/nodes"}},
		{name: "nodes json", args: []string{"nodes", "--json"}, stdout: "golden"},
		{name: "drain", args: []string{"nodes", "drain", "n1"}, stdout: "n1 is draining, 3 calls in flight\n", requests: []string{`POST /v1/nodes/n1/drain {"grace_ms":10000}`}},
		{name: "drain json", args: []string{"nodes", "drain", "n1", "--grace", "1s", "--json"}, stdout: `{"in_flight":3,"node":"n1"}` + "\n", requests: []string{`POST /v1/nodes/n1/drain {"grace_ms":1000}`}},
		{name: "drain unknown", args: []string{"nodes", "drain", "n9"}, exit: 1, stderr: []string{"GATEWAY_NOT_FOUND: no node"}},
		{
			name: "call", args: []string{"call", "math.add", "a=1", "b=2.5"},
			stdout:   `{"exact":9007199254740993,"f":3.0,"html":"<&>","sum":18446744073709551615}` + "\n",
			requests: []string{"GET /v1/modules/math.add", `POST /v1/modules/math.add/call {"a":1,"b":2.5}`},
		},
		{name: "call json", args: []string{"call", "math.add", "--json"}, stdout: `{"exact":9007199254740993,"f":3.0,"html":"<&>","sum":18446744073709551615}` + "\n", requests: []string{"POST /v1/modules/math.add/call {}"}},
		{name: "call with input", args: []string{"call", "math.add", "--input", `{"a":1}`}, stdout: "any", requests: []string{`POST /v1/modules/math.add/call {"a":1}`}},
		{name: "call with standard input", args: []string{"call", "math.add", "--input", "-"}, stdin: `{ "a": 1 }`, stdout: "any", requests: []string{`POST /v1/modules/math.add/call { "a": 1 }`}},
		{name: "call fails", args: []string{"call", "demo.fail"}, exit: 1, stderr: []string{
			"SHOP_CLOSED: come back[2J tomorrow\n", "  a: x\n", "  b: [1,2]\n", "  cause: night\n", "  suggestion: wait\n", "  module: demo.fail\n", "  trace: t1\n", "  retryable: yes\n",
		}},
		{name: "call fails json", args: []string{"call", "demo.fail", "--json"}, exit: 1, stdout: "golden", stderr: []string{"SHOP_CLOSED"}},
		{name: "call waits for a person", args: []string{"call", "payments.refund"}, exit: 1, stderr: []string{"APPROVAL_PENDING: pending", "approval_id: ap1"}},
		{
			name: "stream", args: []string{"call", "text.words", "--input", `{"text":"to"}`, "--stream"},
			stdout: `{"index":0,"word":"to"}` + "\n" + `{"count":1}` + "\n", requests: []string{`POST /v1/modules/text.words/stream {"text":"to"}`},
		},
		{name: "stream json", args: []string{"call", "text.words", "--stream", "--json"}, stdout: "golden"},
		{name: "stream json traced", args: []string{"call", "text.words", "--stream", "--trace", "--json"}, stdout: "golden"},
		{name: "stream traced", args: []string{"call", "text.words", "--stream", "--trace"}, stdout: "golden"},
		{name: "stream fails", args: []string{"call", "demo.fail", "--stream"}, exit: 1, stdout: `{"a":1}` + "\n", stderr: []string{"SHOP_CLOSED: come back"}},
		{name: "stream fails json", args: []string{"call", "demo.fail", "--stream", "--json"}, exit: 1, stdout: `{"data":{"a":1},"seq":0}` + "\n" + `{"error":{"code":"SHOP_CLOSED","message":"come back"}}` + "\n", stderr: []string{"SHOP_CLOSED"}},
		{name: "stream refused", args: []string{"call", "no.such", "--stream"}, exit: 1, stderr: []string{"MODULE_NOT_FOUND: unknown"}},
		{name: "stream cut off", args: []string{"call", "odd.cut", "--stream"}, exit: 1, stdout: "any", stderr: []string{"BUS_STREAM_TRUNCATED", "after 1 chunks"}},
		{name: "stream with a gap", args: []string{"call", "odd.gap", "--stream"}, exit: 1, stdout: "any", stderr: []string{"BUS_STREAM_TRUNCATED", "chunk 2 came where chunk 1 was due"}},
		{name: "stream too short", args: []string{"call", "odd.short", "--stream"}, exit: 1, stdout: "any", stderr: []string{"BUS_STREAM_TRUNCATED", "1 chunks of 2"}},
		{name: "stream of nonsense", args: []string{"call", "odd.nonsense", "--stream"}, exit: 1, stderr: []string{"BUS_BAD_MESSAGE"}},
		{name: "stream that is none", args: []string{"call", "odd.plain", "--stream"}, exit: 1, stderr: []string{"BUS_BAD_MESSAGE"}},
		{name: "trace", args: []string{"call", "traced.add", "--trace"}, stdout: "golden"},
		{name: "trace json", args: []string{"call", "traced.add", "--trace", "--json"}, stdout: `{"output":{"sum":3},"trace":` + tracedAdd + `}` + "\n"},
		{name: "trace of a failure", args: []string{"call", "traced.fail", "--trace"}, exit: 1, stdout: "golden", stderr: []string{"ACL_DENIED: no"}},
		{name: "trace of a failure json", args: []string{"call", "traced.fail", "--trace", "--json"}, exit: 1, stdout: `{"error":{"code":"ACL_DENIED","message":"no"},"trace":` + tracedFail + `}` + "\n", stderr: []string{"ACL_DENIED: no"}},
		{name: "detach and stream", args: []string{"call", "demo.sleep", "--detach", "--stream"}, exit: 2, stderr: []string{"--detach"}},
		{name: "detach and trace", args: []string{"call", "demo.sleep", "--detach", "--trace"}, exit: 2, stderr: []string{"--detach"}},
		{name: "detach", args: []string{"call", "demo.sleep", "--detach"}, stdout: "call-1\n"},
		{name: "detach json", args: []string{"call", "demo.sleep", "--detach", "--json"}, stdout: `{"call":"call-1"}` + "\n"},
		{name: "check", args: []string{"check", "math.add", "a=1"}, stdout: "golden", requests: []string{"GET /v1/modules/math.add", `POST /v1/modules/math.add/check {"a":1}`}},
		{name: "check json", args: []string{"check", "math.add", "--json"}, stdout: "golden"},
		{name: "check refused", args: []string{"check", "payments.charge"}, exit: 1, stdout: "golden"},
		{name: "check refused json", args: []string{"check", "payments.charge", "--json"}, exit: 1, stdout: "golden"},
		{name: "cancel", args: []string{"cancel", "call-1", "--reason", "too slow"}, stdout: "call-1\tcancelling\tn1\n", requests: []string{"DELETE /v1/calls/call-1?reason=too+slow"}},
		{name: "cancel json", args: []string{"cancel", "call-1", "--json"}, stdout: `{"calls":["call-1"],"nodes":["n1"],"state":"cancelling"}` + "\n"},
		{name: "cancel root", args: []string{"cancel", "--root", "call-1"}, stdout: "call-1\tcancelling\tn1,n2\ncall-2\tcancelling\tn1,n2\n"},
		{name: "cancel trace", args: []string{"cancel", "--trace", "t1"}, stdout: "call-1\tcancelling\tn1\n"},
		{name: "cancel unknown", args: []string{"cancel", "call-9"}, exit: 1, stderr: []string{"apbus: nobody knows such a call"}},
		{name: "cancel unknown json", args: []string{"cancel", "call-9", "--json"}, exit: 1, stdout: `{"calls":[],"nodes":[],"state":"unknown"}` + "\n", stderr: []string{"nobody knows"}},
		{name: "cancel nothing", args: []string{"cancel"}, exit: 2, stderr: []string{"give one of CALL, --root, --task and --trace"}},
		{name: "cancel twice", args: []string{"cancel", "call-1", "--trace", "t1"}, exit: 2, stderr: []string{"give one of"}},
		{name: "version", args: []string{"version"}, stdout: "apbus 1.2.3\n"},
		{name: "unknown key", args: []string{"call", "math.add", "aa=1"}, exit: 2, stderr: []string{`math.add has no input "aa"; did you mean "a"?`}},
		{name: "wrong type", args: []string{"call", "math.add", "a=geheim"}, exit: 2, stderr: []string{"a: want number"}},
		{name: "no pair", args: []string{"call", "math.add", "a"}, exit: 2, stderr: []string{"want key=value"}},
		{name: "twice", args: []string{"call", "math.add", "a=1", "a=2"}, exit: 2, stderr: []string{"a is given twice"}},
		{name: "both kinds of input", args: []string{"call", "math.add", "a=1", "--input", "{}"}, exit: 2, stderr: []string{"not both"}},
		{name: "input is no object", args: []string{"call", "math.add", "--input", "[1]"}, exit: 2, stderr: []string{"--input"}},
		{name: "input file missing", args: []string{"call", "math.add", "--input", "@no/such/file"}, exit: 2, stderr: []string{"no/such/file"}},
		{name: "bad ID", args: []string{"call", "Math"}, exit: 1, stderr: []string{"INVALID_MODULE_ID"}},
		{name: "negative timeout", args: []string{"call", "math.add", "--timeout=-1s"}, exit: 2, stderr: []string{"--timeout"}},
		{name: "unknown command", args: []string{"cal"}, exit: 2, stderr: []string{"cal"}},
		{name: "unknown flag", args: []string{"call", "math.add", "--bogus"}, exit: 2, stderr: []string{"--bogus"}},
		{name: "no command", args: nil, exit: 2, stderr: []string{"modules"}},
		{name: "not JSON", args: []string{"call", "odd.answer"}, exit: 1, stderr: []string{"not understood"}},
		{name: "not a router", args: []string{"call", "odd.failure"}, exit: 1, stderr: []string{"502", "is it an Apbus router"}},
		{name: "detach without router", args: []string{"--router", "ftp://x", "call", "demo.sleep", "--detach"}, exit: 2, stderr: []string{"--router"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := newFakeRouter(t, routes())
			got := runCLI(t.Context(), tt.stdin, map[string]string{"APBUS_ROUTER": f.URL}, tt.args...)
			if got.exit != tt.exit {
				t.Errorf("exit code %d (%v), want %d", got.exit, got.err, tt.exit)
			}
			switch tt.stdout {
			case "any":
			case "golden":
				golden(t, strings.ReplaceAll(tt.name, " ", "-"), got.stdout)
			default:
				if d := cmp.Diff(tt.stdout, got.stdout); d != "" {
					t.Errorf("stdout: %s", d)
				}
			}
			for _, part := range tt.stderr {
				if !strings.Contains(got.stderr, part) {
					t.Errorf("stderr lacks %q:\n%s", part, got.stderr)
				}
			}
			if len(tt.stderr) == 0 && got.stderr != "" {
				t.Errorf("stderr:\n%s", got.stderr)
			}
			if strings.Contains(got.stderr+got.stdout, "geheim") {
				t.Error("a value is quoted")
			}
			if tt.requests != nil {
				if d := cmp.Diff(tt.requests, f.requests()); d != "" {
					t.Errorf("requests: %s", d)
				}
			}
		})
	}
}

func TestDoctor(t *testing.T) {
	const sick = `,{"check":"stream_overlap","findings":[{"mend":"narrow it","problem":"it captures calls","severity":"error","what":"stream S"}],"note":null,"state":"found"}`
	for _, tt := range []struct {
		name, sick string
		args       []string
		exit       int
		stderr     string
	}{
		{"doctor", "", []string{"doctor"}, 0, ""},
		{"doctor json", "", []string{"doctor", "--json"}, 0, ""},
		{"doctor found", sick, []string{"doctor"}, 1, ""},
		{"doctor found json", sick, []string{"doctor", "--json"}, 1, ""},
		{"doctor role", "", []string{"doctor", "--role", "node"}, 2, "--role node is for --nats"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := newFakeRouter(t, routesWith(tt.sick))
			got := runCLI(t.Context(), "", map[string]string{"APBUS_ROUTER": f.URL}, tt.args...)
			if got.exit != tt.exit || !strings.Contains(got.stderr, tt.stderr) || (tt.stderr == "") != (got.stderr == "") {
				t.Errorf("exit code %d, stderr %q", got.exit, got.stderr)
			}
			if tt.exit != 2 {
				golden(t, strings.ReplaceAll(tt.name, " ", "-"), got.stdout)
			}
		})
	}
}

func TestHeaders(t *testing.T) {
	for _, tt := range []struct {
		name string
		env  map[string]string
		args []string
		want map[string]string
	}{
		{"plain", nil, []string{"call", "math.add"}, map[string]string{
			"Authorization": "", "Apbus-Timeout": "", "Prefer": "", "Content-Type": "application/json", "User-Agent": "apbus/1.2.3",
		}},
		{"token of the environment", map[string]string{"APBUS_TOKEN": "t0"}, []string{"modules"}, map[string]string{"Authorization": "Bearer t0"}},
		{"token of the flag", map[string]string{"APBUS_TOKEN": "t0"}, []string{"modules", "--token", "t1"}, map[string]string{"Authorization": "Bearer t1"}},
		{"timeout", nil, []string{"call", "math.add", "--timeout", "1.5s"}, map[string]string{"Apbus-Timeout": "1.5s"}},
		{"node", nil, []string{"call", "math.add", "--node", "n1"}, map[string]string{"Apbus-Node": "n1", "Apbus-Trace": ""}},
		{"node of a check", nil, []string{"check", "math.add", "--node", "n1"}, map[string]string{"Apbus-Node": "n1"}},
		{"trace", nil, []string{"call", "traced.add", "--trace"}, map[string]string{"Apbus-Trace": "1", "Apbus-Node": ""}},
		{"stream", nil, []string{"call", "text.words", "--stream"}, map[string]string{"Accept": "text/event-stream"}},
		{"detach", nil, []string{"call", "demo.sleep", "--detach"}, map[string]string{"Prefer": "respond-async"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := newFakeRouter(t, routes())
			env := map[string]string{"APBUS_ROUTER": f.URL}
			for k, v := range tt.env {
				env[k] = v
			}
			if got := runCLI(t.Context(), "", env, tt.args...); got.exit != 0 {
				t.Fatalf("exit code %d: %s", got.exit, got.stderr)
			}
			for k, want := range tt.want {
				if got := f.last(t).header.Get(k); got != want {
					t.Errorf("%s = %q, want %q", k, got, want)
				}
			}
		})
	}
}

// TestInputFileIsStreamed shows that a file goes out with its length and
// without being read first.
func TestInputFileIsStreamed(t *testing.T) {
	for _, tt := range []struct{ name, content, want string }{
		{"object", `{"text":"` + strings.Repeat("word ", 1<<18) + `"}`, ""},
		{"empty", "", "{}"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := newFakeRouter(t, routes())
			path := filepath.Join(t.TempDir(), "input.json")
			if err := os.WriteFile(path, []byte(tt.content), 0o600); err != nil {
				t.Fatal(err)
			}
			if got := runCLI(t.Context(), "", map[string]string{"APBUS_ROUTER": f.URL}, "call", "math.add", "--input", "@"+path); got.exit != 0 {
				t.Fatal(got.stderr)
			}
			want := tt.want
			if want == "" {
				want = tt.content
			}
			if r := f.last(t); r.body != want || r.contentLength != int64(len(want)) {
				t.Errorf("sent %d bytes of %d, content length %d", len(r.body), len(want), r.contentLength)
			}
		})
	}
}

func TestUnreachableRouter(t *testing.T) {
	f := newFakeRouter(t, nil)
	f.Close()
	got := runCLI(t.Context(), "", nil, "--router", f.URL, "--token", "geheim", "modules")
	if got.exit != 1 || !strings.Contains(got.stderr, "BUS_DISCONNECTED: cannot reach the router at "+f.URL) || strings.Contains(got.stderr, "geheim") {
		t.Errorf("exit code %d, stderr:\n%s", got.exit, got.stderr)
	}
}

func TestRedirectsAreNotFollowed(t *testing.T) {
	elsewhere := newFakeRouter(t, nil)
	f := newFakeRouter(t, map[string]fakeAnswer{
		"GET /v1/modules": {status: http.StatusTemporaryRedirect, header: map[string]string{"Location": elsewhere.URL + "/v1/modules"}},
	})
	got := runCLI(t.Context(), "", nil, "--router", f.URL, "--token", "geheim", "modules")
	if got.exit != 1 || len(elsewhere.requests()) != 0 {
		t.Errorf("exit code %d, the other server saw %q", got.exit, elsewhere.requests())
	}
}

// everyCommand is what completes to from nothing.
const everyCommand = "approvals\nbench\n" +
	"call\n" +
	"cancel\n" +
	"check\n" +
	"completion\n" +
	"doctor\n" +
	"evidence\n" +
	"loop\n" +
	"modules\n" +
	"nodes\n" +
	"recs\n" +
	"tasks\n" +
	"top\n" +
	"version\n"

func TestCompletions(t *testing.T) {
	for _, tt := range []struct {
		name  string
		words []string
		want  string
	}{
		{"commands", []string{""}, everyCommand},
		{"no words", nil, everyCommand},
		{"command", []string{"ca"}, "call\ncancel\n"},
		{"subcommand", []string{"nodes", "d"}, "drain\n"},
		{"modules", []string{"call", ""}, "math.add\npayments.charge\n"},
		{"module", []string{"check", "pay"}, "payments.charge\n"},
		{"input", []string{"call", "math.add", ""}, "a=\nb=\n"},
		{"node", []string{"nodes", "drain", "n"}, "n1\nn2\nn3\n"},
		{"shell", []string{"completion", "f"}, "fish\n"},
		{"flag", []string{"call", "--de"}, "--detach\n"},
		{"nothing", []string{"cancel", "x"}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := newFakeRouter(t, routes())
			got := runCLI(t.Context(), "", map[string]string{"APBUS_ROUTER": f.URL}, append([]string{"complete", "--"}, tt.words...)...)
			if got.exit != 0 {
				t.Fatalf("exit code %d: %s", got.exit, got.stderr)
			}
			if d := cmp.Diff(tt.want, got.stdout); d != "" {
				t.Error(d)
			}
		})
	}
	for _, shell := range []string{"bash", "zsh", "fish"} {
		if got := runCLI(t.Context(), "", nil, "completion", shell); got.exit != 0 || !strings.Contains(got.stdout, "apbus complete --") {
			t.Errorf("%s: exit code %d, script:\n%s", shell, got.exit, got.stdout)
		}
	}
}
