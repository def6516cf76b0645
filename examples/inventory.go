package examples

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/apbus/apbus/module"
)

type item struct {
	SKU string `json:"sku" minLength:"1" maxLength:"64" description:"What to take"`
	Qty int64  `json:"qty" minimum:"1" maximum:"1000000" description:"How many"`
}

type reserveIn struct {
	OrderID       string `json:"order_id,omitempty" maxLength:"128" description:"The order that the stock is for"`
	Items         []item `json:"items" minItems:"1" maxItems:"100" description:"What to reserve, all or nothing"`
	ReservationID string `json:"reservation_id,omitempty" maxLength:"128" description:"The ID to reserve under, so that a caller that never got the answer can still release it; made up when absent"`
}

type reserveOut struct {
	ReservationID string `json:"reservation_id" description:"What to release the stock by"`
	TotalCents    int64  `json:"total_cents" minimum:"0" description:"The price of everything, in cents"`
}

type releaseIn struct {
	ReservationID string `json:"reservation_id" minLength:"1" maxLength:"128" description:"The reservation to give back"`
}

type releaseOut struct {
	Released bool `json:"released" description:"False when there was nothing to give back any more"`
}

type stockIn struct {
	SKU string `json:"sku,omitempty" maxLength:"64" description:"One article only"`
}

type stockOut struct {
	Items []stockItem `json:"items" description:"The articles, sorted by SKU"`
}

type stockItem struct {
	SKU        string `json:"sku"`
	Available  int64  `json:"available" minimum:"0" description:"How many are not reserved"`
	PriceCents int64  `json:"price_cents" minimum:"0" description:"The price of one, in cents"`
}

// codeOutOfStock is the inventory's own error code.
const codeOutOfStock module.Code = "OUT_OF_STOCK"

func inventoryModules(inv *inventory) []module.Module {
	return []module.Module{
		module.New("inventory.reserve", "Reserve stock for an order",
			func(_ context.Context, in reserveIn) (reserveOut, error) { return inv.reserve(in) },
			module.WithName("Reserve stock"),
			module.WithDocumentation("Reserves all items or none. The shop stocks a million of any article at 10.00, some at other prices, and one single last_one."),
			module.WithTags("shop", "inventory"),
			module.WithAnnotations(module.Annotations{ClosedWorld: true}),
			module.WithPreview(func(_ context.Context, in reserveIn) (*module.PreviewResult, error) { return inv.preview(in) }),
			module.WithExamples(module.Example{
				Title:  "Two packets of tea",
				Inputs: map[string]any{"order_id": "ord_1", "reservation_id": "res_1", "items": []any{map[string]any{"sku": "tea", "qty": int64(2)}}},
				Output: map[string]any{"reservation_id": "res_1", "total_cents": int64(900)},
			}),
		),
		module.New("inventory.release", "Give reserved stock back",
			func(_ context.Context, in releaseIn) (releaseOut, error) { return inv.release(in), nil },
			module.WithName("Release stock"),
			module.WithDocumentation("Releasing again, or what was never reserved, changes nothing; a reservation that arrives after its release is refused."),
			module.WithTags("shop", "inventory"),
			module.WithAnnotations(module.Annotations{Idempotent: true, ClosedWorld: true}),
			module.WithExamples(module.Example{
				Title:  "Nothing to give back",
				Inputs: map[string]any{"reservation_id": "res_0"},
				Output: map[string]any{"released": false},
			}),
		),
		module.New("inventory.stock", "Show the stock",
			func(_ context.Context, in stockIn) (stockOut, error) { return inv.stock(in.SKU), nil },
			module.WithName("Stock"),
			module.WithDocumentation("Lists the articles with a price of their own and those with reservations, or the one asked for."),
			module.WithTags("shop", "inventory"),
			module.WithAnnotations(module.Annotations{Readonly: true, Idempotent: true, ClosedWorld: true}),
			module.WithExamples(module.Example{
				Title:  "One article",
				Inputs: map[string]any{"sku": "last_one"},
				Output: map[string]any{"items": []any{map[string]any{"sku": "last_one", "available": int64(1), "price_cents": int64(9900)}}},
			}),
		),
	}
}

// reservationsKept bounds the reservations that can be released. What an older
// one took counts as delivered and stocked up again.
const reservationsKept = 10_000

// inventory is the stock of the shop, in memory.
type inventory struct {
	mu           sync.Mutex
	taken        map[string]int64 // by SKU, never zero
	reservations recent[reservation]
}

// reservation is what is held under one ID; items is nil once released.
type reservation struct {
	items      map[string]int64
	totalCents int64
}

func newInventory() *inventory {
	return &inventory{taken: map[string]int64{}, reservations: newRecent[reservation](reservationsKept)}
}

// article returns how many of a SKU the shop has when nothing is reserved, and
// the price of one.
func article(sku string) (stocked, priceCents int64) {
	switch sku {
	case "tea":
		return 1_000_000, 450
	case "coffee":
		return 1_000_000, 900
	case "mug":
		return 1_000_000, 1250
	case "last_one":
		return 1, 9900
	}
	return 1_000_000, 1000
}

// pricedSKUs are the articles that stock lists even when nothing is reserved.
func pricedSKUs() []string { return []string{"coffee", "last_one", "mug", "tea"} }

// sum merges lines of the same SKU and adds up the price.
func sum(items []item) reservation {
	r := reservation{items: map[string]int64{}}
	for _, it := range items {
		_, price := article(it.SKU)
		r.items[it.SKU] += it.Qty
		r.totalCents += it.Qty * price
	}
	return r
}

func (inv *inventory) availableLocked(sku string) int64 {
	stocked, _ := article(sku)
	return stocked - inv.taken[sku]
}

func (inv *inventory) enoughLocked(want map[string]int64) error {
	for _, sku := range slices.Sorted(maps.Keys(want)) {
		if left := inv.availableLocked(sku); want[sku] > left {
			e := module.Errorf(codeOutOfStock, "not enough in stock: %d asked for, %d left", want[sku], left).
				WithDetails(map[string]any{"sku": sku, "requested": want[sku], "available": left}).
				WithRetryable(module.False)
			e.UserFixable = module.True
			return e
		}
	}
	return nil
}

func (inv *inventory) reserve(in reserveIn) (reserveOut, error) {
	id := in.ReservationID
	if id == "" {
		id = "res_" + rand.Text()
	}
	want := sum(in.Items)
	inv.mu.Lock()
	defer inv.mu.Unlock()
	if held, known := inv.reservations.values[id]; known {
		switch {
		case held.items == nil:
			return reserveOut{}, module.Errorf(module.CodeInvalidInput, "the reservation was released already")
		case !maps.Equal(held.items, want.items):
			return reserveOut{}, module.Errorf(module.CodeInvalidInput, "the reservation ID is taken by other items")
		}
		return reserveOut{ReservationID: id, TotalCents: held.totalCents}, nil
	}
	if err := inv.enoughLocked(want.items); err != nil {
		return reserveOut{}, err
	}
	for sku, qty := range want.items {
		inv.taken[sku] += qty
	}
	inv.keepLocked(id, want)
	return reserveOut{ReservationID: id, TotalCents: want.totalCents}, nil
}

// keepLocked stores r and stocks up what the reservation it pushes out took.
func (inv *inventory) keepLocked(id string, r reservation) {
	if old, forgot := inv.reservations.put(id, r); forgot {
		inv.giveBackLocked(old.items)
	}
}

func (inv *inventory) giveBackLocked(items map[string]int64) {
	for sku, qty := range items {
		if inv.taken[sku] -= qty; inv.taken[sku] == 0 {
			delete(inv.taken, sku)
		}
	}
}

func (inv *inventory) release(in releaseIn) releaseOut {
	inv.mu.Lock()
	defer inv.mu.Unlock()
	held := inv.reservations.values[in.ReservationID]
	inv.giveBackLocked(held.items)
	// The empty reservation stays, so that a reserve that was overtaken by its
	// release holds nothing.
	inv.keepLocked(in.ReservationID, reservation{})
	return releaseOut{Released: held.items != nil}
}

func (inv *inventory) stock(only string) stockOut {
	inv.mu.Lock()
	defer inv.mu.Unlock()
	skus := []string{only}
	if only == "" {
		skus = slices.AppendSeq(pricedSKUs(), maps.Keys(inv.taken))
		slices.Sort(skus)
		skus = slices.Compact(skus)
	}
	var out stockOut
	for _, sku := range skus {
		_, price := article(sku)
		out.Items = append(out.Items, stockItem{SKU: sku, Available: inv.availableLocked(sku), PriceCents: price})
	}
	return out
}

// preview predicts the change of stock for each article.
func (inv *inventory) preview(in reserveIn) (*module.PreviewResult, error) {
	want := sum(in.Items).items
	inv.mu.Lock()
	defer inv.mu.Unlock()
	if err := inv.enoughLocked(want); err != nil {
		return nil, err
	}
	var out module.PreviewResult
	for sku, qty := range want {
		left := inv.availableLocked(sku)
		out.Changes = append(out.Changes, module.Change{
			Action: "reserve", Target: "inventory:" + sku,
			Summary: fmt.Sprintf("Reserve %d of %d %s", qty, left, oneLine(sku)),
			Before:  module.Known(map[string]any{"available": left}),
			After:   module.Known(map[string]any{"available": left - qty}),
		})
	}
	slices.SortFunc(out.Changes, func(a, b module.Change) int { return cmp.Compare(a.Target, b.Target) })
	return &out, nil
}
