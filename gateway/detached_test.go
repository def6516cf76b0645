package gateway_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apbus/apbus/cancel"
	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/gateway"
	"github.com/apbus/apbus/module"
)

const async = "Prefer: respond-async, wait=10"

// detach makes a detached call and returns its ID.
func detach(t *testing.T, g *gateway.Gateway, headers ...string) string {
	t.Helper()
	res := record(g, "POST", callURL, `{"a":1}`, append(headers, async)...)
	if res.status != 202 {
		t.Fatalf("got %d %s", res.status, res.body)
	}
	id := res.header.Get("Apbus-Call")
	m := res.fields(t)
	if m["call"] != id || id == "" || m["state"] != "running" || m["module_id"] != "math.add" {
		t.Fatalf("header %q, body %s", id, res.body)
	}
	if res.header.Get("Location") != "/v1/calls/"+id || res.header.Get("Preference-Applied") != "respond-async" {
		t.Errorf("headers %v", res.header)
	}
	return id
}

// blocked is an Invoker whose calls wait for release, then give the output.
func blocked(release <-chan struct{}, output map[string]any) gateway.Invoker {
	return invoke(func(ctx context.Context, _ *contextwire.Request) (*contextwire.Reply, error) {
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-release:
			return &contextwire.Reply{Output: output, Node: "n1", Boot: "b1", Attempt: 2}, nil
		}
	})
}

// bubble runs f with a gateway inside a synctest bubble and closes it.
func bubble(t *testing.T, f func(t *testing.T, g *gateway.Gateway), changes ...func(*gateway.Options)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		g := newGateway(t, changes...)
		f(t, g)
	})
}

func TestDetachedCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		g := newGateway(t, withInvoker(blocked(release, map[string]any{"sum": int64(3)})))
		id := detach(t, g, "Apbus-Timeout: 1h")
		synctest.Wait()
		m := record(g, "GET", "/v1/calls/"+id, "").fields(t)
		if m["state"] != "running" || m["call"] != id || m["module_id"] != "math.add" || m["budget_ms"] != int64(3_600_000) || m["root"] != id {
			t.Errorf("while it runs: %v", m)
		}
		time.Sleep(time.Minute) // the connection is long gone
		close(release)
		synctest.Wait()
		res := record(g, "GET", "/v1/calls/"+id, "")
		golden(t, "call_finished", scrub(res.body, id, res.fields(t)["trace_id"]))

		time.Sleep(5*time.Minute - time.Second)
		if res := record(g, "GET", "/v1/calls/"+id, ""); res.status != 200 {
			t.Errorf("before 5 minutes: %d %s", res.status, res.body)
		}
		time.Sleep(time.Second)
		record(g, "GET", "/v1/calls/"+id, "").wantFault(t, 404, gateway.CodeNotFound)
	})
}

// scrub replaces what differs from run to run.
func scrub(body, id string, trace any) string {
	body = strings.ReplaceAll(body, id, "CALL")
	return strings.ReplaceAll(body, fmt.Sprint(trace), "TRACE")
}

func TestDetachedFailure(t *testing.T) {
	bubble(t, func(t *testing.T, g *gateway.Gateway) {
		id := detach(t, g)
		synctest.Wait()
		res := record(g, "GET", "/v1/calls/"+id, "")
		if res.status != 200 {
			t.Errorf("status %d", res.status)
		}
		golden(t, "call_failed", scrub(res.body, id, res.fields(t)["trace_id"]))
	}, withInvoker(failing(&module.Error{
		Code: module.CodeACLDenied, Message: "no", Timestamp: time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC), Retryable: module.False,
	})))
}

func TestDetachedInternalErrorsShowNothing(t *testing.T) {
	for name, invoker := range map[string]gateway.Invoker{
		"error": failing(errors.New("SECRET")),
		"panic": invoke(func(context.Context, *contextwire.Request) (*contextwire.Reply, error) { panic("SECRET") }),
		"nil":   invoke(func(context.Context, *contextwire.Request) (*contextwire.Reply, error) { return nil, nil }),
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, g *gateway.Gateway) {
				id := detach(t, g)
				synctest.Wait()
				res := record(g, "GET", "/v1/calls/"+id, "")
				e, _ := res.fields(t)["error"].(map[string]any)
				if e["code"] != string(module.CodeInternal) || strings.Contains(res.body, "SECRET") {
					t.Errorf("got %s", res.body)
				}
			}, withInvoker(invoker))
		})
	}
}

func TestDetachedTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGateway(t, withInvoker(blocked(nil, nil)))
		id := detach(t, g, "Apbus-Timeout: 3s")
		time.Sleep(3 * time.Second)
		synctest.Wait()
		e, _ := record(g, "GET", "/v1/calls/"+id, "").fields(t)["error"].(map[string]any)
		if e["code"] != string(module.CodeModuleTimeout) {
			t.Errorf("error %v", e)
		}
	})
}

func TestDetachedLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		g := newGateway(t, withInvoker(blocked(release, nil)), limited(gateway.Limits{MaxDetached: 2, MaxRequests: 1}))
		detach(t, g) // does not hold the one request slot
		detach(t, g)
		e := record(g, "POST", callURL, "{}", async).wantFault(t, 429, module.CodeBusOverloaded)
		if e["retryable"] != true {
			t.Errorf("retryable %v", e["retryable"])
		}
		close(release)
		synctest.Wait()
		detach(t, g)
	})
}

func TestOutcomesAreBounded(t *testing.T) {
	large := map[string]any{"s": strings.Repeat("x", 400)}
	tests := []struct {
		name   string
		limits gateway.Limits
		calls  int
		kept   int
	}{
		{"number", gateway.Limits{MaxOutcomes: 3}, 5, 3},
		{"bytes", gateway.Limits{MaxOutcomeBytes: 1000}, 5, 2},
		{"neither", gateway.Limits{}, 5, 5},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, g *gateway.Gateway) {
				var ids []string
				for range tt.calls {
					ids = append(ids, detach(t, g))
					synctest.Wait()
				}
				for i, id := range ids {
					want := 404
					if i >= tt.calls-tt.kept { // the oldest go first
						want = 200
					}
					if got := record(g, "GET", "/v1/calls/"+id, "").status; got != want {
						t.Errorf("outcome %d: %d, want %d", i, got, want)
					}
				}
			}, withInvoker(answering(large)), limited(tt.limits))
		})
	}
}

func TestOutcomeTooLargeToKeep(t *testing.T) {
	bubble(t, func(t *testing.T, g *gateway.Gateway) {
		id := detach(t, g)
		synctest.Wait()
		m := record(g, "GET", "/v1/calls/"+id, "").fields(t)
		e, _ := m["error"].(map[string]any)
		details, _ := e["details"].(map[string]any)
		if e["code"] != string(module.CodeBusPayloadTooLarge) || details["size"] != int64(608) || details["limit"] != int64(200) {
			t.Errorf("got %v", m)
		}
	}, withInvoker(answering(map[string]any{"s": strings.Repeat("x", 600)})), limited(gateway.Limits{MaxOutcomeBytes: 200}))
}

func TestOutcomesAreForTheirOwners(t *testing.T) {
	tokens := openTokens(t, `tokens:
  - {sha256: `+sum("a1")+`, identity: {id: ana}, scopes: [call]}
  - {sha256: `+sum("a2")+`, identity: {id: ana}, scopes: [call]}
  - {sha256: `+sum("b")+`, identity: {id: bob}, scopes: [call]}
  - {sha256: `+sum("o")+`, identity: {id: op}, scopes: [call, operate]}
`)
	bubble(t, func(t *testing.T, g *gateway.Gateway) {
		id := detach(t, g, "Authorization: Bearer a1")
		synctest.Wait()
		for token, sees := range map[string]bool{"a1": true, "a2": true, "b": false, "o": true} {
			m := record(g, "GET", "/v1/calls/"+id, "", "Authorization: Bearer "+token).fields(t)
			if _, got := m["output"]; got != sees || m["state"] != "finished" || m["identity_id"] != "ana" {
				t.Errorf("%s sees %v, want the output %v", token, m, sees)
			}
		}
	}, withInvoker(answering(map[string]any{"x": "y"})), func(o *gateway.Options) { o.Auth = tokens })
}

func TestCancellingADetachedCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var cause error
		g := newGateway(t, withInvoker(waiting{func(ctx context.Context) error {
			<-ctx.Done()
			cause = context.Cause(ctx)
			return cause
		}}))
		id := detach(t, g)
		synctest.Wait()
		// No node knows the call; the gateway still waits for it.
		res := record(g, "DELETE", "/v1/calls/"+id+"?reason=enough", "")
		if want := `{"calls":["` + id + `"],"nodes":[],"state":"cancelling"}`; res.status != 202 || res.body != want {
			t.Errorf("got %d %s, want %s", res.status, res.body, want)
		}
		synctest.Wait()
		var c *cancel.Cause
		if !errors.As(cause, &c) || c.Reason != cancel.Caller || c.Text != "enough" {
			t.Errorf("cause %v", cause)
		}
		m := record(g, "GET", "/v1/calls/"+id, "").fields(t)
		if e, _ := m["error"].(map[string]any); m["state"] != "finished" || e["code"] != string(module.CodeExecutionCancelled) {
			t.Errorf("afterwards %v", m)
		}
		res = record(g, "DELETE", "/v1/calls/"+id, "")
		if want := `{"calls":["` + id + `"],"nodes":[],"state":"finished"}`; res.status != 202 || res.body != want {
			t.Errorf("again: %d %s, want %s", res.status, res.body, want)
		}
	})
}
