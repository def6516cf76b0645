package examples

import (
	"context"
	"crypto/rand"
	"fmt"
	"strings"
	"sync"

	"github.com/apbus/apbus/module"
)

type chargeIn struct {
	OrderID     string `json:"order_id" minLength:"1" maxLength:"128" description:"The order to pay for"`
	AmountCents int64  `json:"amount_cents" minimum:"1" description:"How much, in cents"`
	Card        string `json:"card" minLength:"1" maxLength:"64" sensitive:"true" description:"The card number; one that ends in 0002 is declined"`
}

type chargeOut struct {
	ChargeID string `json:"charge_id" description:"What to refund the charge by"`
}

type refundIn struct {
	ChargeID    string `json:"charge_id" minLength:"1" maxLength:"128" description:"The charge to give back"`
	AmountCents *int64 `json:"amount_cents,omitempty" minimum:"1" description:"How much, in cents; what is left of the charge when absent"`
	Reason      string `json:"reason,omitempty" maxLength:"1024" description:"Why, for the person who approves it"`
}

type refundOut struct {
	RefundID    string `json:"refund_id"`
	AmountCents int64  `json:"amount_cents" minimum:"1" description:"How much was given back, in cents"`
}

// codeDeclined is the payment module's own error code.
const codeDeclined module.Code = "PAYMENT_DECLINED"

func paymentsModules(l *ledger) []module.Module {
	return []module.Module{
		module.New("payments.charge", "Charge a card",
			func(_ context.Context, in chargeIn) (chargeOut, error) { return l.charge(in) },
			module.WithName("Charge"),
			module.WithDocumentation("Charging twice takes the money twice. No money moves: this is an example. The card is neither kept nor logged."),
			module.WithTags("shop", "payments"),
			module.WithAnnotations(module.Annotations{Destructive: true}),
			module.WithPreview(previewCharge),
			module.WithExamples(module.Example{
				Title:  "Nine euros",
				Inputs: map[string]any{"order_id": "ord_1", "amount_cents": int64(900), "card": "4111111111111111"},
			}),
		),
		module.New("payments.refund", "Give a charge back",
			func(_ context.Context, in refundIn) (refundOut, error) { return l.refund(in) },
			module.WithName("Refund"),
			module.WithDocumentation("Gives back all or a part of a charge, never more than was charged. A person approves it first."),
			module.WithTags("shop", "payments"),
			module.WithAnnotations(module.Annotations{Destructive: true, RequiresApproval: true}),
			module.WithPreview(func(_ context.Context, in refundIn) (*module.PreviewResult, error) { return l.previewRefund(in) }),
			module.WithExamples(module.Example{
				Title:  "A part of a charge",
				Inputs: map[string]any{"charge_id": "ch_1", "amount_cents": int64(450), "reason": "one packet was damaged"},
			}),
		),
	}
}

// chargesKept bounds the charges that can be refunded.
const chargesKept = 10_000

// ledger remembers charges, without the cards.
type ledger struct {
	mu      sync.Mutex
	charges recent[charge]
}

type charge struct {
	orderID                    string
	amountCents, refundedCents int64
}

func newLedger() *ledger { return &ledger{charges: newRecent[charge](chargesKept)} }

func (l *ledger) charge(in chargeIn) (chargeOut, error) {
	if strings.HasSuffix(in.Card, "0002") {
		e := module.Errorf(codeDeclined, "the card was declined").
			WithDetail("order_id", in.OrderID).WithRetryable(module.False)
		e.UserFixable = module.True
		return chargeOut{}, e
	}
	id := "ch_" + rand.Text()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.charges.put(id, charge{orderID: in.OrderID, amountCents: in.AmountCents})
	return chargeOut{ChargeID: id}, nil
}

func previewCharge(_ context.Context, in chargeIn) (*module.PreviewResult, error) {
	return &module.PreviewResult{Changes: []module.Change{{
		Action: "charge", Target: "order:" + in.OrderID,
		Summary: fmt.Sprintf("Charge %s for order %s", money(in.AmountCents), oneLine(in.OrderID)),
		After:   module.Known(map[string]any{"order_id": in.OrderID, "amount_cents": in.AmountCents}),
	}}}, nil
}

func (l *ledger) refund(in refundIn) (refundOut, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c, amount, err := l.refundableLocked(in)
	if err != nil {
		return refundOut{}, err
	}
	c.refundedCents += amount
	l.charges.put(in.ChargeID, c)
	return refundOut{RefundID: "re_" + rand.Text(), AmountCents: amount}, nil
}

func (l *ledger) previewRefund(in refundIn) (*module.PreviewResult, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c, amount, err := l.refundableLocked(in)
	if err != nil {
		return nil, err
	}
	return &module.PreviewResult{Changes: []module.Change{{
		Action: "refund", Target: "charge:" + in.ChargeID,
		Summary: fmt.Sprintf("Give back %s of %s for order %s", money(amount), money(c.amountCents), oneLine(c.orderID)),
		Before:  module.Known(map[string]any{"refunded_cents": c.refundedCents}),
		After:   module.Known(map[string]any{"refunded_cents": c.refundedCents + amount}),
	}}}, nil
}

// refundableLocked returns the charge and how much of it a refund would give back.
func (l *ledger) refundableLocked(in refundIn) (charge, int64, error) {
	c, known := l.charges.values[in.ChargeID]
	if !known {
		return charge{}, 0, module.Errorf(module.CodeInvalidInput, "no such charge").WithDetail("charge_id", in.ChargeID)
	}
	left := c.amountCents - c.refundedCents
	amount := left
	if in.AmountCents != nil {
		amount = *in.AmountCents
	}
	if amount > left || left == 0 {
		return charge{}, 0, module.Errorf(module.CodeInvalidInput, "more than what is left of the charge").
			WithDetails(map[string]any{"charge_id": in.ChargeID, "left_cents": left})
	}
	return c, amount, nil
}

func money(cents int64) string { return fmt.Sprintf("%d.%02d", cents/100, cents%100) }

// oneLine makes a caller's text fit for the summary of a change.
func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }
