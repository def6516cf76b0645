package bus_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apbus/apbus/bus"
	"github.com/apbus/apbus/cancel"
	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/internal/natstest"
	"github.com/apbus/apbus/module"
)

// stubHost is a host whose modules are closures: the bus is tested without the
// executor.
type stubHost struct {
	mu      sync.Mutex
	modules map[string]stubModule
	onChg   []func()
	debt    atomic.Int64
}

type stubModule struct {
	desc module.Descriptor
	run  func(ctx context.Context, req *contextwire.Request) (map[string]any, error)
}

func newStubHost() *stubHost { return &stubHost{modules: map[string]stubModule{}} }

func (h *stubHost) add(id string, ann module.Annotations, run func(context.Context, *contextwire.Request) (map[string]any, error)) *stubHost {
	h.mu.Lock()
	h.modules[id] = stubModule{module.Descriptor{ID: id, Description: id, Annotations: ann}, run}
	chg := h.onChg
	h.mu.Unlock()
	for _, f := range chg {
		f()
	}
	return h
}

func (h *stubHost) Invoke(ctx context.Context, req *contextwire.Request) (*contextwire.Reply, error) {
	h.mu.Lock()
	m, ok := h.modules[req.ModuleID]
	h.mu.Unlock()
	if !ok {
		return nil, module.Errorf(module.CodeModuleNotFound, "no module %s", req.ModuleID).NotExecuted()
	}
	if req.Budget > 0 {
		var stop context.CancelFunc
		ctx, stop = context.WithTimeoutCause(ctx, req.Budget, cancel.Because(cancel.Timeout, "", "budget"))
		defer stop()
	}
	out, err := m.run(ctx, req)
	if err == nil {
		return &contextwire.Reply{Output: out}, nil
	}
	if cause := context.Cause(ctx); cause != nil && module.AsError(err) == nil {
		if cancel.ReasonOf(cause) == cancel.Timeout {
			return nil, module.Wrap(module.CodeModuleTimeout, cause, "time is over")
		}
		return nil, module.Wrap(module.CodeExecutionCancelled, cause, "cancelled")
	}
	return nil, err
}

func (h *stubHost) Check(_ context.Context, req *contextwire.Request) (*module.PreflightResult, error) {
	return &module.PreflightResult{Valid: req.Inputs["bad"] == nil, Checks: []module.PreflightCheck{{Check: "module_id", Passed: true}}}, nil
}

func (h *stubHost) Descriptors() []module.Descriptor {
	h.mu.Lock()
	defer h.mu.Unlock()
	var out []module.Descriptor
	for _, m := range h.modules {
		out = append(out, m.desc)
	}
	return out
}

func (h *stubHost) OnChange(f func()) (stop func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.onChg = append(h.onChg, f)
	return func() {}
}

func (h *stubHost) Debt() int { return int(h.debt.Load()) }

// echo returns its inputs and what it knows of its caller.
func echo(_ context.Context, req *contextwire.Request) (map[string]any, error) {
	return map[string]any{"inputs": req.Inputs, "trace_id": req.Context.TraceID()}, nil
}

// untilDone runs until its context ends and says on started and ended that it did.
func untilDone(started chan<- string, ended chan<- error) func(context.Context, *contextwire.Request) (map[string]any, error) {
	return func(ctx context.Context, req *contextwire.Request) (map[string]any, error) {
		started <- req.CallID
		<-ctx.Done()
		ended <- context.Cause(ctx)
		return nil, ctx.Err()
	}
}

// mesh is an embedded server and what runs on it. Everything is closed at the
// end of the test, in order.
type mesh struct {
	t      *testing.T
	dir    string
	server atomic.Pointer[bus.Embedded] // nil while it is down
	undo   []func()
}

func newMesh(t *testing.T) *mesh {
	t.Helper()
	m := &mesh{t: t, dir: t.TempDir()}
	m.start()
	return m
}

// onMesh runs a test in a bubble with a server of its own.
func onMesh(t *testing.T, test func(m *mesh)) {
	t.Helper()
	natstest.Bubble(t, func(t *testing.T) {
		m := newMesh(t)
		defer m.close()
		test(m)
	})
}

func (m *mesh) start() {
	m.t.Helper()
	server, err := bus.StartEmbedded(bus.EmbedOptions{NoListen: true, DataDir: m.dir})
	if err != nil {
		m.t.Fatal(err)
	}
	m.server.Store(server)
}

// InProcessConn connects to the server that runs now, so that a connection
// finds its way back after a restart.
func (m *mesh) InProcessConn() (net.Conn, error) {
	server := m.server.Load()
	if server == nil {
		return nil, errors.New("the server is down")
	}
	return server.Server().InProcessConn()
}

func (m *mesh) stopServer() {
	m.server.Swap(nil).Shutdown()
}

// close is called at the end of a bubble, since cleanups run outside of it.
func (m *mesh) close() {
	for i := len(m.undo) - 1; i >= 0; i-- {
		m.undo[i]()
	}
	m.server.Load().Shutdown()
}

func (m *mesh) conns() *bus.Conns {
	m.t.Helper()
	c, err := bus.Connect(m.t.Context(), bus.Options{InProcess: m, Name: "test", Logger: quiet()})
	if err != nil {
		m.t.Fatal(err)
	}
	m.undo = append(m.undo, c.Close)
	return c
}

func quiet() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

func (m *mesh) node(id string, host bus.Host, edit ...func(*bus.NodeOptions)) *bus.Node {
	m.t.Helper()
	return m.nodeOn(m.conns(), id, host, edit...)
}

func (m *mesh) nodeOn(conns *bus.Conns, id string, host bus.Host, edit ...func(*bus.NodeOptions)) *bus.Node {
	m.t.Helper()
	o := bus.NodeOptions{ID: id, Logger: quiet()}
	for _, f := range edit {
		f(&o)
	}
	n, err := bus.NewNode(conns, host, o)
	if err != nil {
		m.t.Fatal(err)
	}
	m.undo = append(m.undo, func() { _ = n.Close() })
	return n
}

func (m *mesh) client() *bus.Client {
	m.t.Helper()
	return m.clientOn(m.conns())
}

func (m *mesh) clientOn(conns *bus.Conns) *bus.Client {
	m.t.Helper()
	c, err := bus.NewClient(conns, bus.ClientOptions{Name: "test", Logger: quiet()})
	if err != nil {
		m.t.Fatal(err)
	}
	m.undo = append(m.undo, c.Close)
	return c
}

func (m *mesh) wait(c *bus.Client, ids ...string) {
	m.t.Helper()
	ctx, stop := context.WithTimeoutCause(m.t.Context(), 10*time.Second, errors.New("the catalogue never showed the module"))
	defer stop()
	for _, id := range ids {
		if err := c.WaitModule(ctx, id); err != nil {
			m.t.Fatalf("wait for %s: %v", id, err)
		}
	}
}

func wantCode(t *testing.T, err error, want module.Code) *module.Error {
	t.Helper()
	if got := module.CodeOf(err); got != want {
		t.Fatalf("code = %q, want %q (error: %v)", got, want, err)
	}
	return module.AsError(err)
}

// pass lets time go by in a bubble, until everything has happened.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}
