package integration_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
)

const (
	// The card that the modules' own examples show stands in the catalogue; these do not.
	card         = "4929123456781234"
	declinedCard = "4000123412340002"
	exampleCard  = "4111111111111111"
	order        = `{"customer":"c1","items":[{"sku":"tea","qty":2}],"card":"` + card + `"}`
)

// placed checks the answer to an order of two packets of tea.
func placed(t *testing.T, who string, raw string) {
	t.Helper()
	var out map[string]any
	if err := json.Unmarshal([]byte(raw), &out); err != nil {
		t.Fatalf("%s: %v: %s", who, err, raw)
	}
	if len(out) != 4 || out["total_cents"] != 900.0 {
		t.Errorf("%s: %v, want four keys and 900 cents", who, out)
	}
	for key, prefix := range map[string]string{"order_id": "ord_", "reservation_id": "res_", "charge_id": "ch_"} {
		if id, _ := out[key].(string); !strings.HasPrefix(id, prefix) {
			t.Errorf("%s: %s = %v, want %s…", who, key, out[key], prefix)
		}
	}
}

// TestOrderCrossesTheNodes places orders by every way there is, good and bad
// ones. Afterwards the card stands in no log of any process and in no answer.
func TestOrderCrossesTheNodes(t *testing.T) {
	t.Parallel()
	s, n1, n2 := startPair(t)
	stock := func() any {
		t.Helper()
		return list(s.call("inventory.stock", `{"sku":"tea"}`).doc, "items")[0]["available"]
	}
	before, _ := stock().(float64)

	// Orders that go through.
	out, _ := s.cli("call", "orders.place", "--input", strings.Replace(order, card, exampleCard, 1))
	placed(t, "CLI", out)
	out, _ = s.cli("call", "orders.place", "customer=c1", "card="+card, `items=[{"sku":"tea","qty":2}]`)
	placed(t, "CLI with key=value", out)
	out, _ = s.cli("--nats", s.nats, "call", "orders.place", "--input", order)
	placed(t, "CLI on the bus", out)
	a := s.call("orders.place", order)
	placed(t, "HTTP", a.raw)
	if got := a.header.Get("Apbus-Node"); got != "n1."+n1.boot {
		t.Errorf("the order ran on %q, want n1", got)
	}
	m, err := s.request("apbus.v1.call.default._.orders.place", nil, []byte(order))
	if err != nil {
		t.Fatal(err)
	}
	placed(t, "bare request", string(m.Data))
	call := s.detach("orders.place", order)
	eventually(t, requestLimit, "the detached order is over", func() bool { return s.get("/v1/calls/" + call).doc["state"] == "finished" })
	placed(t, "detached", string(mustJSON(t, s.get("/v1/calls/" + call).doc["output"])))
	// Twelve packets on the other node, so each order crossed.
	if got := stock(); got != before-12 {
		t.Errorf("stock = %v, want %v", got, before-12)
	}

	// A declined card gives the reservation back.
	a = s.call("orders.place", strings.Replace(order, card, declinedCard, 1))
	if a.code() != "PAYMENT_DECLINED" || a.status < 400 {
		t.Errorf("declined order: %v", a)
	}
	if got := stock(); got != before-12 {
		t.Errorf("stock = %v after a declined order, want %v", got, before-12)
	}
	out, p := s.cli("call", "orders.place", "customer=c1", "card="+declinedCard, `items=[{"sku":"tea","qty":2}]`)
	if p.exit(0) != 1 || out != "" || !strings.Contains(p.log(), "PAYMENT_DECLINED") {
		t.Errorf("declined order by CLI: exit %d\n%s", p.exit(0), p.log())
	}

	// Inputs that are wrong around the card, or the card in the wrong place.
	for _, tt := range []struct{ name, module, body, code string }{
		{"empty customer", "orders.place", `{"customer":"","items":[{"sku":"tea","qty":2}],"card":"` + card + `"}`, "SCHEMA_VALIDATION_ERROR"},
		{"no items", "orders.place", `{"customer":"c1","items":[],"card":"` + card + `"}`, "SCHEMA_VALIDATION_ERROR"},
		{"the card in a list", "orders.place", `{"customer":"c1","items":[{"sku":"tea","qty":2}],"card":["` + card + `"]}`, "SCHEMA_VALIDATION_ERROR"},
		{"the card as a number", "orders.place", `{"customer":"c1","items":[{"sku":"tea","qty":2}],"card":` + card + `}`, "SCHEMA_VALIDATION_ERROR"},
		{"the card too often", "orders.place", `{"customer":"c1","items":[{"sku":"tea","qty":2}],"card":"` + strings.Repeat(card, 5) + `"}`, "SCHEMA_VALIDATION_ERROR"},
		{"the card as items", "orders.place", `{"customer":"c1","items":"` + card + `","card":"` + card + `"}`, "SCHEMA_VALIDATION_ERROR"},
		{"an amount of nothing", "payments.charge", `{"order_id":"o1","amount_cents":0,"card":"` + card + `"}`, "SCHEMA_VALIDATION_ERROR"},
		{"truncated", "orders.place", `{"customer":"c1","card":"` + card, "BUS_BAD_MESSAGE"},
		{"garbage behind it", "orders.place", order + card, "BUS_BAD_MESSAGE"},
		{"twice", "orders.place", `{"card":"` + card + `","card":"` + card + `"}`, "BUS_BAD_MESSAGE"},
		{"not an object", "orders.place", `["` + card + `"]`, ""},
		{"unknown module", "orders.placed", order, "MODULE_NOT_FOUND"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := s.in(t)
			a := s.call(tt.module, tt.body)
			if a.status < 400 || (tt.code != "" && a.code() != tt.code) {
				t.Errorf("HTTP: %v, want %s", a, tt.code)
			}
			s.do(http.MethodPost, "/v1/modules/"+tt.module+"/check", tt.body)
			s.cli("call", tt.module, "--input", tt.body)
			if tt.code == "MODULE_NOT_FOUND" {
				return
			}
			m, err := s.request("apbus.v1.call.default._."+tt.module, nil, []byte(tt.body))
			if err != nil {
				t.Fatal(err)
			}
			if m.Header.Get("Nats-Service-Error-Code") == "" {
				t.Errorf("bare request: %v %s, want an error", m.Header, m.Data)
			}
		})
	}
	s.do(http.MethodPost, "/v1/modules/payments.charge/check", `{"order_id":"o1","amount_cents":5,"card":"`+card+`"}`)
	s.cli("check", "orders.place", "--input", order)
	s.cli("--json", "check", "payments.charge", "order_id=o1", "amount_cents=5", "card="+card)

	// An order that is out of time before it is paid.
	s.call("orders.place", order, "Apbus-Timeout: 1ns")

	for who, text := range map[string]string{
		"router": s.router.log(), "n1": n1.log(), "n2": n2.log(), "an answer": s.everythingSaid(),
	} {
		for _, secret := range []string{card, declinedCard} {
			if i := strings.Index(text, secret); i >= 0 {
				t.Errorf("%s holds a card number: …%s…", who, text[max(0, i-200):min(len(text), i+40)])
			}
		}
	}
	for _, p := range []*process{s.router, n1.process, n2.process} {
		if strings.Contains(p.log(), exampleCard) {
			t.Errorf("the log of %s holds a card number", p.name)
		}
	}
	if n1.log() == "" || s.everythingSaid() == "" {
		t.Error("nothing was written, so nothing was tested")
	}
}

func mustJSON(t *testing.T, v any) []byte {
	t.Helper()
	raw, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// TestCancelledOrderIsUndone cancels an order while the node that charges is
// frozen: the reservation must not stay.
func TestCancelledOrderIsUndone(t *testing.T) {
	t.Parallel()
	s := startSystem(t)
	nodes := s.startNodes([]string{"n1", "orders"}, []string{"n2", "inventory"}, []string{"n3", "payments"})
	stock := func() any {
		t.Helper()
		return list(s.call("inventory.stock", `{"sku":"tea"}`).doc, "items")[0]["available"]
	}
	before, _ := stock().(float64)
	nodes[2].freeze()
	call := s.detach("orders.place", order)
	eventually(t, startLimit, "the tea is reserved", func() bool { return stock() == before-2 })
	if a := s.do(http.MethodDelete, "/v1/calls/"+call, ""); a.status != http.StatusAccepted {
		t.Errorf("cancel: %v", a)
	}
	eventually(t, 5*time.Second+slack, "the reservation is released", func() bool { return stock() == before })
	nodes[2].thaw()
	for _, n := range nodes {
		s.waitIdle(5*time.Second+slack, n)
	}
	ctx, stop := context.WithTimeout(t.Context(), time.Second)
	defer stop()
	// Whatever the frozen node still had in its buffers must not charge now.
	if m, err := s.peer().RequestMsgWithContext(ctx, nats.NewMsg(nodes[2].subject("stats"))); err != nil {
		t.Fatal(err)
	} else if s := fmt.Sprint(string(m.Data)); !strings.Contains(s, `"in_flight":0`) {
		t.Errorf("the thawed node: %s", s)
	}
}
