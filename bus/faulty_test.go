package bus_test

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/apbus/apbus/bus"
	"github.com/apbus/apbus/bus/bustest"
	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/module"
)

// faulty is a mesh whose calls and control go through a broker in memory, while
// the catalogue stays on the real server.
type faulty struct {
	*mesh
	mem *bustest.Mem
}

func onFaulty(t *testing.T, test func(f *faulty)) {
	t.Helper()
	onMesh(t, func(m *mesh) {
		f := &faulty{mesh: m, mem: bustest.NewMem(bustest.Options{})}
		m.undo = append(m.undo, f.mem.Close)
		f.bridge()
		test(f)
	})
}

// bridge lets the broker's subscribers see the catalogue's writes pass by.
func (f *faulty) bridge() {
	nc, to := f.connect(), f.mem.Open()
	_, err := nc.Subscribe("$KV.>", func(m *nats.Msg) {
		_ = to.Publish(&nats.Msg{Subject: m.Subject, Header: m.Header, Data: m.Data}) // closed at the end
	})
	if err != nil {
		f.t.Fatal(err)
	}
	if err := nc.FlushWithContext(f.within(time.Second)); err != nil {
		f.t.Fatal(err)
	}
}

func (m *mesh) within(d time.Duration) context.Context {
	ctx, stop := context.WithTimeout(m.t.Context(), d)
	m.undo = append(m.undo, stop)
	return ctx
}

func (m *mesh) connect() *nats.Conn {
	m.t.Helper()
	nc, err := nats.Connect("", nats.InProcessServer(m))
	if err != nil {
		m.t.Fatal(err)
	}
	m.undo = append(m.undo, nc.Close)
	return nc
}

// party is one process on a faulty mesh, seen through its connections.
type party struct {
	conns          *bus.Conns
	calls, control *bustest.Conn
	js             *nats.Conn
}

func (f *faulty) party() *party {
	f.t.Helper()
	p := &party{calls: f.mem.Open(), control: f.mem.Open(), js: f.connect()}
	js, err := jetstream.New(p.js)
	if err != nil {
		f.t.Fatal(err)
	}
	p.conns = bus.NewConns(p.calls, p.control, js, bus.Options{Logger: quiet()})
	return p
}

func (p *party) freeze()    { p.calls.Freeze(); p.control.Freeze() }
func (p *party) thaw()      { p.calls.Thaw(); p.control.Thaw() }
func (p *party) partition() { p.calls.Partition(); p.control.Partition() }
func (p *party) heal()      { p.calls.Heal(); p.control.Heal() }
func (p *party) kill()      { p.calls.Kill(); p.control.Kill(); p.js.Close() }

// host starts a node with one module and returns its process.
func (f *faulty) host(id string, host bus.Host, edit ...func(*bus.NodeOptions)) (*bus.Node, *party) {
	f.t.Helper()
	p := f.party()
	return f.nodeOn(p.conns, id, host, edit...), p
}

// caller starts a client that sees the modules.
func (f *faulty) caller(modules ...string) (*bus.Client, *party) {
	f.t.Helper()
	p := f.party()
	c := f.clientOn(p.conns)
	f.wait(c, modules...)
	return c, p
}

// wire is a broker in memory without a catalogue, for tests that play one side
// of the protocol by hand.
type wire struct {
	t    *testing.T
	mem  *bustest.Mem
	undo []func()
}

func onWire(t *testing.T, test func(w *wire)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &wire{t: t, mem: bustest.NewMem(bustest.Options{})}
		defer w.close()
		test(w)
	})
}

func (w *wire) close() {
	for i := len(w.undo) - 1; i >= 0; i-- {
		w.undo[i]()
	}
	w.mem.Close()
}

func (w *wire) conns() *bus.Conns {
	return bus.NewConns(w.mem.Open(), w.mem.Open(), nil, bus.Options{Logger: quiet()})
}

func (w *wire) client() *bus.Client {
	w.t.Helper()
	return w.clientOn(w.conns())
}

func (w *wire) clientOn(conns *bus.Conns) *bus.Client {
	w.t.Helper()
	c, err := bus.NewClient(conns, bus.ClientOptions{Name: "test", Logger: quiet()})
	if err != nil {
		w.t.Fatal(err)
	}
	w.undo = append(w.undo, c.Close)
	return c
}

func (w *wire) node(id string, host bus.Host, edit ...func(*bus.NodeOptions)) *bus.Node {
	w.t.Helper()
	o := bus.NodeOptions{ID: id, Logger: quiet()}
	for _, f := range edit {
		f(&o)
	}
	n, err := bus.NewNode(w.conns(), host, o)
	if err != nil {
		w.t.Fatal(err)
	}
	w.undo = append(w.undo, func() { _ = n.Close() })
	return n
}

// peer plays one side by hand.
type peer struct {
	*bustest.Conn
	t     *testing.T
	inbox string
	got   chan *nats.Msg // what came to the inbox
}

func (w *wire) peer() *peer {
	w.t.Helper()
	p := &peer{Conn: w.mem.Open(), t: w.t, got: make(chan *nats.Msg, 4096)}
	p.inbox = p.NewInbox()
	if _, err := p.Subscribe(p.inbox+".>", "", func(m *nats.Msg) {
		if m.Subject == p.inbox+".probe" {
			p.answer(m, &contextwire.Frame{Kind: contextwire.FrameResult, Body: map[string]any{}})
			return
		}
		p.got <- m
	}); err != nil {
		w.t.Fatal(err)
	}
	return p
}

// request makes the message of a call to any host.
func (p *peer) request(r *contextwire.Request) *nats.Msg {
	p.t.Helper()
	if r.CallID == "" {
		r.CallID = contextwire.NewCallID()
	}
	r.Attempt = max(r.Attempt, 1)
	h, body, err := contextwire.EncodeRequest(r, contextwire.JSON)
	if err != nil {
		p.t.Fatal(err)
	}
	return &nats.Msg{
		Subject: anyHost(r.ModuleID), Reply: p.inbox + "." + r.CallID, Header: nats.Header(h), Data: body,
	}
}

func anyHost(id string) string { return "apbus.v1.call.default._." + id }

func directed(n *bus.Node, id string) string {
	return "apbus.v1.call.default.@." + n.ID() + "." + n.Boot() + "." + id
}

func control(n *bus.Node, verb string) string {
	return "apbus.v1.node.default." + n.ID() + "." + n.Boot() + "." + verb
}

func (p *peer) send(m *nats.Msg) {
	p.t.Helper()
	if err := p.Publish(m); err != nil {
		p.t.Fatal(err)
	}
}

func (p *peer) answer(m *nats.Msg, f *contextwire.Frame) {
	p.t.Helper()
	one := *f
	one.CallID = contextwire.Header(m.Header).Get(contextwire.HeaderCall)
	if one.Node == "" {
		one.Node, one.Boot = "peer", "b1"
	}
	h, body, err := contextwire.EncodeFrame(&one, contextwire.JSON)
	if err == nil {
		err = p.Publish(&nats.Msg{Subject: m.Reply, Header: nats.Header(h), Data: body})
	}
	if err != nil {
		p.t.Error(err) // Fatal would end the subscription's goroutine
	}
}

// frames returns what has come so far, decoded.
func (p *peer) frames() []*contextwire.Frame {
	p.t.Helper()
	synctest.Wait()
	var out []*contextwire.Frame
	for len(p.got) > 0 {
		out = append(out, p.decode(<-p.got))
	}
	return out
}

func (p *peer) decode(m *nats.Msg) *contextwire.Frame {
	p.t.Helper()
	f, err := contextwire.DecodeFrame(contextwire.Header(m.Header), m.Data, contextwire.DefaultLimits())
	if err != nil {
		p.t.Fatalf("%v in %v", err, m)
	}
	return f
}

// next waits for the next frame.
func (p *peer) next() *contextwire.Frame {
	p.t.Helper()
	select {
	case m := <-p.got:
		return p.decode(m)
	case <-time.After(time.Minute):
		p.t.Fatal("no frame came")
		return nil
	}
}

// ask sends a control message and returns the answering frame.
func (p *peer) ask(subject string, body contextwire.ControlMessage) *contextwire.Frame {
	p.t.Helper()
	raw, err := contextwire.EncodeControl(body, contextwire.JSON)
	if err != nil {
		p.t.Fatal(err)
	}
	ctx, stop := context.WithTimeout(p.t.Context(), time.Second)
	defer stop()
	m, err := p.Request(ctx, &nats.Msg{Subject: subject, Data: raw})
	if err != nil {
		p.t.Fatal(err)
	}
	return p.decode(m)
}

// hosts answers calls to a module by hand: with reply's frames, called with the
// attempt's number.
func (p *peer) hosts(id string, reply func(m *nats.Msg, attempt string) []*contextwire.Frame) {
	p.t.Helper()
	_, err := p.Subscribe(anyHost(id), "apbus", func(m *nats.Msg) {
		for _, f := range reply(m, contextwire.Header(m.Header).Get(contextwire.HeaderAttempt)) {
			p.answer(m, f)
		}
	})
	if err != nil {
		p.t.Fatal(err)
	}
}

func result(body map[string]any) *contextwire.Frame {
	return &contextwire.Frame{Kind: contextwire.FrameResult, Body: body}
}

func failure(e *module.Error) *contextwire.Frame {
	return &contextwire.Frame{Kind: contextwire.FrameError, Err: e}
}

func kinds(frames []*contextwire.Frame) []contextwire.FrameKind {
	var out []contextwire.FrameKind
	for _, f := range frames {
		out = append(out, f.Kind)
	}
	return slices.Clip(out)
}
