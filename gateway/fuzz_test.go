package gateway_test

import (
	"context"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/gateway"
	"github.com/apbus/apbus/module"
)

// FuzzCall sends hostile bodies and headers. Whatever comes, the answer is the
// echo of a valid body or one coded error that blames the client, and always
// JSON.
func FuzzCall(f *testing.F) {
	add := func(body, id, contentType, timeout, trace, approval, prefer string, length int64) {
		f.Add([]byte(body), id, contentType, timeout, trace, approval, prefer, length)
	}
	add(`{"a":1,"b":[1.5,null,"x"],"c":{"d":18446744073709551615}}`, "math.add", "application/json", "5s", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "tok", "respond-async", 0)
	add(``, "a", "", "", "", "", "", 0)
	add(`{"_approval_token":1}`, "a", "", "", "", "tok", "", 0)
	add(`[]`, "A..b", "text/plain", "-1s", "x", "\x00", ",;=", -1)
	add(`{"a":`, "a.b", "application/json; charset=utf-8", "1h2m", "", "", "", 99)
	add("\xff\xfe{}", "a/b", "application/json;", "1e9s", "", "ä", "RESPOND-ASYNC;x", -1)
	add(strings.Repeat(`{"a":`, 80), "a", "application/json", "", "", "", "", 5000)
	add(`{"a":1e400}`, "a", "application/json", "", "", "", "", 0)

	tokenless := grants{nil, gateway.Scopes()}
	f.Fuzz(func(t *testing.T, body []byte, id, contentType, timeout, trace, approval, prefer string, length int64) {
		var inputs map[string]any
		called := false
		g := newGateway(t, limited(gateway.Limits{MaxBody: 4096, MaxHeader: 4096}), func(o *gateway.Options) {
			o.Auth = tokenless
			o.Invoker = invoke(func(_ context.Context, req *contextwire.Request) (*contextwire.Reply, error) {
				called, inputs = true, req.Inputs
				if err := module.ValidateID(req.ModuleID); err != nil {
					t.Errorf("a call of %q", req.ModuleID)
				}
				if req.Budget < 0 || !module.ValidTraceID(req.Context.TraceID()) || !contextwire.ValidCallID(req.CallID) {
					t.Errorf("a call with budget %v, trace %q, ID %q", req.Budget, req.Context.TraceID(), req.CallID)
				}
				return &contextwire.Reply{Output: req.Inputs}, nil
			})
		})
		r := httptest.NewRequest(http.MethodPost, "/v1/modules/x/call", strings.NewReader(string(body)))
		r.URL.Path, r.URL.RawPath = "/v1/modules/"+id+"/call", ""
		for name, value := range map[string]string{
			"Content-Type": contentType, "Apbus-Timeout": timeout, "Traceparent": trace, "Apbus-Approval": approval, "Prefer": prefer,
		} {
			if value != "" {
				r.Header.Set(name, value)
			}
		}
		if length != 0 {
			r.ContentLength = max(length, -1) // also lengths that are not true
		}
		w := httptest.NewRecorder()
		g.ServeHTTP(w, r)
		if loc := w.Header().Get("Location"); w.Code/100 == 3 || strings.HasPrefix(loc, "/v1/modules") {
			return // the router of the standard library cleans the path
		}
		answer, err := contextwire.DecodeMap(contextwire.JSON, w.Body.Bytes(), contextwire.Limits{})
		if err != nil {
			t.Fatalf("%d: the answer is no JSON object: %v\n%s", w.Code, err, w.Body)
		}
		switch w.Code {
		case http.StatusOK:
			if !called {
				t.Fatalf("200 without a call: %s", w.Body)
			}
			if diff := cmp.Diff(inputs, answer); diff != "" {
				t.Errorf("the echo differs (-inputs +answer):\n%s", diff)
			}
		case http.StatusAccepted:
			if answer["call"] != w.Header().Get("Apbus-Call") {
				t.Errorf("accepted: %s", w.Body)
			}
		case 504: // the time given was over at once
			if timeout == "" {
				t.Errorf("504 without a timeout: %s", w.Body)
			}
		default:
			e, _ := answer["error"].(map[string]any)
			code, _ := e["code"].(string)
			if w.Code < 400 || w.Code > 499 || gateway.StatusOf(module.Code(code)) != w.Code {
				t.Errorf("%d %s", w.Code, w.Body)
			}
			if called {
				t.Errorf("a refused request made a call: %s", w.Body)
			}
		}
	})
}

// FuzzQuery sends hostile queries and paths to what looks and cancels.
func FuzzQuery(f *testing.F) {
	f.Add("GET", "/v1/modules", "prefix=math&tag=a&tag=b&q=%C3%A9")
	f.Add("DELETE", "/v1/calls", "root=0123456789abcdef&reason=x")
	f.Add("DELETE", "/v1/calls/0123456789abcdef", "reason=%00")
	f.Add("GET", "/v1/calls/..", "%zz=;")
	f.Add("PATCH", "//v1//nodes", "")
	f.Fuzz(func(t *testing.T, method, path, query string) {
		g := newGateway(t, withModules, knowing(rootCall), func(o *gateway.Options) { o.Auth = grants{nil, gateway.Scopes()} })
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		if method == "" || strings.ContainsAny(method, " \t\r\n") || path == "" || path[0] != '/' {
			return // no server hands such a request on
		}
		r.Method, r.URL.Path, r.URL.RawQuery = method, path, query
		w := httptest.NewRecorder()
		g.ServeHTTP(w, r)
		if w.Code/100 == 3 {
			return
		}
		if w.Code >= 500 && w.Code != http.StatusNotImplemented {
			t.Errorf("%s %q %q: %d %s", method, path, query, w.Code, w.Body)
		}
		if _, err := contextwire.DecodeMap(contextwire.JSON, w.Body.Bytes(), contextwire.Limits{MaxBody: math.MaxInt32}); err != nil {
			t.Errorf("%s %q: the answer is no JSON object: %v", method, path, err)
		}
	})
}
