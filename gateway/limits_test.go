package gateway_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/gateway"
	"github.com/apbus/apbus/module"
)

func TestHeaderLimit(t *testing.T) {
	url := serve(t, limited(gateway.Limits{MaxHeader: 2000}), withInvoker(answering(nil)))
	tests := []struct {
		name    string
		path    string
		headers []string
		refused bool
	}{
		{"ordinary", callURL, nil, false},
		{"one large header", callURL, []string{"X-Large: " + strings.Repeat("x", 2000)}, true},
		{"many small headers", callURL, strings.Split(strings.Repeat("X-Small: abcdefghij,", 100), ",")[:100], true},
		{"long path", "/v1/modules?q=" + strings.Repeat("x", 2000), nil, true},
		{"just below", callURL, []string{"X-Large: " + strings.Repeat("x", 1700)}, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			method := "POST"
			if strings.Contains(tt.path, "?") {
				method = "GET"
			}
			res := request(t, method, url+tt.path, "", tt.headers...)
			if !tt.refused {
				if res.status != 200 {
					t.Errorf("got %d %s", res.status, res.body)
				}
				return
			}
			e := res.wantFault(t, 431, gateway.CodeHeaderTooLarge)
			details, _ := e["details"].(map[string]any)
			if size, _ := details["size"].(int64); size <= 2000 || details["limit"] != int64(2000) {
				t.Errorf("details %v", details)
			}
		})
	}
	t.Run("far beyond", func(t *testing.T) {
		if res := request(t, "POST", url+callURL, "", "X-Huge: "+strings.Repeat("x", 100_000)); res.status != 431 {
			t.Errorf("got %d", res.status)
		}
	})
}

func TestSlowHeadersEndTheConnection(t *testing.T) {
	url := serve(t, limited(gateway.Limits{ReadHeaderTimeout: 20 * time.Millisecond}))
	_, r := talk(t, url, "GET /healthz HTTP/1.1\r\nHost: local")
	if line, err := r.ReadString('\n'); err == nil && !strings.Contains(line, "408") {
		t.Errorf("got %q, want the end of the connection", line)
	}
}

// A gateway that is full of calls still answers who looks and cancels.
func TestConcurrencyLimit(t *testing.T) {
	const limit = 2
	started, release := make(chan struct{}, limit), make(chan struct{})
	url := serve(t, limited(gateway.Limits{MaxRequests: limit}), withInvoker(invoke(func(context.Context, *contextwire.Request) (*contextwire.Reply, error) {
		started <- struct{}{}
		<-release
		return &contextwire.Reply{}, nil
	})))
	ends := make(chan int, limit)
	for range limit {
		go func() {
			res, err := trySend(context.Background(), "POST", url+callURL, strings.NewReader("{}"))
			if err != nil {
				res.status = -1
			}
			ends <- res.status
		}()
	}
	for range limit {
		<-started
	}
	for _, kind := range []string{"call", "check"} {
		e := request(t, "POST", url+"/v1/modules/a.b/"+kind, "{}").wantFault(t, 429, module.CodeBusOverloaded)
		if e["retryable"] != true {
			t.Errorf("%s: retryable %v", kind, e["retryable"])
		}
	}
	for _, path := range []string{"/healthz", "/readyz", "/v1/modules", "/v1/calls", "/v1/nodes"} {
		if res := request(t, "GET", url+path, ""); res.status != 200 {
			t.Errorf("%s: %d %s", path, res.status, res.body)
		}
	}
	request(t, "DELETE", url+"/v1/calls/0123456789abcdef", "").wantFault(t, 404, gateway.CodeNotFound)
	close(release)
	for range limit {
		if status := <-ends; status != 200 {
			t.Errorf("an admitted call ended with %d", status)
		}
	}
	if res := request(t, "POST", url+callURL, "{}"); res.status != 200 {
		t.Errorf("afterwards: %d %s", res.status, res.body)
	}
}

func TestControlRequestsAreBoundedToo(t *testing.T) {
	started, release := make(chan struct{}), make(chan struct{})
	url := serve(t, limited(gateway.Limits{MaxRequests: 1}), func(o *gateway.Options) {
		o.Calls = gateway.CallsFuncs{CallsFunc: func(context.Context) ([]contextwire.CallRecord, error) {
			started <- struct{}{}
			<-release
			return nil, nil
		}}
	})
	end := make(chan error, 1)
	go func() {
		_, err := trySend(context.Background(), "GET", url+"/v1/calls", strings.NewReader(""))
		end <- err
	}()
	<-started
	request(t, "GET", url+"/v1/modules", "").wantFault(t, 429, module.CodeBusOverloaded)
	if res := request(t, "GET", url+"/healthz", ""); res.status != 200 {
		t.Errorf("healthz: %d", res.status)
	}
	close(release)
	if err := <-end; err != nil {
		t.Error(err)
	}
}

func TestSameOrigin(t *testing.T) {
	url := serve(t, withInvoker(answering(nil)))
	host := strings.TrimPrefix(url, "http://")
	tests := []struct {
		name    string
		method  string
		path    string
		headers []string
		refused bool
	}{
		{"a program", "POST", callURL, nil, false},
		{"our own page", "POST", callURL, []string{"Sec-Fetch-Site: same-origin", "Origin: " + url}, false},
		{"typed by the person", "POST", callURL, []string{"Sec-Fetch-Site: none"}, false},
		{"another site", "POST", callURL, []string{"Sec-Fetch-Site: cross-site", "Origin: https://evil.example"}, true},
		{"another subdomain", "POST", callURL, []string{"Sec-Fetch-Site: same-site"}, true},
		{"an older browser, our page", "POST", callURL, []string{"Origin: http://" + host}, false},
		{"an older browser, another page", "POST", callURL, []string{"Origin: https://evil.example"}, true},
		{"a sandboxed page", "POST", callURL, []string{"Origin: null"}, true},
		{"cancelling", "DELETE", "/v1/calls/0123456789abcdef", []string{"Sec-Fetch-Site: cross-site"}, true},
		{"draining", "POST", "/v1/nodes/n1/drain", []string{"Sec-Fetch-Site: cross-site"}, true},
		{"reading changes nothing", "GET", "/v1/modules", []string{"Sec-Fetch-Site: cross-site"}, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			res := request(t, tt.method, url+tt.path, "", tt.headers...)
			if !tt.refused {
				if res.status != 200 {
					t.Errorf("got %d %s", res.status, res.body)
				}
				return
			}
			e := res.wantFault(t, 403, module.CodeACLDenied)
			if details, _ := e["details"].(map[string]any); details["reason"] != "cross_origin" {
				t.Errorf("details %v", e["details"])
			}
		})
	}
}
