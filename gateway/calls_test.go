package gateway_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/apbus/apbus/cancel"
	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/gateway"
	"github.com/apbus/apbus/module"
)

var (
	noon = time.Date(2026, 3, 1, 12, 0, 0, 250_000_000, time.FixedZone("", 3600))

	rootCall = contextwire.CallRecord{
		Call: "rootrootrootroot", Attempt: 1, Root: "rootrootrootroot", ModuleID: "orders.place", Node: "n1", Boot: "b1",
		TraceID: "0af7651916cd43dd8448eb211c80319c", Mode: contextwire.ModeUnary, StartedAt: noon, State: "running",
	}
	nestedCall = contextwire.CallRecord{
		Call: "childchildchildc", Attempt: 2, Root: "rootrootrootroot", Parent: "rootrootrootroot", ModuleID: "payments.charge",
		Node: "n2", Boot: "b7", CallerID: "orders.place", IdentityID: "ana", TraceID: "0af7651916cd43dd8448eb211c80319c",
		Mode: contextwire.ModeStream, StartedAt: noon.Add(time.Second), BudgetMS: 4500, State: "cancelling",
	}
)

func knowing(records ...contextwire.CallRecord) func(*gateway.Options) {
	return func(o *gateway.Options) {
		o.Calls = gateway.CallsFuncs{CallsFunc: func(context.Context) ([]contextwire.CallRecord, error) { return records, nil }}
	}
}

func TestListCalls(t *testing.T) {
	res := record(newGateway(t, knowing(rootCall, nestedCall)), "GET", "/v1/calls", "")
	if res.status != 200 {
		t.Fatalf("got %d %s", res.status, res.body)
	}
	golden(t, "calls", res.body)
	if res := record(newGateway(t), "GET", "/v1/calls", ""); res.body != `{"calls":[]}` {
		t.Errorf("without calls: %s", res.body)
	}
}

func TestCallStates(t *testing.T) {
	for state, want := range map[string]string{
		"running": "running", "queued": "running", "": "running", "cancelling": "cancelling", "abandoned": "cancelling",
	} {
		c := rootCall
		c.State, c.Mode, c.Attempt = state, "", 0
		m := record(newGateway(t, knowing(c)), "GET", "/v1/calls/"+c.Call, "").fields(t)
		if m["state"] != want || m["mode"] != "unary" || m["attempt"] != int64(1) {
			t.Errorf("%q: %v", state, m)
		}
	}
}

func TestShowCall(t *testing.T) {
	g := newGateway(t, knowing(rootCall, nestedCall))
	res := record(g, "GET", "/v1/calls/"+nestedCall.Call, "")
	if res.status != 200 {
		t.Fatalf("got %d %s", res.status, res.body)
	}
	golden(t, "call_in_flight", res.body)
	for _, id := range []string{"0123456789abcdef", "short", "with%20blank.........", strings.Repeat("x", 65)} {
		record(g, "GET", "/v1/calls/"+id, "").wantFault(t, 404, gateway.CodeNotFound)
	}
}

// While no node has the call, the gateway that makes it still knows it.
func TestShowCallThatNoNodeHas(t *testing.T) {
	for name, err := range map[string]error{"none has it": nil, "none answers": module.Errorf(module.CodeBusDisconnected, "off")} {
		t.Run(name, func(t *testing.T) {
			started, release := make(chan string), make(chan struct{})
			g := newGateway(t, withInvoker(invoke(func(_ context.Context, req *contextwire.Request) (*contextwire.Reply, error) {
				started <- req.CallID
				<-release
				return &contextwire.Reply{}, nil
			})), func(o *gateway.Options) {
				o.Calls = gateway.CallsFuncs{CallsFunc: func(context.Context) ([]contextwire.CallRecord, error) { return nil, err }}
				o.Auth = grants{module.NewIdentity("ana", "", nil, nil), gateway.Scopes()}
			})
			done := make(chan struct{})
			go func() {
				defer close(done)
				record(g, "POST", callURL, "{}")
			}()
			id := <-started
			m := record(g, "GET", "/v1/calls/"+id, "").fields(t)
			if m["state"] != "running" || m["module_id"] != "math.add" || m["node"] != nil || m["identity_id"] != "ana" {
				t.Errorf("got %v", m)
			}
			close(release)
			<-done
			status := record(g, "GET", "/v1/calls/"+id, "").status
			if want := map[bool]int{true: 404, false: 503}[err == nil]; status != want {
				t.Errorf("afterwards %d, want %d", status, want)
			}
		})
	}
}

func TestListCallsFails(t *testing.T) {
	g := newGateway(t, func(o *gateway.Options) {
		o.Calls = gateway.CallsFuncs{CallsFunc: func(context.Context) ([]contextwire.CallRecord, error) {
			return nil, module.Errorf(module.CodeBusDisconnected, "off")
		}}
	})
	record(g, "GET", "/v1/calls", "").wantFault(t, 503, module.CodeBusDisconnected)
}

// asked is what a Calls port was asked to cancel.
type asked struct {
	Sel        cancel.Selector
	Reason, By string
}

func TestCancel(t *testing.T) {
	const id, trace = "0123456789abcdef", "0af7651916cd43dd8448eb211c80319c"
	found := gateway.CancelResult{Nodes: []string{"n1", "n2"}, Calls: []string{id}, State: gateway.StateCancelling}
	tests := []struct {
		name   string
		path   string
		result gateway.CancelResult
		err    error
		asked  *asked // nil: nobody is asked
		status int
		code   module.Code
		body   string
	}{
		{
			name: "call", path: "/v1/calls/" + id, result: found, asked: &asked{Sel: cancel.Selector{Call: id}, By: "ana"},
			status: 202, body: `{"calls":["` + id + `"],"nodes":["n1","n2"],"state":"cancelling"}`,
		},
		{
			name: "with a reason", path: "/v1/calls/" + id + "?reason=too+slow", result: found,
			asked: &asked{Sel: cancel.Selector{Call: id}, Reason: "too slow", By: "ana"}, status: 202,
		},
		{
			name: "root", path: "/v1/calls?root=" + id, result: found, asked: &asked{Sel: cancel.Selector{Root: id}, By: "ana"}, status: 202,
		},
		{
			name: "trace", path: "/v1/calls?trace=" + trace, result: found, asked: &asked{Sel: cancel.Selector{Trace: trace}, By: "ana"}, status: 202,
		},
		{
			name: "tombstone", path: "/v1/calls/" + id, result: gateway.CancelResult{Nodes: []string{"n1"}, State: gateway.StateTombstoned},
			asked: &asked{Sel: cancel.Selector{Call: id}, By: "ana"}, status: 202, body: `{"calls":[],"nodes":["n1"],"state":"tombstoned"}`,
		},
		{
			name: "finished", path: "/v1/calls/" + id, result: gateway.CancelResult{Nodes: []string{"n1"}, Calls: []string{id}, State: gateway.StateFinished},
			asked: &asked{Sel: cancel.Selector{Call: id}, By: "ana"}, status: 202, body: `{"calls":["` + id + `"],"nodes":["n1"],"state":"finished"}`,
		},
		{
			name: "nobody knew it", path: "/v1/calls/" + id, result: gateway.CancelResult{State: gateway.StateUnknown},
			asked: &asked{Sel: cancel.Selector{Call: id}, By: "ana"}, status: 404, code: gateway.CodeNotFound,
		},
		{
			name: "the bus is away", path: "/v1/calls/" + id, err: module.Errorf(module.CodeBusDisconnected, "off"),
			asked: &asked{Sel: cancel.Selector{Call: id}, By: "ana"}, status: 503, code: module.CodeBusDisconnected,
		},
		{name: "malformed", path: "/v1/calls/nope", status: 404, code: gateway.CodeNotFound},
		{name: "malformed root", path: "/v1/calls?root=nope", status: 404, code: gateway.CodeNotFound},
		{name: "everything", path: "/v1/calls", status: 400, code: module.CodeInvalidInput},
		{name: "both", path: "/v1/calls?root=" + id + "&trace=" + trace, status: 400, code: module.CodeInvalidInput},
		{name: "two roots", path: "/v1/calls?root=" + id + "&root=" + id, status: 400, code: module.CodeInvalidInput},
		{name: "long reason", path: "/v1/calls/" + id + "?reason=" + strings.Repeat("x", 1025), status: 400, code: module.CodeInvalidInput},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var got *asked
			g := newGateway(t, func(o *gateway.Options) {
				o.Auth = grants{module.NewIdentity("ana", "", nil, nil), gateway.Scopes()}
				o.Calls = gateway.CallsFuncs{CancelFunc: func(_ context.Context, sel cancel.Selector, reason, by string) (gateway.CancelResult, error) {
					got = &asked{sel, reason, by}
					return tt.result, tt.err
				}}
			})
			res := record(g, "DELETE", tt.path, "")
			if diff := cmp.Diff(tt.asked, got); diff != "" {
				t.Errorf("asked (-want +got):\n%s", diff)
			}
			if tt.code != "" {
				res.wantFault(t, tt.status, tt.code)
				return
			}
			if res.status != tt.status || tt.body != "" && res.body != tt.body {
				t.Errorf("got %d %s, want %d %s", res.status, res.body, tt.status, tt.body)
			}
		})
	}
}

func TestCancelByAnonymousNamesTheGateway(t *testing.T) {
	var by string
	g := newGateway(t, func(o *gateway.Options) {
		o.Name = "router-7"
		o.Calls = gateway.CallsFuncs{CancelFunc: func(_ context.Context, _ cancel.Selector, _, b string) (gateway.CancelResult, error) {
			by = b
			return gateway.CancelResult{State: gateway.StateCancelling}, nil
		}}
	})
	record(g, "DELETE", "/v1/calls/0123456789abcdef", "")
	if by != "router-7" {
		t.Errorf("by %q", by)
	}
}

// A call that only this gateway knows is cancelled by each of its names, even
// while the bus is away.
func TestCancelOfAPendingCall(t *testing.T) {
	for _, selector := range []string{"call", "root", "trace"} {
		for name, busErr := range map[string]error{"unknown": nil, "away": errors.New("off")} {
			t.Run(selector+" "+name, func(t *testing.T) {
				started := make(chan *contextwire.Request, 1)
				g := newGateway(t, withInvoker(invoke(func(ctx context.Context, req *contextwire.Request) (*contextwire.Reply, error) {
					started <- req
					<-ctx.Done()
					return nil, context.Cause(ctx)
				})), func(o *gateway.Options) {
					o.Calls = gateway.CallsFuncs{CancelFunc: func(context.Context, cancel.Selector, string, string) (gateway.CancelResult, error) {
						return gateway.CancelResult{State: gateway.StateUnknown}, busErr
					}}
				})
				done := make(chan response, 1)
				go func() { done <- record(g, "POST", callURL, "{}") }()
				req := <-started
				path := map[string]string{
					"call": "/v1/calls/" + req.CallID, "root": "/v1/calls?root=" + req.CallID, "trace": "/v1/calls?trace=" + req.Context.TraceID(),
				}[selector]
				res := record(g, "DELETE", path, "")
				if want := `{"calls":["` + req.CallID + `"],"nodes":[],"state":"cancelling"}`; res.status != 202 || res.body != want {
					t.Errorf("got %d %s, want %s", res.status, res.body, want)
				}
				(<-done).wantFault(t, 499, module.CodeExecutionCancelled)
			})
		}
	}
}
