package gateway_test

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/gateway"
	"github.com/apbus/apbus/module"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// invoke makes an Invoker of a function that only calls.
func invoke(f func(ctx context.Context, req *contextwire.Request) (*contextwire.Reply, error)) gateway.Invoker {
	return gateway.InvokerFuncs{InvokeFunc: f}
}

// answering is an Invoker that gives every call the same output.
func answering(output map[string]any) gateway.Invoker {
	return invoke(func(context.Context, *contextwire.Request) (*contextwire.Reply, error) {
		return &contextwire.Reply{Output: output, Node: "n1", Boot: "b1", Attempt: 1}, nil
	})
}

// failing is an Invoker whose calls and checks all fail.
func failing(err error) gateway.Invoker {
	return gateway.InvokerFuncs{
		InvokeFunc: func(context.Context, *contextwire.Request) (*contextwire.Reply, error) { return nil, err },
		CheckFunc:  func(context.Context, *contextwire.Request) (*module.PreflightResult, error) { return nil, err },
	}
}

// options are complete and do nothing.
func options(changes ...func(*gateway.Options)) gateway.Options {
	o := gateway.Options{
		Invoker: gateway.InvokerFuncs{}, Catalog: gateway.CatalogFunc(nil), Fleet: gateway.FleetFuncs{},
		Calls: gateway.CallsFuncs{}, Readiness: gateway.ReadyFunc(nil),
		Logger: slog.New(slog.DiscardHandler),
	}
	for _, change := range changes {
		change(&o)
	}
	return o
}

func withInvoker(i gateway.Invoker) func(*gateway.Options) {
	return func(o *gateway.Options) { o.Invoker = i }
}

func newGateway(t testing.TB, changes ...func(*gateway.Options)) *gateway.Gateway {
	t.Helper()
	g, err := gateway.New(options(changes...))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		over, stop := context.WithCancel(context.Background())
		stop()
		g.Close(over)
	})
	return g
}

// serve puts a gateway behind a real listener on loopback and returns its URL.
func serve(t testing.TB, changes ...func(*gateway.Options)) string {
	t.Helper()
	return serveGateway(t, newGateway(t, changes...))
}

func serveGateway(t testing.TB, g *gateway.Gateway) string {
	t.Helper()
	srv := httptest.NewUnstartedServer(nil)
	srv.Config = g.Server()
	srv.Start()
	t.Cleanup(srv.Close)
	return srv.URL
}

// response is an answer read to its end.
type response struct {
	status int
	header http.Header
	body   string
}

// fields decodes the body, which must be one JSON object.
func (r response) fields(t testing.TB) map[string]any {
	t.Helper()
	m, err := contextwire.DecodeMap(contextwire.JSON, []byte(r.body), contextwire.Limits{})
	if err != nil {
		t.Fatalf("body is no JSON object: %v\n%s", err, r.body)
	}
	return m
}

// fault returns the coded error of the body.
func (r response) fault(t testing.TB) map[string]any {
	t.Helper()
	m, ok := r.fields(t)["error"].(map[string]any)
	if !ok {
		t.Fatalf("status %d, body holds no error: %s", r.status, r.body)
	}
	return m
}

func (r response) wantFault(t testing.TB, status int, code module.Code) map[string]any {
	t.Helper()
	e := r.fault(t)
	if r.status != status || e["code"] != string(code) {
		t.Errorf("got %d %v, want %d %s\n%s", r.status, e["code"], status, code, r.body)
	}
	if got := r.header.Get("Content-Type"); got != "application/json" {
		t.Errorf("content type %q", got)
	}
	return e
}

// request sends one request. Headers are "Name: value" lines; a body without a
// Content-Type is sent as JSON.
func request(t testing.TB, method, url, body string, headers ...string) response {
	t.Helper()
	return send(t, t.Context(), method, url, strings.NewReader(body), headers...)
}

func send(t testing.TB, ctx context.Context, method, url string, body io.Reader, headers ...string) response {
	t.Helper()
	res, err := trySend(ctx, method, url, body, headers...)
	if err != nil {
		t.Fatal(err)
	}
	return res
}

func trySend(ctx context.Context, method, url string, body io.Reader, headers ...string) (response, error) {
	req, err := http.NewRequestWithContext(ctx, method, url, body)
	if err != nil {
		return response{}, err
	}
	req.Header.Set("Content-Type", "application/json")
	for _, line := range headers {
		name, value, _ := strings.Cut(line, ":")
		if value = strings.TrimSpace(value); name == "Host" {
			req.Host = value
			continue
		}
		if name == "Content-Type" {
			req.Header.Del(name)
		}
		req.Header.Add(name, value)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return response{}, err
	}
	defer res.Body.Close()
	content, err := io.ReadAll(res.Body)
	return response{res.StatusCode, res.Header, string(content)}, err
}

// record serves one request without a network, as from a peer on loopback.
func record(h http.Handler, method, target, body string, headers ...string) response {
	r := httptest.NewRequest(method, target, strings.NewReader(body))
	r.RemoteAddr, r.Host = "127.0.0.1:5000", "localhost"
	r.Header.Set("Content-Type", "application/json")
	for _, line := range headers {
		name, value, _ := strings.Cut(line, ":")
		r.Header.Add(name, strings.TrimSpace(value))
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return response{w.Code, w.Header(), w.Body.String()}
}

// golden compares a JSON body, made readable, with a file.
func golden(t *testing.T, name, body string) {
	t.Helper()
	var pretty bytes.Buffer
	if err := json.Indent(&pretty, []byte(body), "", "  "); err != nil {
		t.Fatalf("body is no JSON: %v\n%s", err, body)
	}
	pretty.WriteByte('\n')
	path := filepath.Join("testdata", name+".json")
	if *update {
		if err := os.WriteFile(path, pretty.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), pretty.String()); diff != "" {
		t.Errorf("%s (-want +got):\n%s", path, diff)
	}
}

func TestNewRefusesWhatIsMissing(t *testing.T) {
	tests := []struct {
		name   string
		change func(*gateway.Options)
		want   string
	}{
		{"invoker", func(o *gateway.Options) { o.Invoker = nil }, "Invoker"},
		{"catalog", func(o *gateway.Options) { o.Catalog = nil }, "Catalog"},
		{"fleet", func(o *gateway.Options) { o.Fleet = nil }, "Fleet"},
		{"calls", func(o *gateway.Options) { o.Calls = nil }, "Calls"},
		{"readiness", func(o *gateway.Options) { o.Readiness = nil }, "Readiness"},
		{"limit", func(o *gateway.Options) { o.Limits.MaxDetached = -1 }, "negative"},
		{"duration", func(o *gateway.Options) { o.Limits.OutcomeTTL = -time.Second }, "negative"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := gateway.New(options(tt.change))
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want an error with %q", err, tt.want)
			}
		})
	}
}

func TestUnroutedRequests(t *testing.T) {
	url := serve(t)
	tests := []struct {
		name, method, path string
		status             int
		code               module.Code
		allow              string
	}{
		{"unknown path", "GET", "/v2/modules", 404, gateway.CodeNotFound, ""},
		{"unknown below a known one", "GET", "/v1/modules/a.b/run", 404, gateway.CodeNotFound, ""},
		{"root", "GET", "/", 404, gateway.CodeNotFound, ""},
		{"wrong method", "PUT", "/v1/calls", 405, gateway.CodeMethodNotAllowed, "GET, HEAD, DELETE"},
		{"call by GET", "GET", "/v1/modules/a.b/call", 405, gateway.CodeMethodNotAllowed, "POST"},
		{"preflight of a browser", "OPTIONS", "/v1/modules/a.b/call", 405, gateway.CodeMethodNotAllowed, "POST"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			res := request(t, tt.method, url+tt.path, "")
			res.wantFault(t, tt.status, tt.code)
			if got := res.header.Get("Allow"); got != tt.allow {
				t.Errorf("Allow %q, want %q", got, tt.allow)
			}
		})
	}
}

func TestEveryAnswerForbidsSniffingAndCaching(t *testing.T) {
	url := serve(t)
	for _, path := range []string{"/healthz", "/nowhere", "/v1/modules", "/openapi.json"} {
		res := request(t, "GET", url+path, "")
		if res.header.Get("X-Content-Type-Options") != "nosniff" || res.header.Get("Cache-Control") != "no-store" {
			t.Errorf("%s: headers %v", path, res.header)
		}
	}
}

func TestPanickingPortIsAnInternalError(t *testing.T) {
	var logs bytes.Buffer
	url := serve(t, withInvoker(invoke(func(context.Context, *contextwire.Request) (*contextwire.Reply, error) {
		panic("secret thing")
	})), func(o *gateway.Options) { o.Logger = slog.New(slog.NewJSONHandler(&logs, nil)) })
	res := request(t, "POST", url+"/v1/modules/a.b/call", "{}")
	e := res.wantFault(t, 500, module.CodeInternal)
	if strings.Contains(res.body, "secret thing") {
		t.Errorf("the panic shows outside: %s", res.body)
	}
	if e["trace_id"] == nil {
		t.Errorf("no trace id: %s", res.body)
	}
	if !strings.Contains(logs.String(), "secret thing") || !strings.Contains(logs.String(), fmt.Sprint(e["trace_id"])) {
		t.Errorf("the log lacks the panic or the trace id:\n%s", logs.String())
	}
}
