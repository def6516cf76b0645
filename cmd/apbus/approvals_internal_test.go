package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const (
	approvalPending = `{"approval_id":"a1","state":"pending","module_id":"payments.refund","version":"1.0.0","caller_id":"orders.place",` +
		`"identity":{"id":"ann","type":"user"},"inputs":{"card":"***REDACTED***","amount_cents":9007199254740993},` +
		`"predicted_changes":[{"action":"refund","target":"charge:1","summary":"Give back 4.50","before":{"refunded_cents":0,"order":"o1"},"after":{"refunded_cents":450,"order":"o1","by":"ann"}},` +
		`{"action":"notify","target":"ann","summary":"Send a mail"},{"action":"set","target":"flag","summary":"Switch\u001b[2J it","before":null,"after":[1,2]},{"target":"broken"}],` +
		`"warnings":["slow today"],"description":"Give a charge back","tags":["shop"],"enrichers":["tenant"],` +
		`"annotations":{"destructive":true,"requires_approval":true},"required_because":"money","trace_id":"t1","call_chain":["orders.place","payments.refund"],` +
		`"created_at":"2026-01-02T03:04:05.000Z","expires_at":"2026-01-03T03:04:05.000Z","claimed_at":null,"decision":null}`
	approvalDecided = `{"approval_id":"a2","state":"approved","module_id":"payments.refund","version":"1.0.0","caller_id":null,"identity":null,"inputs":null,` +
		`"predicted_changes":[],"warnings":[],"description":"","tags":[],"enrichers":[],"annotations":{},"required_because":null,"trace_id":null,"call_chain":[],` +
		`"created_at":"2026-01-02T03:04:05.000Z","expires_at":"2026-01-02T04:04:05.000Z","claimed_at":null,` +
		`"decision":{"decision":"approve","by":"bob","by_type":"user","reason":"it came back","at":"2026-01-02T03:05:00.000Z"}}`
	approvalLost = `{"error":{"code":"GATEWAY_CONFLICT","message":"the request has been decided already","details":{"approval_id":"a3","state":"rejected",` +
		`"decision":{"decision":"reject","by":"eve","by_type":"user","reason":"too much","at":"2026-01-02T03:05:00.000Z"}}}}`
)

func approvalAnswers() map[string]fakeAnswer {
	return map[string]fakeAnswer{
		"GET /v1/approvals":                                  {body: `{"approvals":[` + approvalPending + `,` + approvalDecided + `],"next_cursor":null}`},
		"GET /v1/approvals?state=pending":                    {body: `{"approvals":[` + approvalPending + `],"next_cursor":"c1"}`},
		"GET /v1/approvals?cursor=c1&module=m&state=claimed": {body: `{"approvals":[],"next_cursor":null}`},
		"GET /v1/approvals/a1":                               {body: approvalPending},
		"GET /v1/approvals/a2":                               {body: approvalDecided},
		"POST /v1/approvals/a2/decision":                     {body: approvalDecided},
		"POST /v1/approvals/a3/decision":                     {status: 409, body: approvalLost},
		"POST /v1/modules/payments.refund/call": {status: 202, body: `{"error":{"code":"APPROVAL_PENDING","message":"approval of payments.refund is pending",` +
			`"details":{"approval_id":"a1","module_id":"payments.refund"}}}`},
		"POST /v1/modules/orders.place/call": {status: 202, body: `{"error":{"code":"APPROVAL_PENDING","message":"approval of payments.refund is pending",` +
			`"details":{"approval_id":"a1","module_id":"payments.refund"}}}`},
		"POST /v1/modules/math.add/call": {body: `{"sum":3}`},
	}
}

func TestApprovals(t *testing.T) {
	for _, tt := range []struct {
		name     string
		args     []string
		exit     int
		stdout   string // "golden" is a file
		stderr   []string
		requests []string
	}{
		{name: "approvals", args: []string{"approvals"}, stdout: "golden", stderr: []string{"there are more: --cursor c1"}, requests: []string{"GET /v1/approvals?state=pending"}},
		{name: "approvals all", args: []string{"approvals", "list", "--state", "all"}, stdout: "golden", requests: []string{"GET /v1/approvals"}},
		{name: "approvals page", args: []string{"approvals", "list", "--state=claimed", "--module=m", "--cursor=c1"}, requests: []string{"GET /v1/approvals?cursor=c1&module=m&state=claimed"}},
		{name: "approvals json", args: []string{"approvals", "list", "--state=claimed", "--module=m", "--cursor=c1", "--json"}, stdout: `{"approvals":[],"next_cursor":null}` + "\n"},
		{name: "unknown state", args: []string{"approvals", "list", "--state=open"}, exit: 2, stderr: []string{"--state"}},
		{name: "approval", args: []string{"approvals", "show", "a1"}, stdout: "golden", requests: []string{"GET /v1/approvals/a1"}},
		{name: "approval decided", args: []string{"approvals", "show", "a2"}, stdout: "golden"},
		{name: "approval json", args: []string{"approvals", "show", "a1", "--json"}, stdout: "golden"},
		{name: "approval unknown", args: []string{"approvals", "show", "a9"}, exit: 1, stderr: []string{"GATEWAY_NOT_FOUND"}},
		{
			name: "approve", args: []string{"approvals", "approve", "a2", "--reason", "it came back"}, stdout: "approved a2: payments.refund may run once, until 2026-01-02T04:04:05.000Z\n",
			requests: []string{`POST /v1/approvals/a2/decision {"decision":"approve","reason":"it came back"}`},
		},
		{
			name: "reject", args: []string{"approvals", "reject", "a2", "--because", "too much"}, stdout: "rejected a2: payments.refund will not run\n",
			requests: []string{`POST /v1/approvals/a2/decision {"decision":"reject","reason":"too much"}`},
		},
		{name: "approve json", args: []string{"approvals", "approve", "a2", "--because=x", "--json"}, stdout: "golden"},
		{name: "lost race", args: []string{"approvals", "approve", "a3", "--reason=x"}, exit: 1, stderr: []string{"GATEWAY_CONFLICT: the request has been decided already", `"by":"eve"`, `"reason":"too much"`}},
		{name: "no reason", args: []string{"approvals", "approve", "a2"}, exit: 2, stderr: []string{"--reason"}, requests: []string{}},
		{name: "blank reason", args: []string{"approvals", "reject", "a2", "--reason= "}, exit: 2, stderr: []string{"--reason"}, requests: []string{}},
		{name: "without router", args: []string{"--nats=nats://127.0.0.1:1", "approvals"}, exit: 2, stderr: []string{"--nats"}, requests: []string{}},
		{
			name: "call waits", args: []string{"call", "payments.refund"}, exit: 1,
			stderr: []string{"APPROVAL_PENDING", "apbus approvals show a1", "apbus approvals approve a1 --reason TEXT", "apbus call payments.refund … --approval a1"},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := newFakeRouter(t, approvalAnswers())
			got := runCLI(t.Context(), "", map[string]string{"APBUS_ROUTER": f.URL}, tt.args...)
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
			if len(tt.stderr) == 0 && got.stderr != "" {
				t.Errorf("stderr:\n%s", got.stderr)
			}
			if tt.requests != nil && strings.Join(tt.requests, "\n") != strings.Join(f.requests(), "\n") {
				t.Errorf("requests %q, want %q", f.requests(), tt.requests)
			}
		})
	}
}

// A call that waits somewhere below cannot be resumed from here, and no advice
// says so.
func TestNoAdviceForCallsBelow(t *testing.T) {
	f := newFakeRouter(t, approvalAnswers())
	got := runCLI(t.Context(), "", map[string]string{"APBUS_ROUTER": f.URL}, "call", "orders.place")
	if got.exit != 1 || !strings.Contains(got.stderr, "APPROVAL_PENDING") || strings.Contains(got.stderr, "--approval") {
		t.Errorf("exit code %d, stderr:\n%s", got.exit, got.stderr)
	}
}

func TestApprovalTokenTravels(t *testing.T) {
	f := newFakeRouter(t, approvalAnswers())
	got := runCLI(t.Context(), "", map[string]string{"APBUS_ROUTER": f.URL}, "call", "math.add", "--input", `{"a":1}`, "--approval", "a1")
	if got.exit != 0 {
		t.Fatalf("exit code %d: %s", got.exit, got.stderr)
	}
	if r := f.last(t); r.header.Get("Apbus-Approval") != "a1" || r.body != `{"a":1}` {
		t.Errorf("header %q, body %s", r.header.Get("Apbus-Approval"), r.body)
	}
}

// On a terminal the request is laid out as tables.
func TestApprovalOnATerminal(t *testing.T) {
	var out bytes.Buffer
	if err := showApproval(&printer{w: &out, terminal: true}, schemaOf(t, approvalPending)); err != nil {
		t.Fatal(err)
	}
	golden(t, "terminal-approval", out.String())
}
