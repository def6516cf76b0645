package integration_test

import (
	"strings"
	"testing"
	"time"
)

// What happens on the nodes is evidence that the router shows: successes, failures,
// what is nested, what no node saw; never a sensitive value.
func TestEvidenceOfTheFleet(t *testing.T) {
	t.Parallel()
	s, n1, n2 := startPair(t)
	const card = "4111-1111-2222-3333"
	for _, call := range []struct{ id, body string }{
		{"math.add", `{"a":1,"b":2}`},
		{"demo.fail", `{"code":"PAY_NO","message":"declined"}`},
		{"math.add", `{"a":"x"}`},
		{"no.such", `{}`},
		{"orders.place", `{"customer":"ana","items":[{"sku":"apple","qty":1}],"card":"` + card + `"}`},
	} {
		s.do("POST", "/v1/modules/"+call.id+"/call", call.body)
	}
	s.do("POST", "/v1/tasks", `{"module_id":"math.add","inputs":{"a":1,"b":3}}`)
	want := map[string]bool{
		"task math.add ok router": false,
		"call math.add ok":        false, "call math.add error SCHEMA_VALIDATION_ERROR": false, "call demo.fail error PAY_NO": false,
		"call no.such error MODULE_NOT_FOUND router": false, "call inventory.reserve": false, "call orders.place": false,
	}
	var raw string
	eventually(t, 20*time.Second, "the router shows what happened", func() bool {
		a := s.get("/v1/evidence?limit=1000")
		raw = a.raw
		for _, e := range list(a.doc, "evidence") {
			line := strings.Join(strings.Fields(strings.Join([]string{str(e["type"]), str(e["module_id"]), str(e["outcome"]), str(e["code"]), str(e["node"])}, " ")), " ")
			for prefix := range want {
				if strings.HasPrefix(line, prefix) {
					want[prefix] = true
				}
			}
			if node := str(e["node"]); (node == n1.id && e["boot"] != n1.boot) || (node == n2.id && e["boot"] != n2.boot) {
				t.Errorf("%s is of boot %v", line, e["boot"])
			}
		}
		for _, seen := range want {
			if !seen {
				return false
			}
		}
		return true
	})
	if strings.Contains(raw, card) {
		t.Errorf("the card is in the evidence: %s", raw)
	}
}

func str(v any) string { s, _ := v.(string); return s }
