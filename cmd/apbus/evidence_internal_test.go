package main

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const evidenceFailure = `{"hash":"aa","seq":7,"type":"call","time":"2026-01-02T03:04:05.000Z","module_id":"pay.charge","outcome":"error",` +
	`"code":"PAY_NO","message":"declined\u001b[2J\nnow","duration_ms":1234.5678,"caller_id":"shop.order","node":"n1","v":1}`

const evidenceDecision = `{"hash":"bb","seq":8,"type":"approval","time":"2026-01-02T03:05:05.000Z","module_id":"pay.refund","outcome":"approved",` +
	`"identity":{"id":"ann","type":"user"},"by":"bob","text":"it came back","v":1}`

func evidenceAnswers() map[string]fakeAnswer {
	return map[string]fakeAnswer{
		"GET /v1/evidence?limit=100": {body: `{"evidence":[` + evidenceFailure + `,` + evidenceDecision + `],"last":8,"more":true}`},
		"GET /v1/evidence?code=PAY_NO&limit=5&module=pay.charge&since=2h&type=call%2Cstream": {body: `{"evidence":[],"last":8,"more":false}`},
		"GET /v1/evidence?limit=100&module=m":                                                {body: `{"evidence":[` + evidenceFailure + `],"last":7,"more":false}`},
		"GET /v1/evidence?module=m": {header: map[string]string{"Content-Type": "text/event-stream"},
			body: "event: evidence\nid: 8\ndata: " + evidenceDecision + "\n\n: alive\n\nevent: evidence\nid: 9\ndata: broken\n\n"},
	}
}

func TestEvidence(t *testing.T) {
	for _, tt := range []struct {
		name   string
		args   []string
		exit   int
		stdout string // "golden" is a file
		stderr string
	}{
		{name: "evidence", args: []string{"evidence"}, stdout: "golden", stderr: "there are more"},
		{name: "evidence json", args: []string{"evidence", "--json"}, stdout: "golden"},
		{name: "filtered", args: []string{"evidence", "--module=pay.charge", "--type=call,stream", "--code=PAY_NO", "--since=2h", "--limit=5"}},
		{name: "bad limit", args: []string{"evidence", "--limit=0"}, exit: 2, stderr: "--limit"},
		{name: "without router", args: []string{"--nats=nats://127.0.0.1:1", "evidence"}, exit: 2, stderr: "--nats"},
		{name: "evidence followed", args: []string{"evidence", "--module=m", "--follow"}, exit: 1, stdout: "golden", stderr: "BUS_BAD_MESSAGE"},
		{name: "evidence followed json", args: []string{"evidence", "--module=m", "--follow", "--json"}, exit: 1, stdout: "golden", stderr: "BUS_BAD_MESSAGE"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := newFakeRouter(t, evidenceAnswers())
			got := runCLI(t.Context(), "", map[string]string{"APBUS_ROUTER": f.URL}, tt.args...)
			if got.exit != tt.exit {
				t.Errorf("exit code %d (%v), want %d", got.exit, got.err, tt.exit)
			}
			if tt.stdout == "golden" {
				records, _, _ := strings.Cut(got.stdout, `{"error"`) // with --json the failure, and its time, is printed too
				golden(t, strings.ReplaceAll(tt.name, " ", "-"), records)
			} else if d := cmp.Diff(tt.stdout, got.stdout); d != "" {
				t.Errorf("stdout: %s", d)
			}
			if !strings.Contains(got.stderr, tt.stderr) || (tt.stderr == "" && got.stderr != "") {
				t.Errorf("stderr %q, want %q", got.stderr, tt.stderr)
			}
			if strings.Contains(got.stdout, "\x1b") {
				t.Error("a control code reached the output")
			}
		})
	}
}
