package telemetry

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/apbus/apbus/bus"
	"github.com/apbus/apbus/module"
)

// What [NewBusMetrics] asks.
type (
	// Node is such as *bus.Node.
	Node interface{ Stats() bus.NodeStats }
	// Client is such as *bus.Client.
	Client interface{ Stats() bus.ClientStats }
	// Conns is such as *bus.Conns.
	Conns interface{ Stats() []bus.ConnStats }
)

// NewRegistry makes a registry that has the families of the Go runtime and of the
// process.
func NewRegistry() *prometheus.Registry {
	reg := prometheus.NewRegistry()
	reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return reg
}

// Handler serves a registry in the format that the scraper asks for.
func Handler(reg *prometheus.Registry) http.Handler {
	return promhttp.HandlerFor(reg, promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError})
}

// BusMetrics shows what the bus counts. It asks only when it is asked itself, so
// that a call costs the same whether anybody watches or not.
type BusMetrics struct {
	node   Node
	client Client
	conns  Conns
	descs  map[string]*prometheus.Desc
}

var _ prometheus.Collector = (*BusMetrics)(nil)

// NewBusMetrics makes the collector; what is nil is left out.
func NewBusMetrics(conns Conns, client Client, node Node) *BusMetrics {
	m := &BusMetrics{node: node, client: client, conns: conns, descs: map[string]*prometheus.Desc{}}
	for _, f := range busFamilies() {
		m.descs[f.name] = prometheus.NewDesc(f.name, f.help, f.labels, nil)
	}
	return m
}

type family struct {
	name, help string
	labels     []string
}

// busFamilies lists all families of the bus; docs/observability.md shows them.
func busFamilies() []family {
	return []family{
		{"apbus_node_calls_total", "Calls that ended on this node, by code; ok for success.", []string{"module_id", "code"}},
		{"apbus_node_call_duration_seconds", "Time from a call's arrival on this node to its end.", []string{"module_id"}},
		{"apbus_node_in_flight", "Calls that hold a slot.", nil},
		{"apbus_node_waiting", "Calls that wait for a slot.", nil},
		{"apbus_node_capacity", "Slots of this node.", nil},
		{"apbus_node_slot_debt", "Modules that run on although their call has ended, each in its slot.", nil},
		{"apbus_node_draining", "1 while the node takes nothing new.", nil},
		{"apbus_node_refused_total", "Calls answered without being entered, by code.", []string{"code"}},
		{"apbus_node_cancels_obeyed_total", "Calls that a cancel notice found on this node.", nil},
		{"apbus_node_credit_stalls_total", "Waits of a stream for its reader.", nil},
		{"apbus_node_credit_stalled_seconds_total", "Time that streams waited for their readers.", nil},
		{"apbus_node_received_bytes", "Bodies of requests to this node.", nil},
		{"apbus_node_sent_bytes", "Bodies of the frames that this node sent.", nil},
		{"apbus_client_calls_total", "Calls that this process made over the bus, by code; ok for success.", []string{"module_id", "code"}},
		{"apbus_client_call_duration_seconds", "Time that those calls took, retries included.", []string{"module_id"}},
		{"apbus_client_in_flight", "Calls of this process that are not over.", nil},
		{"apbus_client_retries_total", "Attempts that another one followed, by the code they ended with.", []string{"code"}},
		{"apbus_client_lost_total", "Attempts that ended because their node was lost.", nil},
		{"apbus_client_cancels_sent_total", "Cancel notices that this process sent.", nil},
		{"apbus_client_received_bytes", "Bodies of the frames that this process got.", nil},
		{"apbus_client_sent_bytes", "Bodies of the requests that this process sent.", nil},
		{"apbus_connection_up", "1 while the connection to NATS stands.", []string{"connection"}},
		{"apbus_connection_reconnects_total", "How often it was made anew.", []string{"connection"}},
	}
}

// Describe sends the families.
func (m *BusMetrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range m.descs {
		ch <- d
	}
}

// Collect sends the values.
func (m *BusMetrics) Collect(ch chan<- prometheus.Metric) {
	out := sender{m.descs, ch}
	if m.conns != nil {
		for _, c := range m.conns.Stats() {
			out.gauge("apbus_connection_up", number(c.Connected), c.Name)
			out.counter("apbus_connection_reconnects_total", float64(c.Reconnects), c.Name)
		}
	}
	if m.client != nil {
		s := m.client.Stats()
		out.gauge("apbus_client_in_flight", float64(s.InFlight))
		out.calls("apbus_client", s.Modules)
		out.codes("apbus_client_retries_total", s.Retries)
		out.counter("apbus_client_lost_total", float64(s.Lost))
		out.counter("apbus_client_cancels_sent_total", float64(s.CancelsSent))
		out.histogram("apbus_client_received_bytes", s.Received, sizeBounds(), 1)
		out.histogram("apbus_client_sent_bytes", s.Sent, sizeBounds(), 1)
	}
	if m.node != nil {
		s := m.node.Stats()
		out.gauge("apbus_node_in_flight", float64(s.InFlight))
		out.gauge("apbus_node_waiting", float64(s.Waiting))
		out.gauge("apbus_node_capacity", float64(s.Capacity))
		out.gauge("apbus_node_slot_debt", float64(s.Debt))
		out.gauge("apbus_node_draining", number(s.Draining))
		out.calls("apbus_node", s.Modules)
		out.codes("apbus_node_refused_total", s.Refused)
		out.counter("apbus_node_cancels_obeyed_total", float64(s.CancelsObeyed))
		out.counter("apbus_node_credit_stalls_total", float64(s.CreditStalls))
		out.counter("apbus_node_credit_stalled_seconds_total", s.CreditStalled.Seconds())
		out.histogram("apbus_node_received_bytes", s.Received, sizeBounds(), 1)
		out.histogram("apbus_node_sent_bytes", s.Sent, sizeBounds(), 1)
	}
}

// sender turns counts into metrics of the families.
type sender struct {
	descs map[string]*prometheus.Desc
	ch    chan<- prometheus.Metric
}

func (s sender) gauge(name string, v float64, labels ...string) {
	s.ch <- prometheus.MustNewConstMetric(s.descs[name], prometheus.GaugeValue, v, labels...)
}

func (s sender) counter(name string, v float64, labels ...string) {
	s.ch <- prometheus.MustNewConstMetric(s.descs[name], prometheus.CounterValue, v, labels...)
}

func (s sender) codes(name string, counts map[module.Code]int64) {
	for code, n := range counts {
		s.counter(name, float64(n), string(code))
	}
}

func (s sender) calls(prefix string, modules []bus.ModuleCalls) {
	for _, m := range modules {
		ok := m.Calls
		for code, n := range m.Errors {
			ok -= n
			s.counter(prefix+"_calls_total", float64(n), m.ModuleID, string(code))
		}
		// The counts are read one after the other while calls go on.
		s.counter(prefix+"_calls_total", float64(max(ok, 0)), m.ModuleID, "ok")
		s.histogram(prefix+"_call_duration_seconds", m.Micros, latencyBounds(), 1e-6, m.ModuleID)
	}
}

// histogram shows a distribution with the bounds given in its own unit. Both are
// ends of its buckets or nearly so: a bucket that lies across a bound is counted
// above it, so that no value is said to be smaller than it is.
func (s sender) histogram(name string, d bus.Distribution, bounds []int64, unit float64, labels ...string) {
	upTo := make(map[float64]uint64, len(bounds))
	var n uint64
	i := 0
	for _, bound := range bounds {
		for i < len(d.Buckets) && d.Buckets[i].UpTo <= bound {
			n += uint64(d.Buckets[i].Count) //nolint:gosec // a count
			i++
		}
		upTo[float64(bound)*unit] = n
	}
	s.ch <- prometheus.MustNewConstHistogram(s.descs[name], uint64(d.Count), float64(d.Sum)*unit, upTo, labels...) //nolint:gosec // a count
}

// latencyBounds are in microseconds: from 128 µs to 134 s, doubling.
func latencyBounds() []int64 { return doubling(7, 27) }

// sizeBounds are in bytes: from 64 B to 64 MiB, each four times the one before.
func sizeBounds() []int64 {
	var bounds []int64
	for e := 6; e <= 26; e += 2 {
		bounds = append(bounds, 1<<e)
	}
	return bounds
}

func doubling(from, to int) []int64 {
	var bounds []int64
	for e := from; e <= to; e++ {
		bounds = append(bounds, 1<<e)
	}
	return bounds
}

func number(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
