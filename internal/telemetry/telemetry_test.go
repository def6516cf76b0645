package telemetry_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/apbus/apbus/bus"
	"github.com/apbus/apbus/internal/telemetry"
	"github.com/apbus/apbus/module"
)

func env(vars map[string]string) func(string) (string, bool) {
	return func(name string) (string, bool) { v, ok := vars[name]; return v, ok }
}

func TestWhetherThereIsTracing(t *testing.T) {
	const to = "http://127.0.0.1:9"
	for _, tt := range []struct {
		name    string
		vars    map[string]string
		want    bool
		warning string
	}{
		{name: "by default"},
		{name: "an endpoint", vars: map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": to}, want: true},
		{name: "an endpoint for traces", vars: map[string]string{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": to}, want: true},
		{name: "an empty endpoint", vars: map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": ""}},
		{name: "the exporter", vars: map[string]string{"OTEL_TRACES_EXPORTER": "otlp"}, want: true},
		{name: "no exporter", vars: map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": to, "OTEL_TRACES_EXPORTER": "none"}},
		{name: "disabled", vars: map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": to, "OTEL_SDK_DISABLED": "TRUE"}},
		{name: "another exporter", vars: map[string]string{"OTEL_TRACES_EXPORTER": "zipkin"}, warning: "zipkin"},
		{name: "the protocol", vars: map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": to, "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}, want: true},
		{name: "another protocol", vars: map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": to, "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, warning: "grpc"},
		{
			name: "another protocol for all but traces", want: true,
			vars: map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": to, "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf"},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var log strings.Builder
			tracing, err := telemetry.OpenTracing(t.Context(), telemetry.TracingOptions{
				Service: "x", Env: env(tt.vars), Logger: slog.New(slog.NewTextHandler(&log, nil)),
			})
			if err != nil {
				t.Fatal(err)
			}
			if got := tracing.Provider() != nil; got != tt.want {
				t.Errorf("tracing %v, want %v", got, tt.want)
			}
			if (tt.warning != "") != strings.Contains(log.String(), "tracing is off") || !strings.Contains(log.String(), tt.warning) {
				t.Errorf("log: %s", log.String())
			}
			if err := tracing.Close(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}

// A receiver that is not there neither stops nor holds up the program.
func TestReceiverIsGone(t *testing.T) {
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
	var log strings.Builder
	tracing, err := telemetry.OpenTracing(t.Context(), telemetry.TracingOptions{
		Service: "x", Env: env(map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}),
		Logger: slog.New(slog.NewTextHandler(&log, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	_, span := tracing.Provider().Tracer("t").Start(t.Context(), "s")
	span.End()
	ctx, stop := context.WithTimeoutCause(t.Context(), 300*time.Millisecond, errors.New("long enough"))
	defer stop()
	began := time.Now()
	if err := tracing.Close(ctx); err == nil && !strings.Contains(log.String(), "tracing failed") {
		t.Error("the spans went nowhere, and nothing says so")
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("closing took %v", took)
	}
}

type (
	stubNode   bus.NodeStats
	stubClient bus.ClientStats
	stubConns  []bus.ConnStats
)

func (s stubNode) Stats() bus.NodeStats     { return bus.NodeStats(s) }
func (s stubClient) Stats() bus.ClientStats { return bus.ClientStats(s) }
func (s stubConns) Stats() []bus.ConnStats  { return s }

func TestBusFamilies(t *testing.T) {
	micros := bus.Distribution{Count: 3, Sum: 2_000_600, Buckets: []bus.DistributionBucket{{UpTo: 127, Count: 1}, {UpTo: 159, Count: 1}, {UpTo: 2097151, Count: 1}}}
	calls := []bus.ModuleCalls{{ModuleID: "math.add", Calls: 3, Errors: map[module.Code]int64{"X": 1}, Micros: micros}}
	sizes := bus.Distribution{Count: 2, Sum: 1<<30 + 60, Buckets: []bus.DistributionBucket{{UpTo: 63, Count: 1}, {UpTo: 1<<30 + 1, Count: 1}}}
	got := page(t,
		stubConns{{Name: "calls", Connected: true, Reconnects: 2}, {Name: "control"}},
		stubClient{InFlight: 5, Modules: calls, Retries: map[module.Code]int64{"BUS_OVERLOADED": 4}, Lost: 6, CancelsSent: 7, Received: sizes, Sent: sizes},
		stubNode{InFlight: 1, Waiting: 2, Debt: 3, Capacity: 4, Draining: true, Modules: calls, Refused: map[module.Code]int64{"BUS_OVERLOADED": 8},
			CancelsObeyed: 9, CreditStalls: 10, CreditStalled: 1500 * time.Millisecond, Received: sizes, Sent: sizes})
	const want = `
# HELP apbus_client_retries_total Attempts that another one followed, by the code they ended with.
# TYPE apbus_client_retries_total counter
apbus_client_retries_total{code="BUS_OVERLOADED"} 4
# HELP apbus_connection_up 1 while the connection to NATS stands.
# TYPE apbus_connection_up gauge
apbus_connection_up{connection="calls"} 1
apbus_connection_up{connection="control"} 0
# HELP apbus_node_calls_total Calls that ended on this node, by code; ok for success.
# TYPE apbus_node_calls_total counter
apbus_node_calls_total{code="X",module_id="math.add"} 1
apbus_node_calls_total{code="ok",module_id="math.add"} 2
# HELP apbus_node_credit_stalled_seconds_total Time that streams waited for their readers.
# TYPE apbus_node_credit_stalled_seconds_total counter
apbus_node_credit_stalled_seconds_total 1.5
# HELP apbus_node_sent_bytes Bodies of the frames that this node sent.
# TYPE apbus_node_sent_bytes histogram
apbus_node_sent_bytes_bucket{le="64"} 1
apbus_node_sent_bytes_bucket{le="256"} 1
apbus_node_sent_bytes_bucket{le="1024"} 1
apbus_node_sent_bytes_bucket{le="4096"} 1
apbus_node_sent_bytes_bucket{le="16384"} 1
apbus_node_sent_bytes_bucket{le="65536"} 1
apbus_node_sent_bytes_bucket{le="262144"} 1
apbus_node_sent_bytes_bucket{le="1.048576e+06"} 1
apbus_node_sent_bytes_bucket{le="4.194304e+06"} 1
apbus_node_sent_bytes_bucket{le="1.6777216e+07"} 1
apbus_node_sent_bytes_bucket{le="6.7108864e+07"} 1
apbus_node_sent_bytes_bucket{le="+Inf"} 2
apbus_node_sent_bytes_sum 1.073741884e+09
apbus_node_sent_bytes_count 2
# HELP apbus_node_slot_debt Modules that run on although their call has ended, each in its slot.
# TYPE apbus_node_slot_debt gauge
apbus_node_slot_debt 3
`
	families := map[string]bool{}
	for line := range strings.Lines(want) {
		if name, ok := strings.CutPrefix(line, "# TYPE "); ok {
			name, _, _ = strings.Cut(name, " ")
			families[name] = true
		}
	}
	var of strings.Builder
	of.WriteString("\n")
	for line := range strings.Lines(got) {
		name := strings.TrimPrefix(strings.TrimPrefix(line, "# HELP "), "# TYPE ")
		name, _, _ = strings.Cut(strings.ReplaceAll(name, "{", " "), " ")
		for _, end := range []string{"_bucket", "_sum", "_count", ""} {
			if families[strings.TrimSuffix(name, end)] {
				of.WriteString(line)
				break
			}
		}
	}
	if d := cmp.Diff(want, of.String()); d != "" {
		t.Error(d)
	}
	if nothing := page(t, nil, nil, nil); strings.Contains(nothing, "apbus_") {
		t.Errorf("metrics of nothing: %s", nothing)
	}
}

// Every family that docs/observability.md names for the bus is on the page, with the
// value that the bus counted, and no other.
func TestEveryFamilyIsShown(t *testing.T) {
	text, err := os.ReadFile("../../docs/observability.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(text), "### Families of the bus")
	section, _, _ = strings.Cut(section, "\n## ")
	want := regexp.MustCompile("apbus_(?:node|client|connection)_[a-z_]+").FindAllString(section, -1)
	slices.Sort(want)

	one := bus.Distribution{Count: 21, Sum: 210, Buckets: []bus.DistributionBucket{{UpTo: 10, Count: 21}}}
	calls := []bus.ModuleCalls{{ModuleID: "m", Calls: 22, Micros: bus.Distribution{Count: 23, Buckets: []bus.DistributionBucket{{UpTo: 10, Count: 23}}}}}
	codes := map[module.Code]int64{"X": 24}
	shown := page(t,
		stubConns{{Name: "calls", Connected: true, Reconnects: 1}},
		stubClient{InFlight: 2, Modules: calls, Retries: codes, Lost: 3, CancelsSent: 4, Received: one, Sent: one},
		stubNode{InFlight: 5, Waiting: 6, Debt: 7, Capacity: 8, Draining: true, Modules: calls, Refused: codes, CancelsObeyed: 9, CreditStalls: 10, CreditStalled: 11 * time.Second, Received: one, Sent: one})
	var got []string
	for line := range strings.Lines(shown) {
		if name, ok := strings.CutPrefix(line, "# TYPE apbus_"); ok {
			name, _, _ = strings.Cut(name, " ")
			got = append(got, "apbus_"+name)
		}
	}
	slices.Sort(got)
	if d := cmp.Diff(slices.Compact(want), got); d != "" {
		t.Errorf("documented (-) and shown (+):\n%s", d)
	}
	for _, value := range []string{
		`apbus_node_calls_total{code="ok",module_id="m"} 22`, `apbus_client_calls_total{code="ok",module_id="m"} 22`,
		`apbus_node_call_duration_seconds_count{module_id="m"} 23`, `apbus_client_call_duration_seconds_count{module_id="m"} 23`,
		"apbus_node_in_flight 5", "apbus_node_waiting 6", "apbus_node_slot_debt 7", "apbus_node_capacity 8", "apbus_node_draining 1",
		`apbus_node_refused_total{code="X"} 24`, "apbus_node_cancels_obeyed_total 9", "apbus_node_credit_stalls_total 10",
		"apbus_node_credit_stalled_seconds_total 11", "apbus_node_received_bytes_count 21", "apbus_node_sent_bytes_sum 210",
		"apbus_client_in_flight 2", `apbus_client_retries_total{code="X"} 24`, "apbus_client_lost_total 3", "apbus_client_cancels_sent_total 4",
		"apbus_client_received_bytes_count 21", "apbus_client_sent_bytes_count 21",
		`apbus_connection_up{connection="calls"} 1`, `apbus_connection_reconnects_total{connection="calls"} 1`,
	} {
		if !strings.Contains(shown, "\n"+value+"\n") {
			t.Errorf("the page lacks %s", value)
		}
	}
}

// page is what a scraper gets of the bus.
func page(t *testing.T, conns telemetry.Conns, client telemetry.Client, node telemetry.Node) string {
	t.Helper()
	m := telemetry.NewMetrics()
	if err := m.WatchBus(conns, client, node); err != nil {
		t.Fatal(err)
	}
	res := httptest.NewRecorder()
	m.Handler().ServeHTTP(res, httptest.NewRequest("GET", "/metrics", nil))
	return res.Body.String()
}

func TestServe(t *testing.T) {
	m := telemetry.NewMetrics()
	if err := m.WatchBus(nil, stubClient{Lost: 3}, nil); err != nil {
		t.Fatal(err)
	}
	if err := m.Count("apbus_test_total", "A test.", func() float64 { return 7 }); err != nil {
		t.Fatal(err)
	}
	if err := m.Count("apbus_test_total", "A test.", nil); err == nil {
		t.Error("a family was admitted twice")
	}
	s, err := m.Listen(t.Context(), "127.0.0.1:0", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	res, err := http.Get("http://" + s.Addr() + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	body, _ := io.ReadAll(res.Body)
	_ = res.Body.Close()
	for _, want := range []string{"apbus_client_lost_total 3\n", "apbus_test_total 7\n", "go_goroutines "} {
		if !strings.Contains(string(body), want) {
			t.Errorf("the page lacks %q", want)
		}
	}
	got := map[string]int{}
	for _, path := range []string{"/", "/metrics"} {
		res := httptest.NewRecorder()
		m.Handler().ServeHTTP(res, httptest.NewRequest("GET", path, nil))
		got[path] = res.Code
	}
	if d := cmp.Diff(map[string]int{"/": 200, "/metrics": 200}, got); d != "" {
		t.Error(d)
	}
	if _, err := m.Listen(t.Context(), s.Addr(), slog.New(slog.DiscardHandler)); err == nil {
		t.Error("a busy address is no error")
	}
	s.Close()
	s.Close()
	(*telemetry.Server)(nil).Close()
}
