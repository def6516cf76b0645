package gateway_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/gateway"
	"github.com/apbus/apbus/module"
)

func limited(l gateway.Limits) func(*gateway.Options) {
	return func(o *gateway.Options) { o.Limits = l }
}

// object returns a JSON object of exactly size bytes.
func object(size int) string {
	const frame = len(`{"s":""}`)
	return `{"s":"` + strings.Repeat("x", size-frame) + `"}`
}

func TestBodyLimit(t *testing.T) {
	const limit = 1000
	url := serve(t, limited(gateway.Limits{MaxBody: limit}), withInvoker(answering(nil)))
	tests := []struct {
		name    string
		size    int
		chunked bool
		status  int
		details map[string]int64
	}{
		{"at the limit", limit, false, 200, nil},
		{"over it", limit + 1, false, 413, map[string]int64{"size": limit + 1, "limit": limit}},
		{"far over it", 100 * limit, false, 413, map[string]int64{"size": 100 * limit, "limit": limit}},
		{"of unknown length, at the limit", limit, true, 200, nil},
		{"of unknown length, over it", 100 * limit, true, 413, map[string]int64{"size": limit + 1, "limit": limit}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var body io.Reader = strings.NewReader(object(tt.size))
			if tt.chunked {
				body = io.MultiReader(body) // hides the length
			}
			res := send(t, t.Context(), "POST", url+callURL, body)
			if tt.status == 200 {
				if res.status != 200 {
					t.Errorf("got %d %s", res.status, res.body)
				}
				return
			}
			e := res.wantFault(t, tt.status, module.CodeBusPayloadTooLarge)
			details, _ := e["details"].(map[string]any)
			for key, want := range tt.details {
				if details[key] != want {
					t.Errorf("details.%s is %v (%T), want the integer %d", key, details[key], details[key], want)
				}
			}
		})
	}
}

// talk opens a connection, writes and hands over the reader of the answers.
func talk(t *testing.T, url, text string) (net.Conn, *bufio.Reader) {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	// A safety net only: a broken server must not hang the test.
	if err := conn.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(conn, text); err != nil {
		t.Fatal(err)
	}
	return conn, bufio.NewReader(conn)
}

func readResponse(t *testing.T, r *bufio.Reader) response {
	t.Helper()
	res, err := http.ReadResponse(r, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response{res.StatusCode, res.Header, string(body)}
}

// A length over the limit is refused although not one byte of the body is sent.
func TestAnnouncedBodyIsRefusedAtOnce(t *testing.T) {
	url := serve(t, limited(gateway.Limits{MaxBody: 1000}))
	_, r := talk(t, url, "POST "+callURL+" HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5000\r\n\r\n")
	res := readResponse(t, r)
	res.wantFault(t, 413, module.CodeBusPayloadTooLarge)
	if _, err := r.ReadByte(); err != io.EOF {
		t.Errorf("the connection stays open: %v", err)
	}
}

func TestSlowBodyIsRefused(t *testing.T) {
	url := serve(t, limited(gateway.Limits{BodyTimeout: 30 * time.Millisecond}))
	_, r := talk(t, url, "POST "+callURL+" HTTP/1.1\r\nHost: localhost\r\nContent-Length: 50\r\n\r\n{")
	readResponse(t, r).wantFault(t, 400, module.CodeBusBadMessage)
}

func TestBrokenOffBodyIsNoCall(t *testing.T) {
	var called atomic.Bool
	g := newGateway(t, withInvoker(invoke(func(context.Context, *contextwire.Request) (*contextwire.Reply, error) {
		called.Store(true)
		return &contextwire.Reply{}, nil
	})))
	url := serveGateway(t, g)
	conn, r := talk(t, url, "POST "+callURL+" HTTP/1.1\r\nHost: localhost\r\nContent-Length: 50\r\n\r\n{}")
	if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	readResponse(t, r).wantFault(t, 400, module.CodeBusBadMessage)
	if called.Load() {
		t.Error("half a body made a call")
	}
}

// The body deadline must not outlive the body: a call may take longer.
func TestBodyTimeoutDoesNotEndTheCall(t *testing.T) {
	const limit = 20 * time.Millisecond
	url := serve(t, limited(gateway.Limits{BodyTimeout: limit}), withInvoker(invoke(func(ctx context.Context, _ *contextwire.Request) (*contextwire.Reply, error) {
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(5 * limit):
			return &contextwire.Reply{}, nil
		}
	})))
	if res := request(t, "POST", url+callURL, "{}"); res.status != 200 {
		t.Errorf("got %d %s", res.status, res.body)
	}
}

func TestBodiesTogetherAreBounded(t *testing.T) {
	const limit = 4000
	// The smallest budget holds one body and 128 KiB.
	url := serve(t, limited(gateway.Limits{MaxBody: limit, MaxBodies: 1}), withInvoker(answering(nil)))
	head := fmt.Sprintf("POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\nExpect: 100-continue\r\n\r\n", callURL, limit)
	const fits = (limit + 128<<10) / limit
	readers := make([]*bufio.Reader, fits)
	conns := make([]net.Conn, fits)
	for i := range readers {
		conns[i], readers[i] = talk(t, url, head)
		// The server asks for the body once it holds room for it.
		if line, err := readers[i].ReadString('\n'); err != nil || !strings.Contains(line, "100") {
			t.Fatalf("body %d: %q, %v", i, line, err)
		}
		if _, err := readers[i].ReadString('\n'); err != nil {
			t.Fatal(err)
		}
	}
	_, r := talk(t, url, head)
	res := readResponse(t, r)
	res.wantFault(t, 429, module.CodeBusOverloaded)
	if res.header.Get("Retry-After") != "1" {
		t.Errorf("Retry-After %q", res.header.Get("Retry-After"))
	}
	// What is let go makes room again.
	for i := range readers {
		if _, err := io.WriteString(conns[i], object(limit)); err != nil {
			t.Fatal(err)
		}
		if res := readResponse(t, readers[i]); res.status != 200 {
			t.Errorf("body %d: %d %s", i, res.status, res.body)
		}
	}
	if res := request(t, "POST", url+callURL, object(limit)); res.status != 200 {
		t.Errorf("afterwards: %d %s", res.status, res.body)
	}
}
