package acl_test

import (
	"fmt"
	"testing"

	"github.com/apbus/apbus/executor/acl"
)

// hotCases are the checks that every call pays for.
func hotCases(t testing.TB) map[string]func() {
	c := call(2, "user", "dev")
	plain := mustNew(t, acl.Options{}, allow("gateway", "math.add"))
	prefix := mustNew(t, acl.Options{}, deny("@external", "admin.*"), allow("api.*", "math.*"))
	roles := mustNew(t, acl.Options{}, when(allow("*", "*"), obj{"roles": []any{"dev"}, "max_call_depth": 3, "arguments": obj{"has_none_of": []any{"force"}}}))
	ctx := t.Context()
	keys := []string{"a", "b"}
	check := func(p *acl.Policy, q acl.Query) func() {
		return func() {
			if !p.Authorize(ctx, q).Allowed {
				panic("denied")
			}
		}
	}
	return map[string]func(){
		"exact":      check(plain, acl.Query{CallerID: "gateway", TargetID: "math.add", Context: c}),
		"prefix":     check(prefix, acl.Query{CallerID: "api.web", TargetID: "math.add", Context: c}),
		"conditions": check(roles, acl.Query{CallerID: "api.web", TargetID: "math.add", Context: c, ArgumentKeys: keys}),
	}
}

func TestChecksDoNotAllocate(t *testing.T) {
	for name, f := range hotCases(t) {
		if n := testing.AllocsPerRun(100, f); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

func BenchmarkAuthorize(b *testing.B) {
	for name, f := range hotCases(b) {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				f()
			}
		})
	}
	rules := make([]acl.Rule, 1000)
	for i := range rules {
		rules[i] = allow(fmt.Sprintf("team%d.*", i), fmt.Sprintf("svc%d.*", i))
	}
	p := mustNew(b, acl.Options{}, rules...)
	b.Run("last of 1000", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			p.Authorize(b.Context(), acl.Query{CallerID: "team999.a", TargetID: "svc999.b"})
		}
	})
}
