package integration_test

import (
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"
)

// receiver takes spans as any OTLP receiver over HTTP does.
type receiver struct {
	*httptest.Server

	mu    sync.Mutex
	spans []received
}

// received is a span with the process that sent it.
type received struct {
	*tracepb.Span
	from string
}

func newReceiver(t *testing.T) *receiver {
	t.Helper()
	r := &receiver{}
	r.Server = httptest.NewServer(http.HandlerFunc(r.serve))
	t.Cleanup(r.Close)
	return r
}

func (r *receiver) serve(w http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(req.Body)
	var export collector.ExportTraceServiceRequest
	if err == nil {
		err = proto.Unmarshal(body, &export)
	}
	if err != nil || req.URL.Path != "/v1/traces" || req.Header.Get("Content-Type") != "application/x-protobuf" {
		http.Error(w, fmt.Sprint("not OTLP: ", err), http.StatusBadRequest)
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, of := range export.GetResourceSpans() {
		from := attributes(of.GetResource().GetAttributes())
		name := from["service.name"]
		if name == "apbus-node" {
			name = from["service.instance.id"]
		}
		for _, scope := range of.GetScopeSpans() {
			for _, s := range scope.GetSpans() {
				r.spans = append(r.spans, received{s, name})
			}
		}
	}
}

func attributes(list []*commonpb.KeyValue) map[string]string {
	out := map[string]string{}
	for _, kv := range list {
		switch v := kv.GetValue().GetValue().(type) {
		case *commonpb.AnyValue_StringValue:
			out[kv.GetKey()] = v.StringValue
		case *commonpb.AnyValue_IntValue:
			out[kv.GetKey()] = fmt.Sprint(v.IntValue)
		case *commonpb.AnyValue_BoolValue:
			out[kv.GetKey()] = fmt.Sprint(v.BoolValue)
		}
	}
	return out
}

// trace returns the spans of one trace.
func (r *receiver) trace(id string) []received {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []received
	for _, s := range r.spans {
		if hex.EncodeToString(s.GetTraceId()) == id {
			out = append(out, s)
		}
	}
	return out
}

// tree shows who is below whom, spans of steps left out.
func tree(spans []received, parent, indent string) string {
	var b strings.Builder
	for _, s := range spans {
		if hex.EncodeToString(s.GetParentSpanId()) != parent || strings.HasPrefix(s.GetName(), "apcore.step.") {
			continue
		}
		attrs := attributes(s.GetAttributes())
		line := s.from + " " + s.GetName() + " " + strings.TrimPrefix(s.GetKind().String(), "SPAN_KIND_")
		for _, key := range []string{"module_id", "caller_id", "error_code"} {
			if v := attrs[key]; v != "" {
				line += " " + v
			}
		}
		b.WriteString(indent + line + "\n" + tree(spans, hex.EncodeToString(s.GetSpanId()), indent+" "))
	}
	return b.String()
}

// TestOneTrace follows a call through the router and both nodes, by what an OTLP
// receiver is sent.
func TestOneTrace(t *testing.T) {
	to := newReceiver(t)
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", to.URL)
	t.Setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
	s := startSystem(t)
	s.startNodes([]string{"n1", "near,demo", "--trace-steps"}, []string{"n2", "far"})

	const id, above = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
	a := s.call("near.chain", twoCrossings, "traceparent: 00-"+id+"-"+above+"-01")
	if a.status != http.StatusOK {
		t.Fatalf("call: %v", a)
	}
	want := strings.Join([]string{
		"apbus-router POST /v1/modules/{id}/call SERVER",
		" apbus-router apbus.call CLIENT near.chain",
		"  n1 apbus.serve SERVER near.chain",
		"   n1 apcore.module.execute INTERNAL near.chain",
		"    n1 apbus.call CLIENT far.chain",
		"     n2 apbus.serve SERVER far.chain",
		"      n2 apcore.module.execute INTERNAL far.chain near.chain",
		"       n2 apbus.call CLIENT near.whoami",
		"        n1 apbus.serve SERVER near.whoami",
		"         n1 apcore.module.execute INTERNAL near.whoami far.chain",
		"",
	}, "\n")
	eventually(t, startLimit, "the whole trace has come", func() bool { return tree(to.trace(id), above, "") == want })

	steps := map[string]string{}
	names := map[string]string{}
	for _, span := range to.trace(id) {
		names[hex.EncodeToString(span.GetSpanId())] = span.GetName()
	}
	for _, span := range to.trace(id) {
		if step, ok := strings.CutPrefix(span.GetName(), "apcore.step."); ok {
			if span.from != "n1" {
				t.Errorf("a span of step %s from %s", step, span.from)
			}
			steps[step] = names[hex.EncodeToString(span.GetParentSpanId())]
		}
	}
	if steps["acl_check"] != "apbus.serve" || steps["execute"] != "apcore.module.execute" {
		t.Errorf("steps below their spans: %v", steps)
	}

	// What fails says so on every span, by its code.
	const other = "00000000000000000000000000abcdef"
	if a := s.call("demo.fail", `{"code":"DEMO_FAILED","message":"secret"}`, "traceparent: 00-"+other+"-"+above+"-01"); a.status < 400 {
		t.Fatalf("demo.fail: %v", a)
	}
	failed := strings.Join([]string{
		"apbus-router POST /v1/modules/{id}/call SERVER",
		" apbus-router apbus.call CLIENT demo.fail DEMO_FAILED",
		"  n1 apbus.serve SERVER demo.fail DEMO_FAILED",
		"   n1 apcore.module.execute INTERNAL demo.fail DEMO_FAILED",
		"",
	}, "\n")
	eventually(t, startLimit, "the failure has come", func() bool { return tree(to.trace(other), above, "") == failed })
	for _, span := range to.trace(other) {
		if strings.Contains(span.String(), "secret") {
			t.Errorf("a span quotes the message: %v", span)
		}
	}

	// A trace that its caller does not sample is not sent.
	const quiet = "000000000000000000000000000fade0"
	s.call("near.whoami", `{}`, "traceparent: 00-"+quiet+"-"+above+"-00")
	s.call("near.whoami", `{}`, "traceparent: 00-"+"000000000000000000000000000fade1"+"-"+above+"-01")
	eventually(t, startLimit, "the next trace has come", func() bool { return len(to.trace("000000000000000000000000000fade1")) > 0 })
	if spans := to.trace(quiet); len(spans) > 0 {
		t.Errorf("%d spans of a trace that is not sampled", len(spans))
	}

	// Without traceparent the trace begins at the router, and has no parent that
	// nobody knows.
	a = s.call("near.whoami", `{}`)
	trace, _ := a.doc["trace_id"].(string)
	eventually(t, startLimit, "the router's own trace has come", func() bool {
		return strings.Count(tree(to.trace(trace), "", ""), "\n") == 4
	})
}

// scrape returns the samples of a metrics page, without those of the Go runtime.
func scrape(t *testing.T, url string) map[string]string {
	t.Helper()
	res, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != http.StatusOK {
		t.Fatalf("%s: %d %v", url, res.StatusCode, err)
	}
	samples := map[string]string{}
	for line := range strings.Lines(string(body)) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), " "); ok && strings.HasPrefix(name, "ap") {
			samples[name] = value
		}
	}
	return samples
}

// TestMetricsOfAllProcesses reads the pages of router and node.
func TestMetricsOfAllProcesses(t *testing.T) {
	s := startSystem(t)
	n := s.startNode("n1", "math,demo", "--metrics-listen", "127.0.0.1:0")
	for range 3 {
		s.call("math.add", `{"a":1,"b":2}`)
	}
	s.call("demo.fail", `{"code":"DEMO_FAILED"}`)
	router, node := scrape(t, s.api+"/metrics"), scrape(t, n.facts("apbus-node:")["metrics"])

	got, want := map[string]string{}, map[string]string{
		`apbus_client_calls_total{code="ok",module_id="math.add"}`:           "3",
		`apbus_client_calls_total{code="DEMO_FAILED",module_id="demo.fail"}`: "1",
		`apbus_client_call_duration_seconds_count{module_id="math.add"}`:     "3",
		`apbus_client_in_flight`:                    "0",
		`apbus_client_lost_total`:                   "0",
		`apbus_client_sent_bytes_count`:             "4",
		`apbus_connection_up{connection="calls"}`:   "1",
		`apbus_connection_up{connection="control"}`: "1",
	}
	for name := range want {
		got[name] = router[name]
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("router: %s", d)
	}
	got, want = map[string]string{}, map[string]string{
		`apbus_node_calls_total{code="ok",module_id="math.add"}`:                  "3",
		`apbus_node_calls_total{code="DEMO_FAILED",module_id="demo.fail"}`:        "1",
		`apbus_node_call_duration_seconds_bucket{module_id="math.add",le="+Inf"}`: "3",
		`apbus_node_capacity`:             "256",
		`apbus_node_slot_debt`:            "0",
		`apbus_node_received_bytes_count`: "4",
		`apcore_module_calls_total{module_id="math.add",status="success"}`:                "3",
		`apcore_module_errors_total{error_code="DEMO_FAILED",module_id="demo.fail"}`:      "1",
		`apcore_module_duration_seconds_bucket{module_id="math.add",le="60"}`:             "3",
		`apbus_node_refused_total{code="BUS_OVERLOADED"}`:                                 "",
		`apbus_node_calls_total{code="GENERAL_INTERNAL_ERROR",module_id="demo.fail"}`:     "",
		`apbus_node_call_duration_seconds_bucket{module_id="math.add",le="134.217728"}`:   "3",
		`apbus_node_call_duration_seconds_bucket{module_id="demo.fail",le="134.217728"}`:  "1",
		`apbus_node_call_duration_seconds_bucket{module_id="demo.sleep",le="134.217728"}`: "",
	}
	for name := range want {
		got[name] = node[name]
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("node: %s", d)
	}

	doc := s.get("/v1/stats").doc
	nodes := list(doc, "nodes")
	if len(nodes) != 1 || nodes[0]["node"] != "n1" {
		t.Fatalf("stats: %v", doc)
	}
	i := slices.IndexFunc(list(nodes[0], "modules"), func(m map[string]any) bool { return m["module_id"] == "demo.fail" })
	if m := list(nodes[0], "modules")[i]; m["calls"] != float64(1) || fmt.Sprint(m["errors"]) != "map[DEMO_FAILED:1]" {
		t.Errorf("stats of demo.fail: %v", m)
	}
}
