package acl

import (
	"log/slog"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// No door lets a malformed pattern list in. Should one be installed all the
// same, its scope is unknown: it fails closed and raises its approval.
func TestMalformedPatternsBackstop(t *testing.T) {
	good := []string{"*"}
	tests := []struct {
		name string
		rule Rule
		def  Effect
		want Decision
	}{
		{"empty targets, deny", Rule{Callers: good, Effect: Deny}, Allow,
			Decision{Reason: ReasonRuleMatch, HandlerError: "targets: is empty"}},
		{"empty targets, allow", Rule{Callers: good, Effect: Allow}, Deny,
			Decision{RuleIndex: -1, Reason: ReasonDefaultEffect, HandlerError: "targets: is empty"}},
		{"or of nothing", Rule{Callers: good, Targets: []string{"$or"}, Effect: Deny}, Allow,
			Decision{Reason: ReasonRuleMatch, HandlerError: "targets: has $or without a pattern"}},
		{"not of two", Rule{Callers: good, Targets: []string{"$not", "a", "b"}, Effect: Allow}, Deny,
			Decision{RuleIndex: -1, Reason: ReasonDefaultEffect, HandlerError: "targets: needs exactly one pattern after $not"}},
		{"both fields", Rule{Callers: []string{"$not"}, Effect: Deny}, Allow,
			Decision{Reason: ReasonRuleMatch, HandlerError: "callers: needs exactly one pattern after $not; targets: is empty"}},
		{"approval", Rule{Callers: good, Effect: Allow, Approval: Required}, Allow,
			Decision{Allowed: true, ApprovalRequired: true, RuleIndex: -1, Reason: ReasonDefaultEffect, HandlerError: "targets: is empty"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p, err := newPolicy(Options{Logger: slog.New(slog.DiscardHandler)})
			if err != nil {
				t.Fatal(err)
			}
			p.install(&content{rules: []Rule{tt.rule}, defaultEffect: tt.def})
			q := Query{CallerID: "api.gateway", TargetID: "cli.rm"}
			if diff := cmp.Diff(tt.want, p.Authorize(t.Context(), q)); diff != "" {
				t.Errorf("decision (-want +got):\n%s", diff)
			}
			if len(p.Validate()) == 0 {
				t.Error("no finding")
			}
		})
	}
}
