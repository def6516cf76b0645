package gateway_test

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/apbus/apbus/cancel"
	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/module"
)

const callURL = "/v1/modules/math.add/call"

// capture serves one call and returns the request that the invoker got.
func capture(t *testing.T, body string, headers ...string) (*contextwire.Request, response) {
	t.Helper()
	var got *contextwire.Request
	url := serve(t, withInvoker(invoke(func(_ context.Context, req *contextwire.Request) (*contextwire.Reply, error) {
		got = req
		return &contextwire.Reply{Output: map[string]any{"ok": true}, Node: "n1", Boot: "b1"}, nil
	})))
	res := request(t, "POST", url+callURL, body, headers...)
	if res.status == 200 && got == nil {
		t.Fatal("200 without a call")
	}
	return got, res
}

func TestCall(t *testing.T) {
	req, res := capture(t, `{"a":1,"b":2.5}`)
	if res.status != 200 || res.body != `{"ok":true}` {
		t.Errorf("got %d %s", res.status, res.body)
	}
	if diff := cmp.Diff(map[string]any{"a": int64(1), "b": 2.5}, req.Inputs); diff != "" {
		t.Errorf("inputs (-want +got):\n%s", diff)
	}
	c := req.Context
	if req.ModuleID != "math.add" || req.Attempt != 1 || req.Root != "" || req.Parent != "" || req.Stream || req.Bare || req.Budget != 0 {
		t.Errorf("request %+v", req)
	}
	if c.CallerID() != "" || len(c.CallChain()) != 0 || c.Identity() != nil || !module.ValidTraceID(c.TraceID()) {
		t.Errorf("context: caller %q, chain %v, identity %v, trace %q", c.CallerID(), c.CallChain(), c.Identity(), c.TraceID())
	}
	if !contextwire.ValidCallID(req.CallID) || res.header.Get("Apbus-Call") != req.CallID {
		t.Errorf("call ID %q, header %q", req.CallID, res.header.Get("Apbus-Call"))
	}
	if got := res.header.Get("Apbus-Node"); got != "n1.b1" {
		t.Errorf("Apbus-Node %q", got)
	}
}

func TestCallIDsDiffer(t *testing.T) {
	url := serve(t, withInvoker(answering(nil)))
	a, b := request(t, "POST", url+callURL, ""), request(t, "POST", url+callURL, "")
	if id := a.header.Get("Apbus-Call"); id == "" || id == b.header.Get("Apbus-Call") {
		t.Errorf("call IDs %q and %q", id, b.header.Get("Apbus-Call"))
	}
}

func TestOutputsSurvive(t *testing.T) {
	tests := []struct {
		name   string
		output map[string]any
		want   string
	}{
		{"64 bits", map[string]any{"n": int64(math.MaxInt64)}, `{"n":9223372036854775807}`},
		{"64 bits unsigned", map[string]any{"n": uint64(math.MaxUint64)}, `{"n":18446744073709551615}`},
		{"an integral float", map[string]any{"n": 3.0}, `{"n":3.0}`},
		{"text", map[string]any{"s": "a<b>&\u2028é"}, ""},
		{"nothing", nil, `{}`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			res := record(newGateway(t, withInvoker(answering(tt.output))), "POST", callURL, "{}")
			if res.status != 200 || tt.want != "" && res.body != tt.want {
				t.Errorf("got %d %s, want %s", res.status, res.body, tt.want)
			}
			if want := tt.output; want != nil {
				if diff := cmp.Diff(want, res.fields(t)); diff != "" {
					t.Errorf("read back (-want +got):\n%s", diff)
				}
			}
		})
	}
}

func TestInputsSurvive(t *testing.T) {
	req, _ := capture(t, `{"big":9007199254740993,"huge":18446744073709551615,"f":1.0,"s":"é","l":[null,true]}`)
	want := map[string]any{
		"big": int64(9007199254740993), "huge": uint64(math.MaxUint64), "f": 1.0, "s": "é", "l": []any{nil, true},
	}
	if diff := cmp.Diff(want, req.Inputs); diff != "" {
		t.Errorf("inputs (-want +got):\n%s", diff)
	}
}

func TestOutputWithoutAJSONFormIsInternal(t *testing.T) {
	for name, output := range map[string]map[string]any{"NaN": {"n": math.NaN()}, "func": {"n": func() {}}} {
		t.Run(name, func(t *testing.T) {
			record(newGateway(t, withInvoker(answering(output))), "POST", callURL, "{}").wantFault(t, 500, module.CodeInternal)
		})
	}
	none := invoke(func(context.Context, *contextwire.Request) (*contextwire.Reply, error) { return nil, nil })
	record(newGateway(t, withInvoker(none)), "POST", callURL, "{}").wantFault(t, 500, module.CodeInternal)
}

func TestCallHeaders(t *testing.T) {
	const trace = "0af7651916cd43dd8448eb211c80319c"
	tests := []struct {
		name    string
		body    string
		headers []string
		check   func(t *testing.T, req *contextwire.Request)
	}{
		{"timeout", "", []string{"Apbus-Timeout: 1.5s"}, func(t *testing.T, r *contextwire.Request) {
			if r.Budget != 1500*time.Millisecond {
				t.Errorf("budget %v", r.Budget)
			}
		}},
		{"no timeout of the caller's own", "", []string{"Apbus-Timeout: 0s"}, func(t *testing.T, r *contextwire.Request) {
			if r.Budget != 0 {
				t.Errorf("budget %v", r.Budget)
			}
		}},
		{"trace", "", []string{"traceparent: 00-" + trace + "-b7ad6b7169203331-01", "tracestate: a=1", "tracestate: b=2"}, func(t *testing.T, r *contextwire.Request) {
			if r.Context.TraceID() != trace {
				t.Errorf("trace %q", r.Context.TraceID())
			}
			if tp := r.TraceParent; tp == nil || tp.ParentID != "b7ad6b7169203331" || tp.StateHeader() != "a=1,b=2" {
				t.Errorf("trace parent %+v", tp)
			}
		}},
		{"unusable trace", "", []string{"traceparent: 00-xyz-1-01"}, func(t *testing.T, r *contextwire.Request) {
			if !module.ValidTraceID(r.Context.TraceID()) || r.TraceParent != nil {
				t.Errorf("trace %q, parent %v", r.Context.TraceID(), r.TraceParent)
			}
		}},
		{"trace of all f", "", []string{"traceparent: 00-" + strings.Repeat("f", 32) + "-b7ad6b7169203331-01"}, func(t *testing.T, r *contextwire.Request) {
			if !module.ValidTraceID(r.Context.TraceID()) || r.TraceParent != nil {
				t.Errorf("trace %q, parent %v", r.Context.TraceID(), r.TraceParent)
			}
		}},
		{"two trace parents", "", []string{"traceparent: 00-" + trace + "-b7ad6b7169203331-01", "traceparent: 00-" + trace + "-b7ad6b7169203331-01"}, func(t *testing.T, r *contextwire.Request) {
			if r.Context.TraceID() == trace {
				t.Error("one of two trace parents was taken")
			}
		}},
		{"idempotency key", "", []string{"Idempotency-Key: order 17"}, func(t *testing.T, r *contextwire.Request) {
			if r.IdempotencyKey != "order 17" {
				t.Errorf("key %q", r.IdempotencyKey)
			}
		}},
		{"version", "", []string{"Apbus-Module-Version: ^2.1"}, func(t *testing.T, r *contextwire.Request) {
			if r.Version != "^2.1" {
				t.Errorf("version %q", r.Version)
			}
		}},
		{"approval", `{"a":1}`, []string{"Apbus-Approval: tok-1"}, func(t *testing.T, r *contextwire.Request) {
			if diff := cmp.Diff(map[string]any{"a": int64(1), "_approval_token": "tok-1"}, r.Inputs); diff != "" {
				t.Errorf("inputs (-want +got):\n%s", diff)
			}
		}},
		{"approval in both places", `{"_approval_token":"tok-1"}`, []string{"Apbus-Approval: tok-1"}, func(t *testing.T, r *contextwire.Request) {
			if r.Inputs["_approval_token"] != "tok-1" {
				t.Errorf("inputs %v", r.Inputs)
			}
		}},
		{"approval in the body", `{"_approval_token":"tok-2"}`, nil, func(t *testing.T, r *contextwire.Request) {
			if r.Inputs["_approval_token"] != "tok-2" {
				t.Errorf("inputs %v", r.Inputs)
			}
		}},
		{"another preference", "", []string{"Prefer: wait=10"}, func(*testing.T, *contextwire.Request) {}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			req, res := capture(t, tt.body, tt.headers...)
			if res.status != 200 {
				t.Fatalf("got %d %s", res.status, res.body)
			}
			tt.check(t, req)
		})
	}
}

func TestRefusedCalls(t *testing.T) {
	tests := []struct {
		name    string
		path    string
		body    string
		headers []string
		status  int
		code    module.Code
	}{
		{"timeout without a unit", callURL, "", []string{"Apbus-Timeout: 5"}, 400, module.CodeInvalidInput},
		{"timeout of words", callURL, "", []string{"Apbus-Timeout: soon"}, 400, module.CodeInvalidInput},
		{"negative timeout", callURL, "", []string{"Apbus-Timeout: -5s"}, 400, module.CodeInvalidInput},
		{"timeout beyond 64 bits", callURL, "", []string{"Apbus-Timeout: 99999999999h"}, 400, module.CodeInvalidInput},
		{"timeout twice", callURL, "", []string{"Apbus-Timeout: 1s", "Apbus-Timeout: 2s"}, 400, module.CodeInvalidInput},
		{"long key", callURL, "", []string{"Idempotency-Key: " + strings.Repeat("k", 256)}, 400, module.CodeInvalidInput},
		{"key not ASCII", callURL, "", []string{"Idempotency-Key: ö"}, 400, module.CodeInvalidInput},
		{"long version", callURL, "", []string{"Apbus-Module-Version: " + strings.Repeat("1", 129)}, 400, module.CodeInvalidInput},
		{"long token", callURL, "", []string{"Apbus-Approval: " + strings.Repeat("t", 8193)}, 400, module.CodeInvalidInput},
		{"two tokens", callURL, `{"_approval_token":"a"}`, []string{"Apbus-Approval: b"}, 400, module.CodeInvalidInput},
		{"token of another type", callURL, `{"_approval_token":{}}`, []string{"Apbus-Approval: b"}, 400, module.CodeInvalidInput},
		{"module ID", "/v1/modules/Math.Add/call", "", nil, 400, module.CodeInvalidModuleID},
		{"module ID with a slash", "/v1/modules/math%2Fadd/call", "", nil, 400, module.CodeInvalidModuleID},
		{"array", callURL, `[1]`, nil, 400, module.CodeBusBadMessage},
		{"null", callURL, `null`, nil, 400, module.CodeBusBadMessage},
		{"text", callURL, `"a"`, nil, 400, module.CodeBusBadMessage},
		{"broken", callURL, `{"a":`, nil, 400, module.CodeBusBadMessage},
		{"two values", callURL, `{} {}`, nil, 400, module.CodeBusBadMessage},
		{"duplicate key", callURL, `{"a":1,"a":2}`, nil, 400, module.CodeBusBadMessage},
		{"number over 64 bits", callURL, `{"a":18446744073709551616}`, nil, 400, module.CodeBusBadMessage},
		{"too deep", callURL, `{"a":` + strings.Repeat("[", 70) + strings.Repeat("]", 70) + `}`, nil, 400, module.CodeBusBadMessage},
		{"not UTF-8", callURL, "{\"a\":\"\xff\"}", nil, 400, module.CodeBusBadMessage},
		{"form", callURL, `{}`, []string{"Content-Type: application/x-www-form-urlencoded"}, 415, module.CodeBusUnsupportedType},
		{"text/plain", callURL, `{}`, []string{"Content-Type: text/plain"}, 415, module.CodeBusUnsupportedType},
		{"msgpack", callURL, "\x80", []string{"Content-Type: application/msgpack"}, 415, module.CodeBusUnsupportedType},
		{"latin-1", callURL, `{}`, []string{"Content-Type: application/json; charset=iso-8859-1"}, 415, module.CodeBusUnsupportedType},
		{"malformed type", callURL, `{}`, []string{"Content-Type: application/json; x"}, 415, module.CodeBusUnsupportedType},
		{"compressed", callURL, `{}`, []string{"Content-Encoding: gzip"}, 415, module.CodeBusUnsupportedType},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			url := serve(t, withInvoker(invoke(func(context.Context, *contextwire.Request) (*contextwire.Reply, error) {
				t.Error("the module was called")
				return nil, errors.New("called")
			})))
			res := request(t, "POST", url+tt.path, tt.body, tt.headers...)
			e := res.wantFault(t, tt.status, tt.code)
			if res.header.Get("Apbus-Call") == "" {
				t.Error("no Apbus-Call header")
			}
			if cause, leaked := e["cause"]; leaked && tt.status >= 500 {
				t.Errorf("cause %v", cause)
			}
		})
	}
}

func TestAcceptedBodies(t *testing.T) {
	tests := []struct {
		name, body string
		headers    []string
	}{
		{"empty", "", nil},
		{"empty with a foreign type", "", []string{"Content-Type: text/plain"}},
		{"white space", " \n", nil},
		{"charset", `{}`, []string{"Content-Type: Application/JSON; charset=UTF-8"}},
		{"no type", `{}`, []string{"Content-Type: "}},
		{"identity encoding", `{}`, []string{"Content-Encoding: identity"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			req, res := capture(t, tt.body, tt.headers...)
			if res.status != 200 {
				t.Fatalf("got %d %s", res.status, res.body)
			}
			if diff := cmp.Diff(map[string]any{}, req.Inputs); diff != "" {
				t.Errorf("inputs (-want +got):\n%s", diff)
			}
		})
	}
}

func TestClosingTheConnectionCancelsTheCall(t *testing.T) {
	for _, kind := range []string{"call", "check"} {
		t.Run(kind, func(t *testing.T) {
			started, ended := make(chan struct{}), make(chan error, 1)
			wait := func(ctx context.Context) error {
				close(started)
				<-ctx.Done()
				ended <- context.Cause(ctx)
				return context.Cause(ctx)
			}
			url := serve(t, withInvoker(waiting{wait}))
			ctx, hangUp := context.WithCancel(t.Context())
			done := make(chan struct{})
			go func() {
				defer close(done)
				_, err := trySend(ctx, "POST", url+"/v1/modules/a.b/"+kind, strings.NewReader("{}"))
				if err == nil {
					t.Error("the request succeeded")
				}
			}()
			<-started
			hangUp()
			cause := <-ended
			var c *cancel.Cause
			if !errors.As(cause, &c) || c.Reason != cancel.Caller || c.Text == "" {
				t.Errorf("cause %v, want reason caller", cause)
			}
			<-done
		})
	}
}

// waiting is an Invoker that waits for the end of its context.
type waiting struct{ wait func(context.Context) error }

func (w waiting) Invoke(ctx context.Context, _ *contextwire.Request) (*contextwire.Reply, error) {
	return nil, w.wait(ctx)
}

func (w waiting) Check(ctx context.Context, _ *contextwire.Request) (*module.PreflightResult, error) {
	return nil, w.wait(ctx)
}

func TestTimeoutEndsTheCall(t *testing.T) {
	var cause error
	g := newGateway(t, withInvoker(waiting{func(ctx context.Context) error {
		if _, ok := ctx.Deadline(); !ok {
			t.Error("no deadline")
			return nil
		}
		<-ctx.Done()
		cause = context.Cause(ctx)
		return ctx.Err()
	}}))
	record(g, "POST", callURL, "{}", "Apbus-Timeout: 5ms").wantFault(t, 504, module.CodeModuleTimeout)
	if cancel.ReasonOf(cause) != cancel.Timeout {
		t.Errorf("cause %v, want reason timeout", cause)
	}
}
