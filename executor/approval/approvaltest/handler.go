package approvaltest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/apbus/apbus/executor/approval"
	"github.com/apbus/apbus/module"
)

// desks are two handlers, as a node and a router have them.
func desks(t *testing.T, open Open, o approval.Options) (node, router *approval.Durable) {
	t.Helper()
	store, again := open(t)
	other := store
	if again != nil {
		other = again(t)
	}
	o.Logger = slog.New(slog.DiscardHandler)
	return approval.NewDurable(store, o), approval.NewDurable(other, o)
}

func person(id string) *module.Identity { return module.NewIdentity(id, "user", nil, nil) }

func refund(amount int64) *approval.Request {
	return &approval.Request{
		ModuleID: "payments.refund", Version: "1.0.0", Action: "payments.refund", Arguments: map[string]any{"amount": amount},
		Context: module.NewContext(module.ContextOptions{Identity: person("ann")}),
	}
}

func decision(by string, yes bool) approval.Decision {
	return approval.Decision{Approve: yes, By: person(by), Reason: "because of " + by}
}

func ask(t *testing.T, d *approval.Durable) string {
	t.Helper()
	res, err := d.RequestApproval(t.Context(), refund(1))
	if err != nil || res.Status != approval.Pending || res.ApprovalID == "" {
		t.Fatalf("request: %+v, %v", res, err)
	}
	return res.ApprovalID
}

func wantStatus(t *testing.T, d *approval.Durable, id string, r *approval.Request, want approval.Status, reason string) {
	t.Helper()
	res, err := d.CheckApproval(t.Context(), id, r)
	if err != nil || res.Status != want || !strings.Contains(res.Reason, reason) {
		t.Errorf("check: %+v, %v; want %s %q", res, err, want, reason)
	}
}

func handlerLife(t *testing.T, open Open) {
	node, router := desks(t, open, approval.Options{})
	id := ask(t, node)
	wantStatus(t, node, id, refund(1), approval.Pending, "")
	rec, err := router.Decide(t.Context(), id, decision("bob", true))
	if err != nil || rec.State != approval.StateApproved || rec.DecidedBy != "bob" || rec.BecauseOf != "because of bob" {
		t.Fatalf("decide: %+v, %v", rec, err)
	}
	wantStatus(t, node, id, refund(2), approval.Rejected, "another call")
	wantStatus(t, node, "unknown", refund(1), approval.Rejected, "unknown")
	wantStatus(t, node, id, refund(1), approval.Approved, "because of bob")
	wantStatus(t, node, id, refund(1), approval.Rejected, "already used")
	if rec, err := router.Get(t.Context(), id); err != nil || rec.State != approval.StateClaimed {
		t.Errorf("get: %+v, %v", rec, err)
	}
}

func handlerWakes(t *testing.T, open Open) {
	node, router := desks(t, open, approval.Options{Wait: time.Hour})
	for _, yes := range []bool{true, false} {
		type end struct {
			res *approval.Result
			err error
		}
		done := make(chan end, 1)
		go func() {
			res, err := node.RequestApproval(t.Context(), refund(1))
			done <- end{res, err}
		}()
		time.Sleep(25 * time.Second)
		page, err := router.List(t.Context(), approval.Filter{State: approval.StatePending})
		if err != nil || len(page.Records) != 1 {
			t.Fatalf("list: %+v, %v", page, err)
		}
		if _, err := router.Decide(t.Context(), page.Records[0].ID, decision("bob", yes)); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		got := <-done
		want := map[bool]approval.Status{true: approval.Approved, false: approval.Rejected}[yes]
		if got.err != nil || got.res.Status != want {
			t.Errorf("approve %v: %+v, %v", yes, got.res, got.err)
		}
		if waited := time.Since(began); waited > 100*time.Millisecond {
			t.Errorf("the decision woke the call after %v only", waited)
		}
	}
}

func handlerDecisionsRace(t *testing.T, open Open) {
	node, router := desks(t, open, approval.Options{})
	id := ask(t, node)
	desks := []*approval.Durable{node, router}
	var wg sync.WaitGroup
	var mu sync.Mutex
	winners := map[string]bool{}
	seen := map[string]bool{}
	for i := range 8 {
		wg.Go(func() {
			by := fmt.Sprintf("reviewer%d", i)
			rec, err := desks[i%2].Decide(t.Context(), id, decision(by, i%3 == 0))
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				winners[by] = true
			} else if !errors.Is(err, approval.ErrDecided) {
				t.Errorf("a loser got %v", err)
			}
			seen[rec.DecidedBy] = true
		})
	}
	wg.Wait()
	if len(winners) != 1 || len(seen) != 1 {
		t.Errorf("winners %v, seen as the winner %v", winners, seen)
	}
}

func handlerClaimsRace(t *testing.T, open Open) {
	node, router := desks(t, open, approval.Options{})
	id := ask(t, node)
	if _, err := router.Decide(t.Context(), id, decision("bob", true)); err != nil {
		t.Fatal(err)
	}
	desks := []*approval.Durable{node, router}
	var wg sync.WaitGroup
	var mu sync.Mutex
	statuses := map[approval.Status]int{}
	for i := range 8 {
		wg.Go(func() {
			res, err := desks[i%2].CheckApproval(t.Context(), id, refund(1))
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				t.Errorf("check: %v", err)
				return
			}
			statuses[res.Status]++
		})
	}
	wg.Wait()
	if statuses[approval.Approved] != 1 || statuses[approval.Rejected] != 7 {
		t.Errorf("one token: %v", statuses)
	}
}

func handlerExpiry(t *testing.T, open Open) {
	node, router := desks(t, open, approval.Options{Expiry: time.Minute, TokenExpiry: time.Minute})
	late, unused := ask(t, node), ask(t, node)
	if _, err := router.Decide(t.Context(), unused, decision("bob", true)); err != nil {
		t.Fatal(err)
	}
	time.Sleep(time.Minute)
	if rec, err := router.Decide(t.Context(), late, decision("bob", true)); !errors.Is(err, approval.ErrExpired) || rec.State != approval.StateExpired {
		t.Errorf("decided after expiry: %+v, %v", rec, err)
	}
	wantStatus(t, node, late, refund(1), approval.Timeout, "expired")
	wantStatus(t, node, unused, refund(1), approval.Timeout, "not used in time")
}

func handlerWithdraws(t *testing.T, open Open) {
	node, router := desks(t, open, approval.Options{Wait: time.Hour})
	gone := errors.New("the caller has left")
	ctx, stop := context.WithCancelCause(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := node.RequestApproval(ctx, refund(1))
		done <- err
	}()
	time.Sleep(time.Second)
	stop(gone)
	if err := <-done; !errors.Is(err, gone) {
		t.Errorf("got %v, want the cause", err)
	}
	page, err := router.List(t.Context(), approval.Filter{})
	if err != nil || len(page.Records) != 1 || page.Records[0].State != approval.StateWithdrawn {
		t.Fatalf("list: %+v, %v", page, err)
	}
	if _, err := router.Decide(t.Context(), page.Records[0].ID, decision("bob", true)); !errors.Is(err, approval.ErrDecided) {
		t.Errorf("decided: %v", err)
	}
}
