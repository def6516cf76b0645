package loop_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/loop"
)

// What a call's record names is what a caller who asks is shown.
func TestInForceIsTheGuidance(t *testing.T) {
	item := func(hash string, typ loop.ItemType, name string, at int64, fields map[string]any) *loop.Item {
		return &loop.Item{Hash: hash, Type: typ, Name: name, AppliedAtMS: at, Live: true, Fields: fields}
	}
	items := []*loop.Item{
		item("fact", loop.ItemFact, "pay.refund", 1, map[string]any{"relation": "fails_with", "object": "x"}),
		item("lesson", loop.ItemFact, "pay.refund", 3, map[string]any{"relation": "lesson", "object": "Ask."}),
		item("skill", loop.ItemSkill, "careful", 2, map[string]any{
			"description": "Refund (pay.refund) with care", "when_to_use": "before pay.refund.", "steps": []any{"Call order.get.", "Then pay.refund"},
		}),
		item("plan", loop.ItemPlan, "pay.refund", 4, nil),
		item("code", loop.ItemCode, "pay.refund", 4, nil),
	}
	var f loop.InForce
	for _, id := range []string{"pay.refund", "order.get", "pay"} {
		if got := f.Of(id); got != nil {
			t.Errorf("%s before anything was learned: %v", id, got)
		}
	}
	f.Set(items)
	for id, want := range map[string][]string{
		"pay.refund": {"lesson", "skill", "fact"}, "order.get": {"skill"}, "pay": nil, "refund": nil, "careful": nil, "": nil,
	} {
		if diff := cmp.Diff(want, f.Of(id)); diff != "" {
			t.Errorf("%q (-want +got):\n%s", id, diff)
		}
		var shown []string
		for _, g := range loop.GuidanceOf(items, id) {
			shown = append(shown, g.Hash)
		}
		if diff := cmp.Diff(shown, f.Of(id)); diff != "" {
			t.Errorf("%q, what is shown and what is recorded (-shown +recorded):\n%s", id, diff)
		}
	}
	for typ, want := range map[contextwire.EvidenceType]int{
		contextwire.EvidenceCall: 1, contextwire.EvidenceStream: 1, contextwire.EvidenceTask: 1,
		contextwire.EvidenceACL: 0, contextwire.EvidenceApproval: 0, contextwire.EvidenceNote: 0,
	} {
		e := &contextwire.Evidence{Type: typ, ModuleID: "order.get"}
		if f.Stamp(e); len(e.Guidance) != want {
			t.Errorf("%s: %v", typ, e.Guidance)
		}
	}
	f.Set(nil)
	if got := f.Of("pay.refund"); got != nil {
		t.Errorf("after it was taken back: %v", got)
	}
}
