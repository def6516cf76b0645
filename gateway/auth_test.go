package gateway_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"

	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/gateway"
	"github.com/apbus/apbus/module"
)

func TestLoopback(t *testing.T) {
	tests := []struct {
		name, peer, host string
		headers          map[string]string
		admitted         bool
	}{
		{"IPv4", "127.0.0.1:1", "127.0.0.1:8420", nil, true},
		{"another loopback address", "127.8.8.8:1", "localhost", nil, true},
		{"IPv6", "[::1]:1", "[::1]:8420", nil, true},
		{"IPv4 in IPv6", "[::ffff:127.0.0.1]:1", "localhost:8420", nil, true},
		{"bare IPv6 host", "[::1]:1", "[::1]", nil, true},
		{"upper case", "127.0.0.1:1", "LOCALHOST:8420", nil, true},
		{"another machine", "192.0.2.7:1", "localhost", nil, false},
		{"a private network", "10.0.0.1:1", "localhost", nil, false},
		{"no address", "@", "localhost", nil, false},
		{"a name that was made to point here", "127.0.0.1:1", "evil.example", nil, false},
		{"a name that looks like here", "127.0.0.1:1", "localhost.evil.example:8420", nil, false},
		{"no host", "127.0.0.1:1", "", nil, false},
		{"through a proxy", "127.0.0.1:1", "localhost", map[string]string{"X-Forwarded-For": "192.0.2.7"}, false},
		{"through a modern proxy", "127.0.0.1:1", "localhost", map[string]string{"Forwarded": "for=192.0.2.7"}, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := httptest.NewRequest("GET", "/v1/modules", nil)
			r.RemoteAddr, r.Host = tt.peer, tt.host
			for k, v := range tt.headers {
				r.Header.Set(k, v)
			}
			p, err := gateway.Loopback{}.Authenticate(r)
			if !tt.admitted {
				if module.CodeOf(err) != module.CodeACLDenied {
					t.Errorf("got %v, want ACL_DENIED", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			want := []gateway.Scope{gateway.ScopeCall, gateway.ScopeCancel, gateway.ScopeOperate}
			if p.Identity != nil || !slices.Equal(p.Scopes, want) {
				t.Errorf("identity %v, scopes %v", p.Identity, p.Scopes)
			}
		})
	}
}

// Strangers learn nothing but whether the router lives.
// Without a token the machine decides, with one the token alone.
func TestLocalOr(t *testing.T) {
	ana := gateway.Principal{Identity: module.NewIdentity("ana", "user", nil, nil), Scopes: []gateway.Scope{gateway.ScopeReview}}
	auth := gateway.LocalOr{Tokens: authFunc(func(r *http.Request) (*gateway.Principal, error) {
		if r.Header.Get("Authorization") != "Bearer good" {
			return nil, module.Errorf(module.CodeBusUnauthenticated, "the bearer token is not known")
		}
		return &ana, nil
	})}
	for _, tt := range []struct {
		name, peer string
		header     []string
		who        string // "" is nobody in particular, "-" is refused
	}{
		{"here without a token", "127.0.0.1:1", nil, ""},
		{"here with a token", "127.0.0.1:1", []string{"Bearer good"}, "ana"},
		{"here with a wrong token", "127.0.0.1:1", []string{"Bearer bad"}, "-"},
		{"here with an empty header", "127.0.0.1:1", []string{""}, "-"},
		{"elsewhere without a token", "192.0.2.7:1", nil, "-"},
		{"elsewhere with a token", "192.0.2.7:1", []string{"Bearer good"}, "ana"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := httptest.NewRequest("GET", "/v1/modules", nil)
			r.RemoteAddr, r.Host = tt.peer, "localhost"
			if tt.header != nil {
				r.Header["Authorization"] = tt.header
			}
			p, err := auth.Authenticate(r)
			switch {
			case tt.who == "-":
				if module.CodeOf(err) != module.CodeBusUnauthenticated {
					t.Errorf("got %v, want BUS_UNAUTHENTICATED", err)
				}
			case err != nil:
				t.Error(err)
			case tt.who == "" && (p.Identity != nil || p.May(gateway.ScopeReview)):
				t.Errorf("identity %v, scopes %v", p.Identity, p.Scopes)
			case tt.who == "ana" && p != &ana:
				t.Errorf("identity %v, scopes %v", p.Identity, p.Scopes)
			}
		})
	}
}

type authFunc func(r *http.Request) (*gateway.Principal, error)

func (f authFunc) Authenticate(r *http.Request) (*gateway.Principal, error) { return f(r) }

func TestLoopbackAtTheDoor(t *testing.T) {
	g := newGateway(t, withInvoker(answering(nil)))
	for _, tt := range everyRoute() {
		t.Run(tt.method+" "+tt.path, func(t *testing.T) {
			r := httptest.NewRequest(tt.method, tt.path, nil)
			r.RemoteAddr, r.Host = "192.0.2.7:99", "localhost"
			w := httptest.NewRecorder()
			g.ServeHTTP(w, r)
			res := response{w.Code, w.Header(), w.Body.String()}
			if tt.scope == "" {
				if res.status != 200 {
					t.Errorf("got %d %s", res.status, res.body)
				}
				return
			}
			res.wantFault(t, 403, module.CodeACLDenied)
		})
	}
}

type routeCase struct {
	method, path string
	scope        gateway.Scope
	status       int // for a caller with the scope, over empty ports
}

// everyRoute lists one request for each route.
func everyRoute() []routeCase {
	return []routeCase{
		{"GET", "/v1/modules", gateway.ScopeCall, 200},
		{"GET", "/v1/modules/a.b", gateway.ScopeCall, 404},
		{"POST", "/v1/modules/a.b/call", gateway.ScopeCall, 200},
		{"POST", "/v1/modules/a.b/check", gateway.ScopeCall, 501},
		{"POST", "/v1/modules/a.b/stream", gateway.ScopeCall, 501},
		{"GET", "/v1/calls", gateway.ScopeCall, 200},
		{"DELETE", "/v1/calls?root=0123456789abcdef", gateway.ScopeCancel, 404},
		{"GET", "/v1/calls/0123456789abcdef", gateway.ScopeCall, 404},
		{"DELETE", "/v1/calls/0123456789abcdef", gateway.ScopeCancel, 404},
		{"GET", "/v1/nodes", gateway.ScopeCall, 200},
		{"POST", "/v1/nodes/n1/drain", gateway.ScopeOperate, 404},
		{"GET", "/v1/governance", gateway.ScopeOperate, 501},
		{"GET", "/v1/approvals", gateway.ScopeReview, 501},
		{"GET", "/v1/approvals/a.b", gateway.ScopeReview, 501},
		{"POST", "/v1/approvals/a.b/decision", gateway.ScopeReview, 400},
		{"POST", "/v1/tasks", gateway.ScopeCall, 501},
		{"GET", "/v1/tasks", gateway.ScopeCall, 501},
		{"POST", "/v1/tasks:bulk", gateway.ScopeOperate, 501},
		{"GET", "/v1/tasks/t1", gateway.ScopeCall, 501},
		{"GET", "/v1/tasks/t1/inputs", gateway.ScopeOperate, 501},
		{"GET", "/v1/tasks/t1/result", gateway.ScopeCall, 501},
		{"GET", "/v1/tasks/t1/events", gateway.ScopeCall, 501},
		{"DELETE", "/v1/tasks/t1", gateway.ScopeCancel, 501},
		{"POST", "/v1/tasks/t1/retry", gateway.ScopeCall, 501},
		{"POST", "/v1/tasks/t1/requeue", gateway.ScopeOperate, 501},
		{"GET", "/v1/queues", gateway.ScopeCall, 501},
		{"POST", "/v1/queues/a.b/pause", gateway.ScopeOperate, 501},
		{"POST", "/v1/queues/a.b/resume", gateway.ScopeOperate, 501},
		{"POST", "/v1/queues/a.b/limits", gateway.ScopeOperate, 501},
		{"GET", "/v1/schedules", gateway.ScopeCall, 501},
		{"POST", "/v1/schedules", gateway.ScopeOperate, 501},
		{"GET", "/v1/schedules/s1", gateway.ScopeCall, 501},
		{"POST", "/v1/schedules/s1", gateway.ScopeOperate, 501},
		{"DELETE", "/v1/schedules/s1", gateway.ScopeOperate, 501},
		{"GET", "/v1/doctor", gateway.ScopeOperate, 501},
		{"GET", "/v1/stats", gateway.ScopeCall, 501},
		{"GET", "/v1/evidence", gateway.ScopeOperate, 501},
		{"GET", "/v1/recommendations", gateway.ScopeReview, 501},
		{"GET", "/v1/recommendations/h1", gateway.ScopeReview, 501},
		{"POST", "/v1/recommendations/h1/approve", gateway.ScopeReview, 501},
		{"POST", "/v1/recommendations/h1/reject", gateway.ScopeReview, 501},
		{"POST", "/v1/recommendations/h1/apply", gateway.ScopeApply, 501},
		{"POST", "/v1/recommendations/h1/rollback", gateway.ScopeApply, 501},
		{"GET", "/v1/loop", gateway.ScopeOperate, 501},
		{"POST", "/v1/loop/run", gateway.ScopeOperate, 501},
		{"POST", "/v1/loop/evalsets/a.b", gateway.ScopeApply, 501},
		{"POST", "/v1/loop/evalsets/a.b/run", gateway.ScopeApply, 501},
		{"GET", "/v1/loop/runs/a.b", gateway.ScopeOperate, 501},
		{"GET", "/metrics", gateway.ScopeCall, 404},
		{"GET", "/healthz", "", 200},
		{"GET", "/readyz", "", 200},
		{"GET", "/openapi.json", "", 200},
	}
}

// grants is an Authenticator for everybody.
type grants struct {
	identity *module.Identity
	scopes   []gateway.Scope
}

func (g grants) Authenticate(*http.Request) (*gateway.Principal, error) {
	return &gateway.Principal{Identity: g.identity, Scopes: g.scopes}, nil
}

// Each route asks for its own scope and for no other.
func TestScopes(t *testing.T) {
	for _, scope := range append(gateway.Scopes(), "") {
		g := newGateway(t, withInvoker(answering(nil)), func(o *gateway.Options) {
			o.Auth = grants{scopes: []gateway.Scope{scope}}
		})
		for _, tt := range everyRoute() {
			t.Run(string(scope)+" "+tt.method+" "+tt.path, func(t *testing.T) {
				res := record(g, tt.method, tt.path, "")
				if tt.scope == "" || tt.scope == scope {
					if res.status != tt.status {
						t.Errorf("got %d %s, want %d", res.status, res.body, tt.status)
					}
					return
				}
				e := res.wantFault(t, 403, module.CodeACLDenied)
				details, _ := e["details"].(map[string]any)
				if details["reason"] != "scope" || details["scope"] != string(tt.scope) {
					t.Errorf("details %v", details)
				}
			})
		}
	}
}

// Who sent no token learns that one is wanted, who sent one what it lacks.
func TestWhatIsMissing(t *testing.T) {
	g := newGateway(t, withInvoker(answering(nil)), func(o *gateway.Options) { o.Auth = grants{} })
	for header, want := range map[string]string{
		"":         "this takes a token with the scope review, and none was sent",
		"Bearer x": "the caller's token lacks the scope review",
	} {
		var headers []string
		if header != "" {
			headers = []string{"Authorization: " + header}
		}
		e := record(g, "GET", "/v1/approvals", "", headers...).wantFault(t, 403, module.CodeACLDenied)
		if e["message"] != want {
			t.Errorf("%q: %v", header, e["message"])
		}
	}
}

func TestIdentityReachesTheCall(t *testing.T) {
	ana := module.NewIdentity("ana", "user", []string{"ops"}, map[string]any{"team": "pay"})
	var got *module.Identity
	g := newGateway(t, withInvoker(invoke(func(_ context.Context, req *contextwire.Request) (*contextwire.Reply, error) {
		got = req.Context.Identity()
		return &contextwire.Reply{}, nil
	})), func(o *gateway.Options) { o.Auth = grants{ana, gateway.Scopes()} })
	if res := record(g, "POST", callURL, ""); res.status != 200 {
		t.Fatalf("got %d %s", res.status, res.body)
	}
	if !got.Equal(ana) {
		t.Errorf("identity %v, want %v", got.Map(), ana.Map())
	}
}
