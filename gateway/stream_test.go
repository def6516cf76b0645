package gateway_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/apbus/apbus/cancel"
	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/gateway"
	"github.com/apbus/apbus/module"
)

const streamURL = "/v1/modules/text.words/stream"

type streamFunc = func(ctx context.Context, req *contextwire.Request, send func(module.Chunk) error) (*contextwire.Reply, error)

func withStreamer(f streamFunc) func(*gateway.Options) {
	return func(o *gateway.Options) { o.Streamer = gateway.StreamerFunc(f) }
}

// sse is one event, or a comment.
type sse struct{ Name, ID, Data, Comment string }

// readEvent reads one event or comment.
func readEvent(r *bufio.Reader) (e sse, err error) {
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			return e, err
		}
		line = strings.TrimSuffix(line, "\n")
		switch name, value, _ := strings.Cut(line, ": "); {
		case line == "":
			return e, nil
		case strings.HasPrefix(line, ":"):
			e.Comment = strings.TrimSpace(line[1:])
		case name == "event":
			e.Name = value
		case name == "id":
			e.ID = value
		case name == "data":
			e.Data += value
		default:
			return e, fmt.Errorf("line %q is none of an event", line)
		}
	}
}

func eventsOf(t testing.TB, body string) []sse {
	t.Helper()
	var list []sse
	for r := bufio.NewReader(strings.NewReader(body)); ; {
		e, err := readEvent(r)
		if errors.Is(err, io.EOF) {
			return list
		}
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, e)
	}
}

// acceptOf takes the call and trace IDs, which differ every time, out of the event.
func acceptOf(t testing.TB, e *sse) {
	t.Helper()
	m, err := contextwire.DecodeMap(contextwire.JSON, []byte(e.Data), contextwire.Limits{})
	if err != nil || e.Name != "accept" || !contextwire.ValidCallID(fmt.Sprint(m["call"])) || !module.ValidTraceID(fmt.Sprint(m["trace_id"])) {
		t.Errorf("first event %+v, %v", e, err)
	}
	e.Data = fmt.Sprintf("%v.%v", m["node"], m["boot"])
}

func TestStream(t *testing.T) {
	var got *contextwire.Request
	url := serve(t, withStreamer(func(_ context.Context, req *contextwire.Request, send func(module.Chunk) error) (*contextwire.Reply, error) {
		got = req
		req.Accepted("n1", "b1")
		req.Progress(module.ProgressReport{Done: 1, Total: 2, Note: "half"})
		for i := range 2 {
			if err := send(module.Chunk{"index": int64(i), "word": "w\n"}); err != nil {
				return nil, err
			}
		}
		req.Progress(module.ProgressReport{Done: 2})
		return &contextwire.Reply{Output: map[string]any{"count": int64(2)}, Node: "n1", Boot: "b1"}, nil
	}))
	res := request(t, "POST", url+streamURL, `{"text":"w w"}`, "Apbus-Timeout: 5s", "Apbus-Approval: tok", "Idempotency-Key: k")
	if res.status != 200 || res.header.Get("Content-Type") != "text/event-stream" || res.header.Get("Apbus-Node") != "n1.b1" || res.header.Get("Apbus-Call") != got.CallID {
		t.Errorf("got %d %v", res.status, res.header)
	}
	events := eventsOf(t, res.body)
	acceptOf(t, &events[0])
	want := []sse{
		{Name: "accept", Data: "n1.b1"},
		{Name: "progress", Data: `{"done":1.0,"note":"half","total":2.0}`},
		{Name: "data", ID: "0", Data: `{"index":0,"word":"w\n"}`},
		{Name: "data", ID: "1", Data: `{"index":1,"word":"w\n"}`},
		{Name: "progress", Data: `{"done":2.0}`},
		{Name: "end", ID: "2", Data: `{"count":2}`},
	}
	if diff := cmp.Diff(want, events); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
	if !got.Stream || got.Budget != 5*time.Second || got.Inputs["_approval_token"] != "tok" || got.IdempotencyKey != "k" {
		t.Errorf("request %+v", got)
	}
}

// A module that does not stream is called plainly: its output goes out once.
func TestStreamOfAPlainModule(t *testing.T) {
	url := serve(t, func(o *gateway.Options) {
		o.Catalog = gateway.CatalogFunc(func() []gateway.Module {
			return []gateway.Module{{Descriptor: module.Descriptor{ID: "math.add"}}}
		})
	}, withInvoker(invoke(func(_ context.Context, req *contextwire.Request) (*contextwire.Reply, error) {
		req.Progress(module.ProgressReport{Done: 1})
		return &contextwire.Reply{Output: map[string]any{"sum": int64(3)}, Node: "n1", Boot: "b1"}, nil
	})))
	events := eventsOf(t, request(t, "POST", url+"/v1/modules/math.add/stream", `{}`).body)
	acceptOf(t, &events[0])
	want := []sse{{Name: "accept", Data: "<nil>.<nil>"}, {Name: "progress", Data: `{"done":1.0}`}, {Name: "end", ID: "0", Data: `{"sum":3}`}}
	if diff := cmp.Diff(want, events); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}

// What fails before the first event is a plain error with its status, also when the
// owner had taken the call.
func TestStreamRefused(t *testing.T) {
	for _, tt := range []struct {
		name, path, body string
		headers          []string
		err              error
		status           int
		code             module.Code
	}{
		{"unknown module", streamURL, "", nil, module.Errorf(module.CodeModuleNotFound, "no"), 404, module.CodeModuleNotFound},
		{"denied", streamURL, "", nil, module.Errorf(module.CodeACLDenied, "no"), 403, module.CodeACLDenied},
		{"waits for a person", streamURL, "", nil, module.Errorf(module.CodeApprovalPending, "no"), 202, module.CodeApprovalPending},
		{"a failure of ours", streamURL, "", nil, errors.New("SECRET"), 500, module.CodeInternal},
		{"bad ID", "/v1/modules/Bad/stream", "", nil, nil, 400, module.CodeInvalidModuleID},
		{"bad body", streamURL, "[", nil, nil, 400, module.CodeBusBadMessage},
		{"bad header", streamURL, "", []string{"Apbus-Timeout: soon"}, nil, 400, module.CodeInvalidInput},
		{"detached", streamURL, "", []string{"Prefer: respond-async"}, nil, 400, module.CodeInvalidInput},
		{"unknown node", streamURL, "", []string{"Apbus-Node: n9"}, nil, 404, gateway.CodeNotFound},
	} {
		t.Run(tt.name, func(t *testing.T) {
			url := serve(t, withStreamer(func(_ context.Context, req *contextwire.Request, _ func(module.Chunk) error) (*contextwire.Reply, error) {
				if tt.err == nil {
					t.Error("the call was made")
				}
				req.Accepted("n1", "b1")
				return nil, tt.err
			}))
			res := request(t, "POST", url+tt.path, tt.body, tt.headers...)
			res.wantFault(t, tt.status, tt.code)
			if strings.Contains(res.body, "SECRET") {
				t.Errorf("the cause shows: %s", res.body)
			}
		})
	}
}

func TestStreamFailsAfterItBegan(t *testing.T) {
	url := serve(t, withStreamer(func(_ context.Context, _ *contextwire.Request, send func(module.Chunk) error) (*contextwire.Reply, error) {
		if err := send(module.Chunk{}); err != nil {
			return nil, err
		}
		return &contextwire.Reply{Trace: someTrace("ABC_FAILED")}, module.Errorf("ABC_FAILED", "no more").WithRetryable(module.True)
	}))
	events := eventsOf(t, request(t, "POST", url+streamURL, "", "Apbus-Trace: 1").body)
	if len(events) != 4 || events[1].Name != "data" || events[2].Name != "trace" || events[3].Name != "error" {
		t.Fatalf("events %+v", events)
	}
	e := response{body: events[3].Data}.fault(t)
	if e["code"] != "ABC_FAILED" || e["message"] != "no more" || e["retryable"] != true || e["trace_id"] == nil {
		t.Errorf("error %v", e)
	}
}

// Accept does not wait for the module's first word.
func TestStreamTellsWhoHasTheCall(t *testing.T) {
	url := serve(t, withStreamer(func(ctx context.Context, req *contextwire.Request, _ func(module.Chunk) error) (*contextwire.Reply, error) {
		req.Accepted("n1", "b1")
		<-ctx.Done()
		return nil, context.Cause(ctx)
	}))
	r, _ := openStream(t, url)
	e, err := readEvent(r)
	if acceptOf(t, &e); err != nil || e.Data != "n1.b1" {
		t.Errorf("event %+v, %v", e, err)
	}
}

// openStream begins a stream and returns its body; stop closes the connection.
func openStream(t testing.TB, url string) (r *bufio.Reader, stop func()) {
	t.Helper()
	ctx, cancelRequest := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, "POST", url+streamURL, nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	if res.StatusCode != 200 {
		t.Fatalf("status %d", res.StatusCode)
	}
	stop = func() {
		cancelRequest()
		_ = res.Body.Close()
	}
	t.Cleanup(stop)
	return bufio.NewReader(res.Body), stop
}

func TestHeartbeat(t *testing.T) {
	release := make(chan struct{})
	url := serve(t, limited(gateway.Limits{Heartbeat: 5 * time.Millisecond}), withStreamer(func(_ context.Context, _ *contextwire.Request, send func(module.Chunk) error) (*contextwire.Reply, error) {
		<-release
		return &contextwire.Reply{}, send(module.Chunk{"a": int64(1)})
	}))
	r, _ := openStream(t, url)
	for range 3 {
		if e, err := readEvent(r); err != nil || e != (sse{Comment: "alive"}) {
			t.Fatalf("event %+v, %v", e, err)
		}
	}
	close(release)
	var names []string
	for {
		e, err := readEvent(r)
		if err != nil {
			break
		}
		if e.Name != "" {
			names = append(names, e.Name)
		}
	}
	if diff := cmp.Diff([]string{"accept", "data", "end"}, names); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}

// endless sends large chunks for as long as they are taken and tells why it ended.
func endless(ended chan<- error) streamFunc {
	return func(ctx context.Context, _ *contextwire.Request, send func(module.Chunk) error) (*contextwire.Reply, error) {
		chunk := module.Chunk{"text": strings.Repeat("x", 256<<10)}
		for {
			if err := send(chunk); err != nil {
				ended <- err
				return nil, err
			}
			if ctx.Err() != nil {
				ended <- context.Cause(ctx)
				return nil, context.Cause(ctx)
			}
		}
	}
}

func wantEnd(t *testing.T, ended <-chan error, want cancel.Reason) {
	t.Helper()
	select {
	case err := <-ended:
		if got := cancel.ReasonOf(err); got != want {
			t.Errorf("ended for %q (%v), want %q", got, err, want)
		}
	case <-time.After(10 * time.Second):
		t.Error("the call goes on")
	}
}

func TestClosingTheConnectionEndsTheStream(t *testing.T) {
	ended := make(chan error, 1)
	url := serve(t, withStreamer(endless(ended)))
	r, stop := openStream(t, url)
	if _, err := readEvent(r); err != nil {
		t.Fatal(err)
	}
	stop()
	wantEnd(t, ended, cancel.Caller)
}

// A reader that takes nothing is held for a while, and holds nobody else.
func TestAReaderThatStopsHoldsOnlyItself(t *testing.T) {
	ended := make(chan error, 1)
	url := serve(t, limited(gateway.Limits{StreamStall: 300 * time.Millisecond}), withStreamer(endless(ended)), withInvoker(answering(nil)))
	openStream(t, url) // and never reads
	for range 20 {
		if res := request(t, "POST", url+callURL, "{}"); res.status != 200 {
			t.Errorf("another call: %d %s", res.status, res.body)
		}
	}
	wantEnd(t, ended, cancel.Caller)
}

// Cancelling a call whose reader takes nothing does not wait for the reader.
func TestAStalledStreamCanBeCancelled(t *testing.T) {
	ended, calls := make(chan error, 1), make(chan string, 1)
	run := endless(ended)
	url := serve(t, withStreamer(func(ctx context.Context, req *contextwire.Request, send func(module.Chunk) error) (*contextwire.Reply, error) {
		calls <- req.CallID
		return run(ctx, req, send)
	}))
	openStream(t, url)
	if res := request(t, "DELETE", url+"/v1/calls/"+<-calls, ""); res.status != 202 {
		t.Errorf("cancel: %d %s", res.status, res.body)
	}
	wantEnd(t, ended, cancel.Caller)
}

// A connection serves the next request after a stream as if nothing had been.
func TestAConnectionOutlivesItsStream(t *testing.T) {
	const stall = 50 * time.Millisecond
	url := serve(t, limited(gateway.Limits{StreamStall: stall}), withInvoker(invoke(func(context.Context, *contextwire.Request) (*contextwire.Reply, error) {
		<-time.After(2 * stall)
		return &contextwire.Reply{Output: map[string]any{}}, nil
	})), withStreamer(func(_ context.Context, _ *contextwire.Request, send func(module.Chunk) error) (*contextwire.Reply, error) {
		return &contextwire.Reply{}, send(module.Chunk{})
	}))
	conn, r := talk(t, url, "")
	for _, path := range []string{streamURL, callURL} {
		if _, err := fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n", path); err != nil {
			t.Fatal(err)
		}
		res, err := http.ReadResponse(r, nil)
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		if _, err := io.Copy(io.Discard, res.Body); err != nil || res.StatusCode != 200 {
			t.Errorf("%s: %d, %v", path, res.StatusCode, err)
		}
	}
}

func someTrace(code string) map[string]any {
	trace := map[string]any{
		"module_id": "math.add", "strategy_name": "standard", "total_duration_ms": 1.5, "success": code == "", "error": nil,
		"steps": []any{map[string]any{"name": "execute", "duration_ms": 1.0}},
	}
	if code != "" {
		trace["error"] = map[string]any{"code": code, "message": "SECRET", "timestamp": "2026-11-30T10:00:00.000Z"}
		trace["remote"] = map[string]any{"error": trace["error"]}
	}
	return trace
}

func TestTraceOfACall(t *testing.T) {
	for _, tt := range []struct {
		name    string
		headers []string
		code    module.Code
		status  int
		traced  bool
	}{
		{"not asked for", nil, "", 200, false},
		{"switched off", []string{"Apbus-Trace: 0"}, "", 200, false},
		{"asked for", []string{"Apbus-Trace: 1"}, "", 200, true},
		{"asked for, failed", []string{"Apbus-Trace: 1"}, module.CodeInternal, 500, true},
		{"nonsense", []string{"Apbus-Trace: yes"}, "", 400, false},
		{"nonsense of one letter", []string{"Apbus-Trace: y"}, "", 400, false},
		{"detached", []string{"Apbus-Trace: 1", "Prefer: respond-async"}, "", 400, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			url := serve(t, withInvoker(invoke(func(_ context.Context, req *contextwire.Request) (*contextwire.Reply, error) {
				reply := &contextwire.Reply{Output: map[string]any{"sum": int64(3)}}
				if req.Trace {
					reply.Trace = someTrace(string(tt.code))
				}
				if tt.code != "" {
					return reply, module.Errorf(tt.code, "SECRET")
				}
				return reply, nil
			})))
			res := request(t, "POST", url+callURL, "{}", tt.headers...)
			if res.status != tt.status || strings.Contains(res.body, "SECRET") {
				t.Fatalf("got %d %s", res.status, res.body)
			}
			body := res.fields(t)
			trace, _ := body["trace"].(map[string]any)
			switch {
			case tt.status == 400:
			case !tt.traced && res.body != `{"sum":3}`:
				t.Errorf("got %s, want the bare output", res.body)
			case tt.traced && tt.code == "" && body["output"].(map[string]any)["sum"] != int64(3):
				t.Errorf("output %v", body["output"])
			case tt.traced && trace["module_id"] != "math.add":
				t.Errorf("trace %v", trace)
			case tt.code != "" && (trace["error"].(map[string]any)["code"] != string(tt.code) || body["error"] == nil):
				t.Errorf("answer %v", body)
			}
		})
	}
}

// A trace that has no JSON form costs nobody the answer.
func TestABrokenTraceIsLeftOut(t *testing.T) {
	url := serve(t, withInvoker(invoke(func(context.Context, *contextwire.Request) (*contextwire.Reply, error) {
		return &contextwire.Reply{Output: map[string]any{}, Trace: map[string]any{"f": func() {}}}, nil
	})))
	if res := request(t, "POST", url+callURL, "{}", "Apbus-Trace: 1"); res.status != 200 || res.body != `{"output":{},"trace":null}` {
		t.Errorf("got %d %s", res.status, res.body)
	}
}

func TestACallMayNameItsNode(t *testing.T) {
	var got string
	url := serve(t, func(o *gateway.Options) { o.Fleet = gateway.FleetFuncs{NodesFunc: someNodes} }, withInvoker(gateway.InvokerFuncs{
		InvokeFunc: func(_ context.Context, req *contextwire.Request) (*contextwire.Reply, error) {
			got = "call on " + req.Node
			return &contextwire.Reply{}, nil
		},
		CheckFunc: func(_ context.Context, req *contextwire.Request) (*module.PreflightResult, error) {
			got = "check on " + req.Node
			return &module.PreflightResult{}, nil
		},
	}))
	for _, kind := range []string{"call", "check"} {
		if res := request(t, "POST", url+"/v1/modules/a.b/"+kind, "{}", "Apbus-Node: n1"); res.status != 200 || got != kind+" on n1" {
			t.Errorf("%s: %d %s, %q", kind, res.status, res.body, got)
		}
		got = ""
		e := request(t, "POST", url+"/v1/modules/a.b/"+kind, "{}", "Apbus-Node: n9").wantFault(t, 404, gateway.CodeNotFound)
		if details, _ := e["details"].(map[string]any); details["node"] != "n9" || got != "" {
			t.Errorf("%s on an unknown node: %v, %q", kind, e, got)
		}
	}
}
