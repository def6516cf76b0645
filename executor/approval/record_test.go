package approval_test

import (
	"testing"
	"time"

	"github.com/apbus/apbus/executor/approval"
	"pgregory.net/rapid"
)

// An approval without a limit of its own outlives the request's.
func TestTokenWithoutExpiry(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	r := approval.Record{ID: "id", State: approval.StatePending, ExpiresAt: now.Add(time.Minute)}
	r, err := r.Decide(approval.Decision{Approve: true, By: person("bob"), Reason: "r"}, now)
	if err != nil {
		t.Fatal(err)
	}
	if _, res := r.Claim(approval.Binding{}, now.Add(1000*time.Hour)); res.Status != approval.Approved {
		t.Errorf("got %+v", res)
	}
}

// Whatever happens in whatever order: a call runs only after somebody else
// approved it, only once, and only in time.
func TestRecordProperty(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
		now := start
		b := approval.Binding{ModuleID: "m", CallerID: "c", HasIdentity: true, IdentityID: "ann", Digest: "d"}
		r := approval.Record{ID: "id", State: approval.StatePending, Binding: b, CreatedAt: now, ExpiresAt: now.Add(10 * time.Minute), TokenExpires: 5 * time.Minute}
		ran := 0
		var approvedAt time.Time
		for range rapid.IntRange(1, 12).Draw(rt, "steps") {
			switch rapid.SampledFrom([]string{"wait", "approve", "reject", "self", "claim", "steal"}).Draw(rt, "step") {
			case "wait":
				now = now.Add(time.Duration(rapid.IntRange(1, 240).Draw(rt, "seconds")) * time.Second)
			case "approve", "reject":
				yes := rapid.Bool().Draw(rt, "yes")
				before := r.At(now).State
				next, err := r.Decide(approval.Decision{Approve: yes, By: person("bob"), Reason: "r"}, now)
				if (err == nil) != (before == approval.StatePending) {
					rt.Fatalf("decision in state %s: %v", before, err)
				}
				if err == nil {
					if r = next; yes {
						approvedAt = now
					}
				}
			case "self":
				if _, err := r.Decide(approval.Decision{Approve: true, By: person("ann"), Reason: "r"}, now); err == nil {
					rt.Fatal("the requester decided")
				}
			case "claim":
				next, res := r.Claim(b, now)
				if res.Status != approval.Approved {
					continue
				}
				r = next
				ran++
				if ran > 1 || approvedAt.IsZero() || now.Sub(approvedAt) >= 5*time.Minute {
					rt.Fatalf("run %d at %v, approved at %v", ran, now.Sub(start), approvedAt.Sub(start))
				}
			case "steal":
				other := b
				other.Digest = "e"
				if _, res := r.Claim(other, now); res.Status != approval.Rejected {
					rt.Fatalf("another call got %s", res.Status)
				}
			}
		}
	})
}
