package gateway_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/apbus/apbus/executor/approval"
	"github.com/apbus/apbus/gateway"
	"github.com/apbus/apbus/module"
)

// inbox is a store with requests of ann, and the gateway before it as bob sees it.
type inbox struct {
	store *approval.MemStore
	g     *gateway.Gateway
}

func newInbox(t *testing.T, records ...approval.Record) *inbox {
	t.Helper()
	b := &inbox{store: approval.NewMemStore(0)}
	for _, r := range records {
		if _, err := b.store.Create(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	b.g = newGateway(t, b.as("bob"))
	return b
}

// as makes a gateway whose callers are all the person.
func (b *inbox) as(id string) func(o *gateway.Options) {
	return func(o *gateway.Options) {
		o.Auth = grants{module.NewIdentity(id, "user", nil, nil), gateway.Scopes()}
		o.Approvals = approval.NewDurable(b.store, approval.Options{Logger: slog.New(slog.DiscardHandler)})
	}
}

func pendingApproval(id string, created time.Time) approval.Record {
	return approval.Record{
		ID: id, State: approval.StatePending, CreatedAt: created, ExpiresAt: created.Add(time.Hour), TokenExpires: time.Hour,
		Binding: approval.Binding{
			ModuleID: "payments.refund", Version: "1.0.0", CallerID: "orders.place",
			HasIdentity: true, IdentityID: "ann", IdentityType: "user", Digest: "SECRET-DIGEST",
		},
		Inputs: map[string]any{"card": "***REDACTED***", "amount_cents": int64(9007199254740993)},
		Changes: []module.Change{{
			Action: "refund", Target: "charge:1", Summary: "Give back 4.50",
			Before: module.Known(map[string]any{"refunded_cents": int64(0)}), After: module.Known(map[string]any{"refunded_cents": int64(450)}),
		}},
		Warnings: []string{"slow today"}, Description: "Give a charge back", Tags: []string{"shop"}, Enrichers: []string{"tenant"},
		Annotations: module.Annotations{Destructive: true, RequiresApproval: true}, Reason: "money",
		TraceID: "0af7651916cd43dd8448eb211c80319c", CallChain: []string{"orders.place", "payments.refund"},
	}
}

func TestApprovalInbox(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now().UTC()
		b := newInbox(t, pendingApproval("a1", start), pendingApproval("a2", start.Add(time.Millisecond)))
		time.Sleep(time.Minute)
		res := record(b.g, "GET", "/v1/approvals", "")
		if res.status != 200 || strings.Contains(res.body, "SECRET") {
			t.Fatalf("got %d %s", res.status, res.body)
		}
		golden(t, "approvals", res.body)
		res = record(b.g, "POST", "/v1/approvals/a1/decision", `{"decision":"approve","reason":"the parcel came back"}`)
		if res.status != 200 || strings.Contains(res.body, "SECRET") {
			t.Fatalf("got %d %s", res.status, res.body)
		}
		golden(t, "approval_decided", res.body)
		if again := record(b.g, "GET", "/v1/approvals/a1", ""); again.status != 200 || again.body != res.body {
			t.Errorf("got %d %s, want what the decision answered", again.status, again.body)
		}
		e, err := b.store.Get(t.Context(), "a1")
		if err != nil || e.Record.State != approval.StateApproved || e.Record.DecidedBy != "bob" || e.Record.BecauseOf != "the parcel came back" {
			t.Errorf("stored %+v, %v", e.Record, err)
		}
	})
}

func TestListApprovals(t *testing.T) {
	now := time.Now()
	var records []approval.Record
	for i := range 5 {
		r := pendingApproval(fmt.Sprintf("a%d", i), now.Add(time.Duration(i)*time.Second))
		if i == 0 {
			r.State, r.Binding.ModuleID = approval.StateWithdrawn, "other.module"
		}
		records = append(records, r)
	}
	b := newInbox(t, records...)
	for _, tt := range []struct {
		query  string
		want   string
		status int
	}{
		{"", "a4 a3 a2 a1 a0", 200},
		{"?state=pending", "a4 a3 a2 a1", 200},
		{"?state=withdrawn&module=other.module", "a0", 200},
		{"?module=none", "", 200},
		{"?limit=2", "a4 a3", 200},
		{"?state=open", "", 400},
		{"?limit=0", "", 400},
		{"?limit=x", "", 400},
		{"?cursor=!", "", 400},
	} {
		res := record(b.g, "GET", "/v1/approvals"+tt.query, "")
		if res.status != tt.status {
			t.Errorf("%s: got %d %s", tt.query, res.status, res.body)
			continue
		}
		if tt.status == 200 {
			if got, _ := listed(t, res); got != tt.want {
				t.Errorf("%s: %q, want %q", tt.query, got, tt.want)
			}
		}
	}
	var pages []string
	for next := ""; ; {
		got, cursor := listed(t, record(b.g, "GET", "/v1/approvals?limit=2&cursor="+next, ""))
		if pages = append(pages, got); cursor == "" {
			break
		}
		next = cursor
	}
	if d := cmp.Diff([]string{"a4 a3", "a2 a1", "a0"}, pages); d != "" {
		t.Errorf("pages (-want +got):\n%s", d)
	}
}

func listed(t *testing.T, res response) (ids, next string) {
	t.Helper()
	doc := res.fields(t)
	var list []string
	for _, item := range doc["approvals"].([]any) {
		list = append(list, item.(map[string]any)["approval_id"].(string))
	}
	next, _ = doc["next_cursor"].(string)
	return strings.Join(list, " "), next
}

// Every way in which a decision is refused, with its status.
func TestRefusedDecisions(t *testing.T) {
	now := time.Now()
	expired, withdrawn, decided := pendingApproval("expired", now.Add(-2*time.Hour)), pendingApproval("withdrawn", now), pendingApproval("decided", now)
	withdrawn.State = approval.StateWithdrawn
	decided.State, decided.DecidedBy, decided.DecidedType, decided.BecauseOf, decided.DecidedAt = approval.StateRejected, "eve", "user", "too much", now
	b := newInbox(t, pendingApproval("a1", now), expired, withdrawn, decided)
	const yes = `{"decision":"approve","reason":"r"}`
	for _, tt := range []struct {
		name, who, id, body string
		status              int
		code                module.Code
	}{
		{"own request", "ann", "a1", yes, 403, module.CodeApprovalDenied},
		{"own request, rejected", "ann", "a1", `{"decision":"reject","reason":"r"}`, 403, module.CodeApprovalDenied},
		{"unknown", "bob", "none", yes, 404, gateway.CodeNotFound},
		{"decided", "bob", "decided", yes, 409, gateway.CodeConflict},
		{"withdrawn", "bob", "withdrawn", yes, 409, gateway.CodeConflict},
		{"expired", "bob", "expired", yes, 410, gateway.CodeGone},
		{"no body", "bob", "a1", "", 400, module.CodeInvalidInput},
		{"no reason", "bob", "a1", `{"decision":"approve"}`, 400, module.CodeInvalidInput},
		{"blank reason", "bob", "a1", `{"decision":"approve","reason":"  "}`, 400, module.CodeInvalidInput},
		{"reason of no text", "bob", "a1", `{"decision":"approve","reason":1}`, 400, module.CodeInvalidInput},
		{"long reason", "bob", "a1", `{"decision":"approve","reason":"` + strings.Repeat("x", 5000) + `"}`, 400, module.CodeInvalidInput},
		{"no decision", "bob", "a1", `{"reason":"r"}`, 400, module.CodeInvalidInput},
		{"another decision", "bob", "a1", `{"decision":"maybe","reason":"r"}`, 400, module.CodeInvalidInput},
		{"unknown key", "bob", "a1", `{"decision":"approve","reason":"r","by":"eve"}`, 400, module.CodeInvalidInput},
		{"no object", "bob", "a1", `[]`, 400, module.CodeBusBadMessage},
		{"nobody", "", "a1", yes, 400, module.CodeInvalidInput},
	} {
		t.Run(tt.name, func(t *testing.T) {
			g := newGateway(t, b.as(tt.who), func(o *gateway.Options) {
				if tt.who == "" {
					o.Auth = grants{nil, gateway.Scopes()}
				}
			})
			e := record(g, "POST", "/v1/approvals/"+tt.id+"/decision", tt.body).wantFault(t, tt.status, tt.code)
			if tt.id == "decided" {
				want := map[string]any{
					"approval_id": "decided", "state": "rejected",
					"decision": map[string]any{"decision": "reject", "by": "eve", "by_type": "user", "reason": "too much", "at": now.UTC().Format("2006-01-02T15:04:05.000Z")},
				}
				if d := cmp.Diff(want, e["details"]); d != "" {
					t.Errorf("who won (-want +got):\n%s", d)
				}
			}
		})
	}
	if e, err := b.store.Get(t.Context(), "a1"); err != nil || e.Record.State != approval.StatePending {
		t.Errorf("a refused decision changed the request: %+v, %v", e.Record, err)
	}
}

// awayStore is a store that cannot be reached.
type awayStore struct{ approval.Store }

func (awayStore) Get(context.Context, string) (approval.Entry, error) {
	return approval.Entry{}, module.Errorf(module.CodeTaskStoreUnavailable, "away")
}

func TestApprovalStoreIsAway(t *testing.T) {
	g := newGateway(t, func(o *gateway.Options) {
		o.Auth = grants{module.NewIdentity("bob", "user", nil, nil), gateway.Scopes()}
		o.Approvals = approval.NewDurable(awayStore{}, approval.Options{Logger: slog.New(slog.DiscardHandler)})
	})
	record(g, "GET", "/v1/approvals/a1", "").wantFault(t, 503, module.CodeTaskStoreUnavailable)
	record(g, "POST", "/v1/approvals/a1/decision", `{"decision":"reject","reason":"r"}`).wantFault(t, 503, module.CodeTaskStoreUnavailable)
}
