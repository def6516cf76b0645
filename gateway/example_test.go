package gateway_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/gateway"
)

// A gateway over functions; a router hands in the bus client instead.
func ExampleNew() {
	g, err := gateway.New(gateway.Options{
		Invoker: gateway.InvokerFuncs{InvokeFunc: func(_ context.Context, req *contextwire.Request) (*contextwire.Reply, error) {
			a, _ := req.Inputs["a"].(int64)
			b, _ := req.Inputs["b"].(int64)
			return &contextwire.Reply{Output: map[string]any{"sum": a + b}}, nil
		}},
		Catalog:   gateway.CatalogFunc(func() []gateway.Module { return nil }),
		Fleet:     gateway.FleetFuncs{},
		Calls:     gateway.CallsFuncs{},
		Readiness: gateway.ReadyFunc(func(context.Context) error { return nil }),
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	srv := httptest.NewServer(g)
	defer g.Close(context.Background())
	defer srv.Close()

	res, err := http.Post(srv.URL+"/v1/modules/math.add/call", "application/json", strings.NewReader(`{"a":1,"b":2}`))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	fmt.Println(res.StatusCode, string(body), err)
	// Output: 200 {"sum":3} <nil>
}
