package examples

import (
	"context"
	"crypto/rand"
	"time"

	"github.com/apbus/apbus/cancel"
	"github.com/apbus/apbus/module"
)

type placeIn struct {
	Customer string `json:"customer" minLength:"1" maxLength:"256" description:"Who orders"`
	Items    []item `json:"items" minItems:"1" maxItems:"100" description:"What is ordered"`
	Card     string `json:"card" minLength:"1" maxLength:"64" sensitive:"true" description:"The card to charge; one that ends in 0002 is declined"`
}

type placeOut struct {
	OrderID       string `json:"order_id"`
	TotalCents    int64  `json:"total_cents" minimum:"0" description:"What was charged, in cents"`
	ReservationID string `json:"reservation_id"`
	ChargeID      string `json:"charge_id"`
}

func ordersPlace() module.Module {
	return module.New("orders.place", "Place an order: reserve the stock, then charge the card", place,
		module.WithName("Place an order"),
		module.WithDocumentation("Calls inventory.reserve, then payments.charge. When the charge fails, or the order is cancelled meanwhile, the reservation is released."),
		module.WithTags("shop", "orders"),
		module.WithExamples(module.Example{
			Title: "Tea and a mug",
			Inputs: map[string]any{
				"customer": "ana", "card": "4111111111111111",
				"items": []any{
					map[string]any{"sku": "tea", "qty": int64(2)},
					map[string]any{"sku": "mug", "qty": int64(1)},
				},
			},
		}),
	)
}

func place(ctx context.Context, in placeIn) (placeOut, error) {
	order := placeOut{OrderID: "ord_" + rand.Text(), ReservationID: "res_" + rand.Text()}
	reserved, err := module.CallAs[reserveOut](ctx, "inventory.reserve",
		reserveIn{OrderID: order.OrderID, Items: in.Items, ReservationID: order.ReservationID})
	if err != nil {
		if outcomeUnknown(err) {
			err = release(ctx, order.ReservationID, err)
		}
		return placeOut{}, err
	}
	order.TotalCents = reserved.TotalCents
	charged, err := module.CallAs[chargeOut](ctx, "payments.charge",
		chargeIn{OrderID: order.OrderID, AmountCents: order.TotalCents, Card: in.Card})
	if err != nil {
		return placeOut{}, release(ctx, order.ReservationID, err)
	}
	order.ChargeID = charged.ChargeID
	return order, nil
}

// outcomeUnknown reports whether the failed call may have had its effect.
func outcomeUnknown(err error) bool {
	e := module.AsError(err)
	if e == nil {
		return true
	}
	if e.Unexecuted {
		return false
	}
	switch e.Code {
	case module.CodeExecutionCancelled, module.CodeModuleTimeout, module.CodeBusNodeLost:
		return true
	}
	return false
}

// releaseTimeout limits the work that is left when an order has failed.
const releaseTimeout = 5 * time.Second

// release gives the reservation back although the order may be cancelled or out
// of time, and returns why the order failed.
func release(ctx context.Context, reservation string, failed error) error {
	undo, stop, err := detach(ctx, releaseTimeout)
	if err == nil {
		defer stop()
		_, err = module.Call(undo, "inventory.release", releaseIn{ReservationID: reservation})
	}
	if err == nil {
		return failed
	}
	coded := module.AsError(failed)
	if coded == nil {
		coded = module.Errorf(module.CodeModuleExecuteError, "the order failed: %w", failed)
	}
	return coded.WithDetail("unreleased_reservation", reservation).
		WithDetail("release_error", string(module.CodeOf(err)))
}

// detach returns a context for work that must be done after the call of ctx has
// ended: same trace, identity and chain, but neither its token nor its time.
func detach(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc, error) {
	c := module.FromContext(ctx)
	if c == nil {
		return nil, nil, module.Errorf(module.CodeContextBindingError, "detached work outside a call")
	}
	d := module.RestoreContext(module.ContextWire{
		TraceID: c.TraceID(), CallerID: c.CallerID(), CallChain: c.CallChain(),
		Identity: c.Identity(), Data: c.Data().Public(),
	})
	if err := d.BindExecutor(c.Executor()); err != nil {
		return nil, nil, err
	}
	out, stop := context.WithTimeoutCause(module.WithContext(context.WithoutCancel(ctx), d), limit,
		cancel.Because(cancel.Timeout, "orders.place", "time for the release is over"))
	return out, stop, nil
}
