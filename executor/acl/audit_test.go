package acl_test

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/apbus/apbus/executor/acl"
	"github.com/apbus/apbus/module"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

const auditRules = "rules: [{callers: [api.*], targets: [x], effect: allow, description: api}]\n"

// record is a line of the default sink.
func records(t *testing.T, b *logBuffer) []obj {
	t.Helper()
	var out []obj
	for line := range strings.Lines(b.String()) {
		var m obj
		if err := json.Unmarshal([]byte(line), &m); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		out = append(out, m)
	}
	return out
}

func jsonLogger(b *logBuffer) *slog.Logger {
	return slog.New(slog.NewJSONHandler(b, &slog.HandlerOptions{Level: acl.LevelTrace}))
}

func TestDefaultSink(t *testing.T) {
	tests := []struct {
		name, audit string
		decisions   []string
		level       string
		warns       string
	}{
		{"no block", "", nil, "", ""},
		{"null block", "audit:\n", []string{"allow", "deny"}, "INFO", ""},
		{"empty block", "audit: {}\n", []string{"allow", "deny"}, "INFO", ""},
		{"enabled", "audit: {enabled: true}\n", []string{"allow", "deny"}, "INFO", ""},
		{"disabled", "audit: {enabled: false, include_denied: false}\n", nil, "", ""},
		{"level", "audit: {log_level: error}\n", []string{"allow", "deny"}, "ERROR", ""},
		{"trace", "audit: {log_level: trace}\n", []string{"allow", "deny"}, "DEBUG-4", ""},
		{"no denials", "audit: {include_denied: false}\n", []string{"allow"}, "INFO", "include_denied"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var audit, diagnostics logBuffer
			p, err := acl.Parse("acl.yaml", []byte(tt.audit+auditRules), acl.Options{AuditLogger: jsonLogger(&audit), Logger: diagnostics.logger()})
			if err != nil {
				t.Fatal(err)
			}
			p.Check(t.Context(), acl.Query{CallerID: "api.a", TargetID: "x"})
			p.Check(t.Context(), acl.Query{CallerID: "b", TargetID: "x"})
			var got []string
			for _, r := range records(t, &audit) {
				got = append(got, r["decision"].(string))
				if r["msg"] != "apcore.acl.audit" || r["level"] != tt.level {
					t.Errorf("record %v", r)
				}
			}
			if diff := cmp.Diff(tt.decisions, got); diff != "" {
				t.Errorf("decisions (-want +got):\n%s", diff)
			}
			if log := diagnostics.String(); (log == "") != (tt.warns == "") || !strings.Contains(log, tt.warns) {
				t.Errorf("diagnostics %q, want %q", log, tt.warns)
			}
		})
	}
}

func TestAuditEntry(t *testing.T) {
	var got []acl.AuditEntry
	o := acl.Options{
		Logger: (&logBuffer{}).logger(),
		Audit:  func(_ context.Context, e acl.AuditEntry) error { got = append(got, e); return nil },
	}
	rule := approved(allow("a", "b"))
	rule.Description = "the one"
	p := mustNew(t, o, rule, when(deny("*", "c"), obj{"nope": 1}))
	c := call(2, "agent", "dev", "ops")
	p.Check(t.Context(), acl.Query{CallerID: "a", TargetID: "b", Context: c})
	p.Check(t.Context(), acl.Query{TargetID: "c"})
	p.Check(t.Context(), acl.Query{TargetID: "d", Context: call(0, "")})
	want := []acl.AuditEntry{
		{CallerID: "a", TargetID: "b", Decision: acl.Allow, Reason: "rule_match", MatchedRule: "the one",
			IdentityType: "agent", Roles: []string{"dev", "ops"}, CallDepth: 2, TraceID: c.TraceID(), ApprovalRequired: true},
		{CallerID: "@external", TargetID: "c", Decision: acl.Deny, Reason: "rule_match", MatchedRuleIndex: 1,
			Roles: []string{}, CallDepth: -1, HandlerError: "nope: no handler is registered"},
		{CallerID: "@external", TargetID: "d", Decision: acl.Deny, Reason: "default_effect", MatchedRuleIndex: -1, Roles: []string{}},
	}
	ignore := cmpopts.IgnoreFields(acl.AuditEntry{}, "Timestamp")
	want[2].TraceID = got[2].TraceID
	if diff := cmp.Diff(want, got, ignore); diff != "" {
		t.Errorf("entries (-want +got):\n%s", diff)
	}
	for _, e := range got {
		if e.Timestamp.IsZero() || e.Timestamp.Location() != time.UTC {
			t.Errorf("timestamp %v", e.Timestamp)
		}
	}

	got[1].Timestamp = time.Date(2026, 9, 16, 10, 30, 0, 123_999_999, time.UTC)
	wire := obj{
		"timestamp": "2026-09-16T10:30:00.123Z", "caller_id": "@external", "target_id": "c", "decision": "deny",
		"reason": "rule_match", "matched_rule": nil, "matched_rule_index": int64(1), "identity_type": nil, "roles": []any{},
		"call_depth": nil, "trace_id": nil, "handler_error": "nope: no handler is registered", "approval_required": false,
	}
	if diff := cmp.Diff(wire, got[1].Map()); diff != "" {
		t.Errorf("wire form (-want +got):\n%s", diff)
	}
}

func TestCallbackReplacesTheBlock(t *testing.T) {
	var audit, diagnostics logBuffer
	var got []acl.Effect
	p, err := acl.Parse("acl.yaml", []byte("audit: {enabled: false, include_denied: false, log_level: error}\n"+auditRules), acl.Options{
		AuditLogger: jsonLogger(&audit), Logger: diagnostics.logger(),
		Audit: func(_ context.Context, e acl.AuditEntry) error { got = append(got, e.Decision); return nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	p.Check(t.Context(), acl.Query{CallerID: "api.a", TargetID: "x"})
	p.Check(t.Context(), acl.Query{CallerID: "b", TargetID: "x"})
	if diff := cmp.Diff([]acl.Effect{acl.Allow, acl.Deny}, got); diff != "" {
		t.Errorf("callback (-want +got):\n%s", diff)
	}
	if audit.String() != "" {
		t.Errorf("the default sink wrote too:\n%s", audit.String())
	}
	for _, field := range []string{"audit.enabled", "audit.include_denied", "audit.log_level"} {
		if !strings.Contains(diagnostics.String(), field) {
			t.Errorf("no diagnostic for %s:\n%s", field, diagnostics.String())
		}
	}
	if n := strings.Count(diagnostics.String(), "\n"); n != 1 {
		t.Errorf("%d diagnostics, want 1", n)
	}
}

type brokenHandler struct{ slog.Handler }

func (brokenHandler) Enabled(context.Context, slog.Level) bool  { return true }
func (brokenHandler) Handle(context.Context, slog.Record) error { return errors.New("disk full") }

func TestBrokenSinkDecidesNothing(t *testing.T) {
	sinks := map[string]acl.Options{
		"error":   {Audit: func(context.Context, acl.AuditEntry) error { return errors.New("down") }},
		"panic":   {Audit: func(context.Context, acl.AuditEntry) error { panic("down") }},
		"default": {AuditLogger: slog.New(brokenHandler{})},
	}
	for name, o := range sinks {
		t.Run(name, func(t *testing.T) {
			var diagnostics logBuffer
			o.Logger = diagnostics.logger()
			p, err := acl.Parse("acl.yaml", []byte("audit: {}\n"+auditRules), o)
			if err != nil {
				t.Fatal(err)
			}
			for range 3 {
				if !p.Check(t.Context(), acl.Query{CallerID: "api.a", TargetID: "x"}) {
					t.Error("an allowed call was refused")
				}
				if p.Check(t.Context(), acl.Query{CallerID: "b", TargetID: "x"}) {
					t.Error("a denied call was granted")
				}
			}
			if n := strings.Count(diagnostics.String(), "sink failed"); n != 1 {
				t.Errorf("%d diagnostics, want 1:\n%s", n, diagnostics.String())
			}
		})
	}
}

func TestReloadAppliesTheBlock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "acl.yaml")
	write(t, path, auditRules)
	var audit logBuffer
	p, err := acl.Load(path, acl.Options{AuditLogger: jsonLogger(&audit)})
	if err != nil {
		t.Fatal(err)
	}
	p.Check(t.Context(), acl.Query{TargetID: "x"})
	write(t, path, "audit:\n"+auditRules)
	if err := p.Reload(); err != nil {
		t.Fatal(err)
	}
	if err := p.AddRule(deny("x", "y")); err != nil {
		t.Fatal(err)
	}
	p.Check(t.Context(), acl.Query{TargetID: "x"})
	if n := len(records(t, &audit)); n != 1 {
		t.Errorf("%d records, want 1 after the reload", n)
	}
}

func TestBadAuditBlock(t *testing.T) {
	tests := []struct{ name, audit, key, line string }{
		{"unknown key", "audit:\n  enabled: true\n  sink: x\n", "audit.sink", "acl.yaml:3"},
		{"enabled", "audit:\n  enabled: yes please\n", "audit.enabled", "acl.yaml:2"},
		{"include_denied", "audit:\n  include_denied: 1\n", "audit.include_denied", "acl.yaml:2"},
		{"level", "audit:\n  log_level: verbose\n", "audit.log_level", "acl.yaml:2"},
		{"level type", "audit:\n  log_level: 3\n", "audit.log_level", "acl.yaml:2"},
		{"not a mapping", "audit: true\n", "audit", "acl.yaml:1"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := acl.Parse("acl.yaml", []byte(tt.audit+auditRules), acl.Options{})
			e := module.AsError(err)
			if e == nil || e.Code != module.CodeConfigInvalid || e.Details["key"] != tt.key ||
				!strings.Contains(err.Error(), tt.key) || !strings.Contains(err.Error(), tt.line) {
				t.Errorf("got %v, want %s naming %s at %s", err, module.CodeConfigInvalid, tt.key, tt.line)
			}
		})
	}
}
