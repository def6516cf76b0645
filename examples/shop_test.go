package examples_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/apbus/apbus/examples"
	"github.com/apbus/apbus/module"
)

const card = "4111222233334444"

func order(lines ...any) map[string]any {
	return obj("customer", "ana", "items", items(lines...), "card", card)
}

func available(t *testing.T, x module.Executor, sku string) int64 {
	t.Helper()
	out := mustCall(t, x, "inventory.stock", obj("sku", sku))
	return out["items"].([]any)[0].(map[string]any)["available"].(int64)
}

func TestOrder(t *testing.T) {
	x := newDirect(t, examples.Options{})
	var called []string
	x.calls = func(ctx context.Context, id string, _ map[string]any) error {
		caller := ""
		if c := module.FromContext(ctx); c != nil {
			caller = c.ChainView()[len(c.ChainView())-1]
		}
		called = append(called, caller+">"+id)
		return nil
	}
	out := mustCall(t, x, "orders.place", order("tea", 2, "mug", 1, "tea", 1))
	if d := cmp.Diff([]string{">orders.place", "orders.place>inventory.reserve", "orders.place>payments.charge"}, called); d != "" {
		t.Error(d)
	}
	if got, want := out["total_cents"], int64(3*450+1250); got != want {
		t.Errorf("total = %v, want %v", got, want)
	}
	for _, k := range []string{"order_id", "reservation_id", "charge_id"} {
		if s, _ := out[k].(string); s == "" {
			t.Errorf("%s = %v", k, out[k])
		}
	}
	if got, want := available(t, x, "tea"), int64(1_000_000-3); got != want {
		t.Errorf("tea = %d, want %d", got, want)
	}
}

func TestOrderReleasesWhenTheChargeFails(t *testing.T) {
	for _, tt := range []struct {
		name  string
		order map[string]any
		fail  error
		want  module.Code
	}{
		{"declined", obj("customer", "ana", "items", items("tea", 5), "card", "4000000000000002"), nil, "PAYMENT_DECLINED"},
		{"payments gone", order("tea", 5), module.Errorf(module.CodeBusNodeLost, "lost"), module.CodeBusNodeLost},
		{"no code", order("tea", 5), errors.New("broken"), module.CodeInternal},
	} {
		t.Run(tt.name, func(t *testing.T) {
			x := newDirect(t, examples.Options{})
			x.calls = func(_ context.Context, id string, _ map[string]any) error {
				if id == "payments.charge" {
					return tt.fail
				}
				return nil
			}
			_, err := x.Call(t.Context(), "orders.place", tt.order)
			wantCode(t, err, tt.want)
			if strings.Contains(fmt.Sprint(err), "4000000000000002") {
				t.Error("the error quotes the card")
			}
			if got := available(t, x, "tea"); got != 1_000_000 {
				t.Errorf("tea = %d, want all of it", got)
			}
		})
	}
}

// TestOrderReleasesWhenItWasCancelled cancels the order while it is charging:
// the release must run on a context that the cancellation does not reach.
func TestOrderReleasesWhenItWasCancelled(t *testing.T) {
	x := newDirect(t, examples.Options{})
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancelCause(t.Context())
		because := errors.New("changed my mind")
		var limit time.Duration
		x.calls = func(ctx context.Context, id string, _ map[string]any) error {
			switch id {
			case "payments.charge":
				stop(because)
				return module.Errorf(module.CodeExecutionCancelled, "cancelled: %w", because)
			case "inventory.release":
				if ctx.Err() != nil {
					t.Errorf("the release runs on a context that is over: %v", context.Cause(ctx))
				}
				if c := module.FromContext(ctx); c.Token() != nil || c.TraceID() == "" || len(c.ChainView()) != 1 {
					t.Errorf("the release runs with token %v, trace %q, chain %v", c.Token(), c.TraceID(), c.ChainView())
				}
				deadline, ok := ctx.Deadline()
				if !ok {
					t.Error("the release has no time limit")
				}
				limit = time.Until(deadline)
			}
			return nil
		}
		_, err := x.Call(ctx, "orders.place", order("tea", 5))
		wantCode(t, err, module.CodeExecutionCancelled)
		if limit != 5*time.Second {
			t.Errorf("the release has %v, want 5s", limit)
		}
		if got := available(t, x, "tea"); got != 1_000_000 {
			t.Errorf("tea = %d, want all of it", got)
		}
	})
}

func TestOrderWhoseReserveIsInDoubt(t *testing.T) {
	for _, tt := range []struct {
		name    string
		fail    error
		release bool
	}{
		{"node lost", module.Errorf(module.CodeBusNodeLost, "lost"), true},
		{"timeout", module.Errorf(module.CodeModuleTimeout, "late"), true},
		{"never started", module.Errorf(module.CodeExecutionCancelled, "early").NotExecuted(), false},
		{"refused", module.Errorf(module.CodeACLDenied, "no"), false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			x := newDirect(t, examples.Options{})
			var late map[string]any
			released := false
			x.calls = func(_ context.Context, id string, in map[string]any) error {
				switch id {
				case "inventory.reserve":
					late = in
					return tt.fail
				case "inventory.release":
					released = true
				}
				return nil
			}
			_, err := x.Call(t.Context(), "orders.place", order("tea", 5))
			wantCode(t, err, module.CodeOf(tt.fail))
			if released != tt.release {
				t.Errorf("released = %v, want %v", released, tt.release)
			}
			if !released {
				return
			}
			// The reserve arrives after all.
			x.calls = nil
			_, err = x.Call(t.Context(), "inventory.reserve", late)
			wantCode(t, err, module.CodeInvalidInput)
			if got := available(t, x, "tea"); got != 1_000_000 {
				t.Errorf("tea = %d, want all of it", got)
			}
		})
	}
}

func TestOrderThatCannotReleaseSaysSo(t *testing.T) {
	x := newDirect(t, examples.Options{})
	x.calls = func(_ context.Context, id string, _ map[string]any) error {
		switch id {
		case "payments.charge":
			return module.Errorf(module.CodeBusNoResponders, "nobody")
		case "inventory.release":
			return module.Errorf(module.CodeBusNodeLost, "lost")
		}
		return nil
	}
	_, err := x.Call(t.Context(), "orders.place", order("tea", 1))
	e := module.AsError(err)
	if e == nil || e.Code != module.CodeBusNoResponders {
		t.Fatalf("err = %v", err)
	}
	if e.Details["release_error"] != "BUS_NODE_LOST" || !strings.HasPrefix(fmt.Sprint(e.Details["unreleased_reservation"]), "res_") {
		t.Errorf("details = %v", e.Details)
	}
}

func TestReserveIsAllOrNothing(t *testing.T) {
	x := newDirect(t, examples.Options{})
	mustCall(t, x, "inventory.reserve", obj("items", items("last_one", 1)))
	_, err := x.Call(t.Context(), "inventory.reserve", obj("items", items("tea", 1, "last_one", 1)))
	wantCode(t, err, "OUT_OF_STOCK")
	want := obj("sku", "last_one", "requested", int64(1), "available", int64(0))
	if d := cmp.Diff(want, module.AsError(err).Details); d != "" {
		t.Error(d)
	}
	if got := available(t, x, "tea"); got != 1_000_000 {
		t.Errorf("tea = %d, want all of it", got)
	}
	_, err = x.Call(t.Context(), "inventory.reserve", obj("items", items("mug", 600_000, "mug", 600_000)))
	wantCode(t, err, "OUT_OF_STOCK")
}

func TestReserveUnderAnID(t *testing.T) {
	x := newDirect(t, examples.Options{})
	in := obj("reservation_id", "r1", "items", items("tea", 2))
	first := mustCall(t, x, "inventory.reserve", in)
	if d := cmp.Diff(first, mustCall(t, x, "inventory.reserve", in)); d != "" {
		t.Errorf("reserving again: %s", d)
	}
	if got := available(t, x, "tea"); got != 999_998 {
		t.Errorf("tea = %d, want 999998", got)
	}
	_, err := x.Call(t.Context(), "inventory.reserve", obj("reservation_id", "r1", "items", items("tea", 3)))
	wantCode(t, err, module.CodeInvalidInput)
	for _, want := range []bool{true, false} {
		if got := mustCall(t, x, "inventory.release", obj("reservation_id", "r1"))["released"]; got != want {
			t.Errorf("released = %v, want %v", got, want)
		}
	}
	if got := available(t, x, "tea"); got != 1_000_000 {
		t.Errorf("tea = %d, want all of it", got)
	}
}

func TestStockLists(t *testing.T) {
	x := newDirect(t, examples.Options{})
	mustCall(t, x, "inventory.reserve", obj("items", items("anything", 1)))
	var got []string
	for _, it := range mustCall(t, x, "inventory.stock", nil)["items"].([]any) {
		got = append(got, it.(map[string]any)["sku"].(string))
	}
	if d := cmp.Diff([]string{"anything", "coffee", "last_one", "mug", "tea"}, got); d != "" {
		t.Error(d)
	}
}

// TestStockAddsUp reserves and releases from many goroutines.
func TestStockAddsUp(t *testing.T) {
	x := newDirect(t, examples.Options{})
	var wg sync.WaitGroup
	for i := range 64 {
		wg.Go(func() {
			out, err := x.Call(t.Context(), "inventory.reserve", obj("items", items("tea", 1+i)))
			if err == nil && i%2 == 0 {
				_, err = x.Call(t.Context(), "inventory.release", obj("reservation_id", out["reservation_id"]))
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	want := int64(1_000_000)
	for i := 1; i < 64; i += 2 {
		want -= int64(1 + i)
	}
	if got := available(t, x, "tea"); got != want {
		t.Errorf("tea = %d, want %d", got, want)
	}
}

// TestOldReservationsAreStockedUp shows that the shop never runs dry.
func TestOldReservationsAreStockedUp(t *testing.T) {
	x := newDirect(t, examples.Options{})
	mustCall(t, x, "inventory.reserve", obj("items", items("last_one", 1)))
	for range 10_000 {
		mustCall(t, x, "inventory.reserve", obj("items", items("tea", 1)))
	}
	if got := available(t, x, "last_one"); got != 1 {
		t.Errorf("last_one = %d, want 1", got)
	}
	if got := available(t, x, "tea"); got != 990_000 {
		t.Errorf("tea = %d, want 990000", got)
	}
}

func preview(t *testing.T, x *direct, id string, in map[string]any) ([]map[string]any, error) {
	t.Helper()
	in, err := module.NormalizeMap(in)
	if err != nil {
		t.Fatal(err)
	}
	p, err := x.mods[id].(module.Previewer).Preview(t.Context(), in)
	if err != nil {
		return nil, err
	}
	var out []map[string]any
	for _, c := range p.Changes {
		if err := c.Validate(); err != nil {
			t.Error(err)
		}
		out = append(out, c.Map())
	}
	return out, nil
}

func TestPreviews(t *testing.T) {
	x := newDirect(t, examples.Options{})
	charged := mustCall(t, x, "payments.charge", obj("order_id", "o1", "amount_cents", 1234, "card", card))["charge_id"].(string)
	for _, tt := range []struct {
		name, id string
		inputs   map[string]any
		want     []map[string]any
	}{
		{"reserve", "inventory.reserve", obj("items", items("tea", 2, "mug", 1, "tea", 1)), []map[string]any{
			obj("action", "reserve", "target", "inventory:mug", "summary", "Reserve 1 of 1000000 mug",
				"before", obj("available", int64(1_000_000)), "after", obj("available", int64(999_999))),
			obj("action", "reserve", "target", "inventory:tea", "summary", "Reserve 3 of 1000000 tea",
				"before", obj("available", int64(1_000_000)), "after", obj("available", int64(999_997))),
		}},
		{"a name of two lines", "inventory.reserve", obj("items", items("a\nb", 1)), []map[string]any{
			obj("action", "reserve", "target", "inventory:a\nb", "summary", "Reserve 1 of 1000000 a b",
				"before", obj("available", int64(1_000_000)), "after", obj("available", int64(999_999))),
		}},
		{"charge", "payments.charge", obj("order_id", "o1", "amount_cents", 1205, "card", card), []map[string]any{
			obj("action", "charge", "target", "order:o1", "summary", "Charge 12.05 for order o1",
				"after", obj("order_id", "o1", "amount_cents", int64(1205))),
		}},
		{"refund", "payments.refund", obj("charge_id", charged, "amount_cents", 234), []map[string]any{
			obj("action", "refund", "target", "charge:"+charged, "summary", "Give back 2.34 of 12.34 for order o1",
				"before", obj("refunded_cents", int64(0)), "after", obj("refunded_cents", int64(234))),
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for range 2 { // predicting changes nothing
				got, err := preview(t, x, tt.id, tt.inputs)
				if err != nil {
					t.Fatal(err)
				}
				if d := cmp.Diff(tt.want, got); d != "" {
					t.Error(d)
				}
			}
		})
	}
	_, err := preview(t, x, "inventory.reserve", obj("items", items("last_one", 2)))
	wantCode(t, err, "OUT_OF_STOCK")
	_, err = preview(t, x, "payments.refund", obj("charge_id", "ch_0"))
	wantCode(t, err, module.CodeInvalidInput)
}

func TestRefund(t *testing.T) {
	x := newDirect(t, examples.Options{})
	id := mustCall(t, x, "payments.charge", obj("order_id", "o1", "amount_cents", 1000, "card", card))["charge_id"]
	if got := mustCall(t, x, "payments.refund", obj("charge_id", id, "amount_cents", 400))["amount_cents"]; got != int64(400) {
		t.Errorf("refunded %v, want 400", got)
	}
	_, err := x.Call(t.Context(), "payments.refund", obj("charge_id", id, "amount_cents", 601))
	wantCode(t, err, module.CodeInvalidInput)
	if got := mustCall(t, x, "payments.refund", obj("charge_id", id))["amount_cents"]; got != int64(600) {
		t.Errorf("refunded %v, want the 600 that were left", got)
	}
	_, err = x.Call(t.Context(), "payments.refund", obj("charge_id", id))
	wantCode(t, err, module.CodeInvalidInput)
}

func TestChargesAreNotIdempotent(t *testing.T) {
	x := newDirect(t, examples.Options{})
	in := obj("order_id", "o1", "amount_cents", 1000, "card", card)
	if a, b := mustCall(t, x, "payments.charge", in), mustCall(t, x, "payments.charge", in); a["charge_id"] == b["charge_id"] {
		t.Errorf("two charges share the ID %v", a["charge_id"])
	}
}
