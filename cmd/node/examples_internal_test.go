package main

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/apbus/apbus/examples"
	"github.com/apbus/apbus/executor"
	"github.com/apbus/apbus/executor/approval"
	"github.com/apbus/apbus/executor/registry"
	"github.com/apbus/apbus/module"
)

// newLocal makes the executor of a node without a bus. replace stands in for
// the example modules of the same IDs.
func newLocal(t *testing.T, replace ...module.Module) *executor.Executor {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	mods, err := examples.Modules(examples.Options{Node: "n1"})
	if err != nil {
		t.Fatal(err)
	}
	byID := map[string]module.Module{}
	for _, m := range append(mods, replace...) {
		byID[m.Descriptor().ID] = m
	}
	reg := registry.New(registry.Options{Logger: log})
	for _, m := range byID {
		if err := reg.Register(m); err != nil {
			t.Fatal(err)
		}
	}
	x, err := newExecutor(executor.Config{}, reg, nil, approval.NewMemory(approval.Options{Logger: log}), nil, log)
	if err != nil {
		t.Fatal(err)
	}
	return x
}

// TestExamplesThroughTheExecutor runs the sample calls of every module governed.
func TestExamplesThroughTheExecutor(t *testing.T) {
	mods, err := examples.Modules(examples.Options{})
	if err != nil {
		t.Fatal(err)
	}
	failing := map[string]bool{"demo.fail": true, "payments.refund": true}
	for _, m := range mods {
		d := m.Descriptor()
		for _, e := range d.Examples {
			t.Run(d.ID+"/"+e.Title, func(t *testing.T) {
				x := newLocal(t)
				if pre := x.Validate(t.Context(), d.ID, e.Inputs); !pre.Valid {
					t.Errorf("not valid: %v", pre.Errors())
				}
				out, err := x.Call(t.Context(), d.ID, e.Inputs)
				if failing[d.ID] != (err != nil) {
					t.Fatalf("err = %v", err)
				}
				if err == nil && e.Output != nil {
					if diff := cmp.Diff(e.Output, out); diff != "" {
						t.Error(diff)
					}
				}
			})
		}
	}
}

func TestExamplePreviews(t *testing.T) {
	x := newLocal(t)
	pre := x.Validate(t.Context(), "payments.charge", map[string]any{"order_id": "o1", "amount_cents": 1205, "card": "4111"})
	if !pre.Valid || len(pre.PredictedChanges) != 1 || pre.PredictedChanges[0].Summary != "Charge 12.05 for order o1" {
		t.Errorf("check = %+v", pre)
	}
	pre = x.Validate(t.Context(), "inventory.reserve", map[string]any{"items": []any{map[string]any{"sku": "last_one", "qty": 2}}})
	if len(pre.PredictedChanges) != 0 || !strings.Contains(strings.Join(pre.Warnings(), "\n"), "not enough in stock") {
		t.Errorf("check = %+v, warnings %q", pre, pre.Warnings())
	}
	if pre := x.Validate(t.Context(), "payments.refund", map[string]any{"charge_id": "ch_1"}); !pre.RequiresApproval {
		t.Error("a refund does not require an approval")
	}
}

func TestFailedOrdersNeverQuoteTheCard(t *testing.T) {
	const card = "4000123412340002"
	x := newLocal(t)
	_, err := x.Call(t.Context(), "orders.place", map[string]any{
		"customer": "ana", "card": card, "items": []any{map[string]any{"sku": "tea", "qty": 1}},
	})
	e := module.AsError(err)
	if e == nil || e.Code != "PAYMENT_DECLINED" {
		t.Fatalf("err = %v, want PAYMENT_DECLINED", err)
	}
	if all := err.Error() + e.CauseText(); strings.Contains(all, card) {
		t.Error("the error quotes the card")
	}
}

// TestCancelledOrderReleasesItsReservation cancels an order while its card is
// being charged, under the real pipeline, whose token ends every ordinary
// nested call.
func TestCancelledOrderReleasesItsReservation(t *testing.T) {
	charging := make(chan struct{})
	slow := module.New("payments.charge", "Charge for ever",
		func(ctx context.Context, _ map[string]any) (map[string]any, error) {
			close(charging)
			<-ctx.Done()
			return nil, context.Cause(ctx)
		},
		module.WithInputSchema(map[string]any{"type": "object"}), module.WithOutputSchema(map[string]any{"type": "object"}))
	x := newLocal(t, slow)
	ctx, stop := context.WithCancelCause(t.Context())
	go func() {
		<-charging
		stop(errors.New("changed my mind"))
	}()
	_, err := x.Call(ctx, "orders.place", map[string]any{
		"customer": "ana", "card": "4111", "items": []any{map[string]any{"sku": "tea", "qty": 3}},
	})
	if module.CodeOf(err) != module.CodeExecutionCancelled {
		t.Errorf("err = %v, want EXECUTION_CANCELLED", err)
	}
	settle, stopSettle := context.WithTimeout(t.Context(), 5*time.Second)
	defer stopSettle()
	if err := x.Settle(settle); err != nil {
		t.Fatal(err)
	}
	out, err := x.Call(t.Context(), "inventory.stock", map[string]any{"sku": "tea"})
	if err != nil {
		t.Fatal(err)
	}
	if got := out["items"].([]any)[0].(map[string]any)["available"]; got != int64(1_000_000) {
		t.Errorf("tea = %v, want all of it", got)
	}
}
