package approval_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apbus/apbus/executor/approval"
	"github.com/apbus/apbus/module"
	"github.com/google/go-cmp/cmp"
)

func person(id string) *module.Identity { return module.NewIdentity(id, "user", nil, nil) }

// request is a call by ann of pay.charge.
func request(inputs obj) *approval.Request {
	c := module.NewContext(module.ContextOptions{Identity: person("ann")}).Child("orders.place").Child("pay.charge")
	redacted := obj{"card": "***REDACTED***", "_approval_token": "t"}
	c.SetRedactedInputs(func() map[string]any { return redacted })
	return &approval.Request{
		ModuleID: "pay.charge", Version: "1.0.0", Arguments: inputs, Context: c,
		CallerID: c.CallerID(), Action: "pay.charge", Description: "Charge a card",
	}
}

// open asks for approval and returns the pending token.
func open(t testing.TB, m *approval.Durable, r *approval.Request) string {
	t.Helper()
	res, err := m.RequestApproval(t.Context(), r)
	if err != nil || res.Status != approval.Pending || res.ApprovalID == "" {
		t.Fatalf("got %+v, %v; want pending with an ID", res, err)
	}
	return res.ApprovalID
}

func decide(t testing.TB, m *approval.Durable, id string, yes bool) {
	t.Helper()
	if _, err := m.Decide(t.Context(), id, approval.Decision{Approve: yes, By: person("bob"), Reason: "checked"}); err != nil {
		t.Fatalf("decide: %v", err)
	}
}

func check(t testing.TB, m *approval.Durable, id string, r *approval.Request) approval.Result {
	t.Helper()
	res, err := m.CheckApproval(t.Context(), id, r)
	if err != nil {
		t.Fatalf("check: %v", err)
	}
	return *res
}

func get(t testing.TB, m *approval.Durable, id string) approval.Record {
	t.Helper()
	r, err := m.Get(t.Context(), id)
	if err != nil {
		t.Fatalf("get: %v", err)
	}
	return r
}

func list(t testing.TB, m *approval.Durable, f approval.Filter) []approval.Record {
	t.Helper()
	page, err := m.List(t.Context(), f)
	if err != nil {
		t.Fatalf("list: %v", err)
	}
	return page.Records
}

func TestPhaseB(t *testing.T) {
	m := approval.NewMemory(approval.Options{})
	in := obj{"amount": int64(5)}
	id := open(t, m, request(in))
	if got := check(t, m, id, request(in)); got.Status != approval.Pending || got.ApprovalID != id {
		t.Errorf("before the decision: %+v", got)
	}
	decide(t, m, id, true)
	want := approval.Result{Status: approval.Approved, ApprovedBy: "bob", Reason: "checked", ApprovalID: id}
	if diff := cmp.Diff(want, check(t, m, id, request(obj{"amount": int64(5), "_approval_token": id}))); diff != "" {
		t.Errorf("after the decision (-want +got):\n%s", diff)
	}
	if got := check(t, m, id, request(in)); got.Status != approval.Rejected || !strings.Contains(got.Reason, "already used") {
		t.Errorf("second use: %+v", got)
	}
	if r := get(t, m, id); r.State != approval.StateClaimed || r.ClaimedAt.IsZero() {
		t.Errorf("record %+v", r)
	}
	if got := check(t, m, "forged", request(in)); got.Status != approval.Rejected {
		t.Errorf("unknown token: %+v", got)
	}
	no := open(t, m, request(in))
	decide(t, m, no, false)
	if got := check(t, m, no, request(in)); got.Status != approval.Rejected || got.ApprovedBy != "bob" || got.Reason != "checked" {
		t.Errorf("rejected: %+v", got)
	}
}

func TestTokenIsBound(t *testing.T) {
	in := obj{"amount": int64(5)}
	as := func(id *module.Identity) *module.Context {
		return module.NewContext(module.ContextOptions{Identity: id})
	}
	tests := []struct {
		name   string
		change func(*approval.Request)
	}{
		{"module", func(r *approval.Request) { r.ModuleID = "pay.refund" }},
		{"version", func(r *approval.Request) { r.Version = "1.0.1" }},
		{"caller", func(r *approval.Request) { r.CallerID = "" }},
		{"identity", func(r *approval.Request) { r.Context = as(person("eve")) }},
		{"identity type", func(r *approval.Request) { r.Context = as(module.NewIdentity("ann", "service", nil, nil)) }},
		{"no identity", func(r *approval.Request) { r.Context = as(nil) }},
		{"inputs", func(r *approval.Request) { r.Arguments = obj{"amount": int64(6)} }},
		{"one more input", func(r *approval.Request) { r.Arguments = obj{"amount": int64(5), "to": "eve"} }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m := approval.NewMemory(approval.Options{})
			id := open(t, m, request(in))
			decide(t, m, id, true)
			other := request(in)
			tt.change(other)
			if got := check(t, m, id, other); got.Status != approval.Rejected || !strings.Contains(got.Reason, "another call") {
				t.Errorf("got %+v", got)
			}
			if got := check(t, m, id, request(in)); got.Status != approval.Approved {
				t.Errorf("the foreign attempt used the token up: %+v", got)
			}
		})
	}
}

func TestTokenIsClaimedOnce(t *testing.T) {
	m := approval.NewMemory(approval.Options{})
	id := open(t, m, request(nil))
	decide(t, m, id, true)
	var mu sync.Mutex
	won := 0
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			if check(t, m, id, request(nil)).Status == approval.Approved {
				mu.Lock()
				won++
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if won != 1 {
		t.Errorf("%d calls used one token", won)
	}
}

func TestDecideRefusals(t *testing.T) {
	tests := []struct {
		name string
		d    approval.Decision
		code module.Code
		is   error
	}{
		{"self", approval.Decision{Approve: true, By: person("ann"), Reason: "mine"}, module.CodeApprovalDenied, approval.ErrSelfApproval},
		{"self under another type", approval.Decision{Approve: true, By: module.NewIdentity("ann", "api_key", nil, nil), Reason: "mine"}, module.CodeApprovalDenied, approval.ErrSelfApproval},
		{"nobody", approval.Decision{Approve: true, Reason: "x"}, module.CodeInvalidInput, approval.ErrNoDecider},
		{"nameless", approval.Decision{Approve: true, By: person(""), Reason: "x"}, module.CodeInvalidInput, approval.ErrNoDecider},
		{"no reason", approval.Decision{By: person("bob")}, module.CodeInvalidInput, approval.ErrNoReason},
		{"blank reason", approval.Decision{By: person("bob"), Reason: " \n"}, module.CodeInvalidInput, approval.ErrNoReason},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m := approval.NewMemory(approval.Options{})
			id := open(t, m, request(nil))
			rec, err := m.Decide(t.Context(), id, tt.d)
			if module.CodeOf(err) != tt.code || !errors.Is(err, tt.is) {
				t.Errorf("got %v, want %s for %v", err, tt.code, tt.is)
			}
			if rec.State != approval.StatePending {
				t.Errorf("state %s", rec.State)
			}
			decide(t, m, id, true)
		})
	}
	m := approval.NewMemory(approval.Options{})
	if _, err := m.Decide(t.Context(), "none", approval.Decision{By: person("bob"), Reason: "x"}); !errors.Is(err, approval.ErrNotFound) {
		t.Errorf("unknown ID: %v", err)
	}
}

func TestDecisionsRace(t *testing.T) {
	m := approval.NewMemory(approval.Options{})
	id := open(t, m, request(nil))
	errs := make([]error, 8)
	states := make([]approval.State, 8)
	var wg sync.WaitGroup
	for i := range errs {
		wg.Go(func() {
			rec, err := m.Decide(t.Context(), id, approval.Decision{Approve: i%2 == 0, By: person("bob"), Reason: "r"})
			errs[i], states[i] = err, rec.State
		})
	}
	wg.Wait()
	won := 0
	for i, err := range errs {
		switch {
		case err == nil:
			won++
		case !errors.Is(err, approval.ErrDecided):
			t.Errorf("loser %d: %v", i, err)
		}
	}
	if won != 1 {
		t.Errorf("%d decisions won", won)
	}
	if len(slices.Compact(slices.Sorted(slices.Values(states)))) != 1 {
		t.Errorf("losers do not see who won: %v", states)
	}
}

func TestWait(t *testing.T) {
	type end struct {
		res *approval.Result
		err error
	}
	start := func(ctx context.Context, m *approval.Durable) chan end {
		done := make(chan end, 1)
		go func() {
			res, err := m.RequestApproval(ctx, request(nil))
			done <- end{res, err}
		}()
		synctest.Wait()
		return done
	}
	pending := func(t *testing.T, m *approval.Durable) string {
		t.Helper()
		list := list(t, m, approval.Filter{State: approval.StatePending})
		if len(list) != 1 {
			t.Fatalf("%d pending requests", len(list))
		}
		return list[0].ID
	}
	t.Run("approved", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			m := approval.NewMemory(approval.Options{Wait: time.Minute})
			began := time.Now()
			done := start(t.Context(), m)
			time.Sleep(20 * time.Second)
			id := pending(t, m)
			decide(t, m, id, true)
			got := <-done
			if got.err != nil || got.res.Status != approval.Approved || time.Since(began) != 20*time.Second {
				t.Errorf("got %+v, %v after %v", got.res, got.err, time.Since(began))
			}
			if r := check(t, m, id, request(nil)); r.Status != approval.Rejected {
				t.Errorf("the waiting call did not use its token up: %+v", r)
			}
		})
	})
	t.Run("rejected", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			m := approval.NewMemory(approval.Options{Wait: time.Minute})
			done := start(t.Context(), m)
			decide(t, m, pending(t, m), false)
			if got := <-done; got.res.Status != approval.Rejected || got.res.Reason != "checked" {
				t.Errorf("got %+v, %v", got.res, got.err)
			}
		})
	})
	t.Run("nobody decides", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			m := approval.NewMemory(approval.Options{Wait: time.Minute})
			began := time.Now()
			got := <-start(t.Context(), m)
			if got.res.Status != approval.Pending || time.Since(began) != time.Minute {
				t.Errorf("got %+v, %v after %v", got.res, got.err, time.Since(began))
			}
			decide(t, m, got.res.ApprovalID, true)
			if r := check(t, m, got.res.ApprovalID, request(nil)); r.Status != approval.Approved {
				t.Errorf("resume: %+v", r)
			}
		})
	})
	t.Run("expires while waiting", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			m := approval.NewMemory(approval.Options{Wait: time.Hour, Expiry: time.Minute})
			began := time.Now()
			got := <-start(t.Context(), m)
			if got.res.Status != approval.Timeout || time.Since(began) != time.Minute {
				t.Errorf("got %+v, %v after %v", got.res, got.err, time.Since(began))
			}
		})
	})
	t.Run("caller leaves", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			m := approval.NewMemory(approval.Options{Wait: time.Hour})
			gone := errors.New("caller gone")
			ctx, stop := context.WithCancelCause(t.Context())
			done := start(ctx, m)
			id := pending(t, m)
			stop(gone)
			if got := <-done; !errors.Is(got.err, gone) {
				t.Errorf("got %+v, %v; want the cause", got.res, got.err)
			}
			if r := get(t, m, id); r.State != approval.StateWithdrawn {
				t.Errorf("state %s", r.State)
			}
			if _, err := m.Decide(t.Context(), id, approval.Decision{Approve: true, By: person("bob"), Reason: "r"}); !errors.Is(err, approval.ErrDecided) {
				t.Errorf("decide afterwards: %v", err)
			}
			if r := check(t, m, id, request(nil)); r.Status != approval.Rejected {
				t.Errorf("token afterwards: %+v", r)
			}
		})
	})
	t.Run("waiting with a token", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			m := approval.NewMemory(approval.Options{Wait: time.Minute})
			id := (<-start(t.Context(), m)).res.ApprovalID
			ctx, stop := context.WithCancelCause(t.Context())
			done := make(chan end, 2)
			for _, c := range []context.Context{ctx, t.Context()} {
				go func() {
					res, err := m.CheckApproval(c, id, request(nil))
					done <- end{res, err}
				}()
			}
			synctest.Wait()
			stop(errors.New("gone"))
			if got := <-done; got.err == nil {
				t.Errorf("the cancelled check returned %+v", got.res)
			}
			decide(t, m, id, true) // a check that leaves withdraws nothing
			if got := <-done; got.res == nil || got.res.Status != approval.Approved {
				t.Errorf("got %+v, %v", got.res, got.err)
			}
		})
	})
}

func TestExpiry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := approval.NewMemory(approval.Options{Expiry: time.Hour, TokenExpiry: time.Minute})
		late, used, stale := open(t, m, request(nil)), open(t, m, request(nil)), open(t, m, request(nil))
		time.Sleep(59 * time.Minute)
		decide(t, m, used, true)
		decide(t, m, stale, true)
		time.Sleep(59 * time.Second) // the token lives on when the request's own time is over
		if r := check(t, m, used, request(nil)); r.Status != approval.Approved {
			t.Errorf("in time: %+v", r)
		}
		time.Sleep(time.Second)
		if r := check(t, m, stale, request(nil)); r.Status != approval.Timeout || !strings.Contains(r.Reason, "not used in time") {
			t.Errorf("token past its time: %+v", r)
		}
		if _, err := m.Decide(t.Context(), late, approval.Decision{Approve: true, By: person("bob"), Reason: "r"}); !errors.Is(err, approval.ErrExpired) {
			t.Errorf("decision after the request's time: %v", err)
		}
		if r := check(t, m, late, request(nil)); r.Status != approval.Timeout {
			t.Errorf("request past its time: %+v", r)
		}
		for id, want := range map[string]approval.State{late: approval.StateExpired, used: approval.StateClaimed, stale: approval.StateExpired} {
			if r := get(t, m, id); r.State != want {
				t.Errorf("state %s, want %s", r.State, want)
			}
		}
	})
}

func TestBoundedSize(t *testing.T) {
	m := approval.NewDurable(approval.NewMemStore(3), approval.Options{})
	a, b, c := open(t, m, request(nil)), open(t, m, request(nil)), open(t, m, request(nil))
	if _, err := m.RequestApproval(t.Context(), request(nil)); module.CodeOf(err) != module.CodeTaskLimitExceeded {
		t.Errorf("a fourth open request: %v", err)
	}
	decide(t, m, a, true) // approved is still open: its token must survive
	if _, err := m.RequestApproval(t.Context(), request(nil)); module.CodeOf(err) != module.CodeTaskLimitExceeded {
		t.Errorf("an unused approval made room: %v", err)
	}
	decide(t, m, b, false)
	d := open(t, m, request(nil))
	if _, err := m.Get(t.Context(), b); !errors.Is(err, approval.ErrNotFound) {
		t.Errorf("the finished record was kept: %v", err)
	}
	var got []string
	for _, r := range list(t, m, approval.Filter{}) {
		got = append(got, r.ID)
	}
	if diff := cmp.Diff([]string{d, c, a}, got); diff != "" {
		t.Errorf("records, newest first (-want +got):\n%s", diff)
	}
}

func TestRecordForReviewers(t *testing.T) {
	var log bytes.Buffer
	var decided []approval.Record
	m := approval.NewMemory(approval.Options{
		Logger:     slog.New(slog.NewTextHandler(&log, nil)),
		OnDecision: func(_ context.Context, r approval.Record) { decided = append(decided, r) },
	})
	r := request(obj{"card": "4111"})
	predicted := []module.Change{{Action: "charge", Target: "card", Summary: "charges 5"}}
	r.Preview = func() []module.Change { return predicted }
	r.Preflight = func() []string { panic("4111") }
	r.Enrichers = []string{"tenant"}
	id := open(t, m, r)
	rec := get(t, m, id)
	if rec.Binding.ModuleID != "pay.charge" || rec.Binding.CallerID != "orders.place" || rec.Binding.IdentityID != "ann" ||
		rec.Description != "Charge a card" || rec.TraceID != r.Context.TraceID() {
		t.Errorf("record %+v", rec)
	}
	if diff := cmp.Diff(obj{"card": "***REDACTED***"}, rec.Inputs); diff != "" {
		t.Errorf("inputs shown (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"tenant"}, rec.Enrichers); diff != "" {
		t.Errorf("enrichers (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(predicted, rec.Changes); diff != "" {
		t.Errorf("changes (-want +got):\n%s", diff)
	}
	if !strings.Contains(log.String(), "panicked") || strings.Contains(log.String(), "4111") {
		t.Errorf("log %s", log.String())
	}
	rec.Inputs["card"], rec.Changes[0].Summary = "x", "x"
	if again := get(t, m, id); again.Inputs["card"] == "x" || again.Changes[0].Summary == "x" {
		t.Error("a reader can change the record")
	}
	decide(t, m, id, true)
	check(t, m, id, r)
	if len(decided) != 1 || decided[0].ID != id || decided[0].DecidedBy != "bob" || decided[0].BecauseOf != "checked" || decided[0].DecidedAt.IsZero() {
		t.Errorf("decisions told of: %+v", decided)
	}
	if _, err := m.Decide(t.Context(), id, approval.Decision{By: person("eve"), Reason: "r"}); err == nil || len(decided) != 1 {
		t.Errorf("a refused decision is told of: %v, %+v", err, decided)
	}
	if n := len(list(t, m, approval.Filter{ModuleID: "other"})); n != 0 {
		t.Errorf("%d records of another module", n)
	}
	if n := len(list(t, m, approval.Filter{State: approval.StateClaimed, ModuleID: "pay.charge", Limit: 1})); n != 1 {
		t.Errorf("%d records found, want 1", n)
	}
}
