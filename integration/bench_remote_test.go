package integration_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/apbus/apbus/bus"
	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/examples"
	"github.com/apbus/apbus/executor"
	"github.com/apbus/apbus/executor/middleware"
	"github.com/apbus/apbus/executor/registry"
	"github.com/apbus/apbus/internal/heap"
	"github.com/apbus/apbus/internal/telemetry"
	"github.com/apbus/apbus/module"
)

// bench is an embedded server on a socket, one node that hosts math.add with the
// standard pipeline, one client, and beside them a plain responder and requester
// that exchange the same bytes and headers.
type bench struct {
	client *bus.Client
	raw    *nats.Conn
	msg    *nats.Msg
	inputs map[string]any
}

func newBench(b *testing.B) *bench {
	b.Helper()
	mods, err := examples.Modules(examples.Options{Node: "n1", Groups: []string{"math"}})
	if err != nil {
		b.Fatal(err)
	}
	client, url := benchNode(b, mods...)
	r := &bench{client: client, inputs: map[string]any{"a": int64(1), "b": int64(2)}}
	r.peers(b, url)
	return r
}

// benchNode is an embedded server on a socket, one node that hosts modules with
// the standard pipeline, and a client that knows them.
func benchNode(b *testing.B, modules ...module.Module) (client *bus.Client, url string) {
	b.Helper()
	return benchNodeWith(b, nil, modules...)
}

// benchNodeWith is benchNode with more options for the executor.
func benchNodeWith(b *testing.B, opts []executor.Option, modules ...module.Module) (client *bus.Client, url string) {
	b.Helper()
	must := func(err error) {
		b.Helper()
		if err != nil {
			b.Fatal(err)
		}
	}
	quiet := slog.New(slog.NewTextHandler(io.Discard, nil))
	b.Cleanup(heap.Tend(b.Context(), os.LookupEnv)) // as router and node do, for both sides
	server, err := bus.StartEmbedded(bus.EmbedOptions{Listen: "127.0.0.1:0", DataDir: b.TempDir()})
	must(err)
	b.Cleanup(server.Shutdown)
	connect := func() *bus.Conns {
		c, err := bus.Connect(b.Context(), bus.Options{Servers: []string{server.URL()}, Logger: quiet})
		must(err)
		b.Cleanup(c.Close)
		return c
	}
	reg := registry.New(registry.Options{Logger: quiet})
	for _, m := range modules {
		must(reg.Register(m))
	}
	x, err := executor.New(reg, executor.Config{}, append(opts, executor.WithLogger(quiet))...)
	must(err)
	node, err := bus.NewNode(connect(), x, bus.NodeOptions{ID: "n1", Logger: quiet})
	must(err)
	b.Cleanup(func() { _ = node.Close() })
	client, err = bus.NewClient(connect(), bus.ClientOptions{Logger: quiet})
	must(err)
	b.Cleanup(client.Close)
	for _, m := range modules {
		must(client.WaitModule(b.Context(), m.Descriptor().ID))
	}
	return client, server.URL()
}

// peers sets up the baseline: request and reply are the bytes that a call and
// its result have on the wire, and the responder answers each from a goroutine
// of its own.
func (r *bench) peers(b *testing.B, url string) {
	b.Helper()
	open := func() *nats.Conn {
		nc, err := nats.Connect(url)
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(nc.Close)
		return nc
	}
	h, body, err := contextwire.EncodeRequest(&contextwire.Request{
		CallID: contextwire.NewCallID(), Attempt: 1, ModuleID: "math.add", Budget: time.Minute,
		Context: module.NewContext(module.ContextOptions{}), Inputs: r.inputs,
	}, contextwire.MsgPack)
	if err != nil {
		b.Fatal(err)
	}
	fh, fbody, err := contextwire.EncodeFrame(&contextwire.Frame{
		Kind: contextwire.FrameResult, CallID: contextwire.NewCallID(), Node: "n1", Boot: "0123456789",
		Body: map[string]any{"sum": int64(3)},
	}, contextwire.MsgPack)
	if err != nil {
		b.Fatal(err)
	}
	responder := open()
	if _, err := responder.Subscribe("bench.raw.default.@.n1.0123456789.math.add", func(m *nats.Msg) {
		go func() {
			_ = responder.PublishMsg(&nats.Msg{Subject: m.Reply, Header: nats.Header(fh), Data: fbody})
		}()
	}); err != nil {
		b.Fatal(err)
	}
	if err := responder.Flush(); err != nil {
		b.Fatal(err)
	}
	r.raw = open()
	r.msg = &nats.Msg{Subject: "bench.raw.default.@.n1.0123456789.math.add", Header: nats.Header(h), Data: body}
}

func (r *bench) rawCall(ctx context.Context) error {
	m := &nats.Msg{Subject: r.msg.Subject, Header: r.msg.Header, Data: r.msg.Data}
	_, err := r.raw.RequestMsgWithContext(ctx, m)
	return err
}

func (r *bench) apbusCall(ctx context.Context) error {
	out, err := r.client.Call(ctx, "math.add", r.inputs)
	if err == nil && out["sum"] != int64(3) {
		return fmt.Errorf("sum = %v", out["sum"])
	}
	return err
}

// sequential returns the sorted times of n calls, one after the other.
func sequential(b *testing.B, n int, call func(context.Context) error) []time.Duration {
	b.Helper()
	ctx, stop := context.WithTimeoutCause(b.Context(), time.Minute, context.DeadlineExceeded)
	defer stop()
	took := make([]time.Duration, n)
	for i := range took {
		start := time.Now()
		if err := call(ctx); err != nil {
			b.Fatal(err)
		}
		took[i] = time.Since(start)
	}
	return took
}

// parallel returns how many calls a second 64 callers complete.
func parallel(b *testing.B, n int, call func(context.Context) error) float64 {
	b.Helper()
	ctx, stop := context.WithTimeoutCause(b.Context(), time.Minute, context.DeadlineExceeded)
	defer stop()
	var wg sync.WaitGroup
	var left, failed atomic.Int64
	left.Store(int64(n))
	start := time.Now()
	for range 64 {
		wg.Go(func() {
			for left.Add(-1) >= 0 {
				if call(ctx) != nil {
					failed.Add(1)
				}
			}
		})
	}
	wg.Wait()
	if failed.Load() > 0 {
		b.Fatalf("%d of %d calls failed", failed.Load(), n)
	}
	return float64(n) / time.Since(start).Seconds()
}

// BenchmarkRemoteCall compares a governed call over the bus with a plain NATS
// request of the same bytes, in alternating blocks of one run. The processor time is
// that of everything a call needs, client, node and server; unlike the rest it
// depends little on what else the machine does.
func BenchmarkRemoteCall(b *testing.B) {
	r := newBench(b)
	const block, blocks = 2000, 5
	sequential(b, block, r.rawCall) // warm both
	sequential(b, block, r.apbusCall)
	for b.Loop() {
		var raw, ours []time.Duration
		var rawRate, ourRate, rawCPU, ourCPU []float64
		loaded := func(rate, cpu *[]float64, call func(context.Context) error) {
			began := processorTime()
			*rate = append(*rate, parallel(b, 10*block, call))
			*cpu = append(*cpu, float64((processorTime()-began).Nanoseconds())/1e3/(10*block))
		}
		for range blocks {
			raw = append(raw, sequential(b, block, r.rawCall)...)
			ours = append(ours, sequential(b, block, r.apbusCall)...)
			loaded(&rawRate, &rawCPU, r.rawCall)
			loaded(&ourRate, &ourCPU, r.apbusCall)
		}
		slices.Sort(raw)
		slices.Sort(ours)
		for _, list := range [][]float64{rawRate, ourRate, rawCPU, ourCPU} {
			slices.Sort(list)
		}
		p := func(list []time.Duration, q float64) float64 { return float64(list[int(q*float64(len(list)-1))]) }
		mid := blocks / 2
		b.ReportMetric(p(raw, .5)/1e3, "raw-p50-µs")
		b.ReportMetric(p(ours, .5)/1e3, "apbus-p50-µs")
		b.ReportMetric(p(ours, .5)/p(raw, .5), "p50-ratio")
		b.ReportMetric(p(raw, .99)/1e3, "raw-p99-µs")
		b.ReportMetric(p(ours, .99)/1e3, "apbus-p99-µs")
		b.ReportMetric(rawRate[mid], "raw-calls/s")
		b.ReportMetric(ourRate[mid], "apbus-calls/s")
		b.ReportMetric(ourRate[mid]/rawRate[mid], "throughput-ratio")
		b.ReportMetric(rawCPU[mid], "raw-cpu-µs")
		b.ReportMetric(ourCPU[mid], "apbus-cpu-µs")
		b.ReportMetric(ourCPU[mid]/rawCPU[mid], "cpu-ratio")
	}
}

// BenchmarkRemoteCallMetrics compares a call over the bus to a node that serves
// metrics with one to a node that does not, in alternating blocks of one run. The bus
// counts either way; what comes on top is the middleware. "cpu-ratio" is the processor
// time of a call with metrics, client, node and server together, over that without.
func BenchmarkRemoteCallMetrics(b *testing.B) {
	metrics := telemetry.NewMetrics()
	counts, err := middleware.NewMetrics(metrics.Registerer())
	if err != nil {
		b.Fatal(err)
	}
	inputs := map[string]any{"a": int64(1), "b": int64(2)}
	node := func(opts ...executor.Option) func(context.Context) error {
		mods, err := examples.Modules(examples.Options{Node: "n1", Groups: []string{"math"}})
		if err != nil {
			b.Fatal(err)
		}
		client, _ := benchNodeWith(b, opts, mods...)
		if opts != nil {
			if err := metrics.WatchBus(nil, client, nil); err != nil {
				b.Fatal(err)
			}
		}
		return func(ctx context.Context) error {
			_, err := client.Call(ctx, "math.add", inputs)
			return err
		}
	}
	without, with := node(), node(executor.WithMiddleware(counts))
	const block, blocks = 2000, 9
	cost := func(call func(context.Context) error) float64 {
		began := processorTime()
		parallel(b, block, call)
		return float64((processorTime() - began).Nanoseconds()) / 1e3 / block
	}
	cost(without) // warm both
	cost(with)
	for b.Loop() {
		var off, on, ratios []float64
		for range blocks {
			off, on = append(off, cost(without)), append(on, cost(with))
			ratios = append(ratios, on[len(on)-1]/off[len(off)-1])
		}
		for _, list := range [][]float64{off, on, ratios} {
			slices.Sort(list)
		}
		b.ReportMetric(off[blocks/2], "off-cpu-µs")
		b.ReportMetric(on[blocks/2], "on-cpu-µs")
		b.ReportMetric(ratios[blocks/2], "cpu-ratio")
	}
}

// BenchmarkRemoteCallParallel is for profiles of the call alone.
func BenchmarkRemoteCallParallel(b *testing.B) {
	r := newBench(b)
	defer reportProcessor(b)()
	b.ReportAllocs()
	b.SetParallelism(32)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if err := r.apbusCall(b.Context()); err != nil {
				b.Error(err)
				return
			}
		}
	})
}

// BenchmarkRawCallParallel is its baseline.
func BenchmarkRawCallParallel(b *testing.B) {
	r := newBench(b)
	defer reportProcessor(b)()
	b.ReportAllocs()
	b.SetParallelism(32)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			ctx, stop := context.WithTimeout(b.Context(), time.Minute)
			if err := r.rawCall(ctx); err != nil {
				b.Error(err)
			}
			stop()
		}
	})
}

// reportProcessor reports the processor time of an operation from here to the call
// of what it returns, in microseconds.
func reportProcessor(b *testing.B) (report func()) {
	began := processorTime()
	return func() {
		b.ReportMetric(float64((processorTime()-began).Nanoseconds())/1e3/float64(b.N), "cpu-µs/op")
	}
}
