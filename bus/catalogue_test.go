package bus_test

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/apbus/apbus/bus"
	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/module"
)

// lockedLog is a log that a test may read while others write.
type lockedLog struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *lockedLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *lockedLog) count(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.buf.String(), text)
}

func (m *mesh) kv(bucket string) jetstream.KeyValue {
	m.t.Helper()
	js, err := jetstream.New(m.connect())
	if err != nil {
		m.t.Fatal(err)
	}
	kv, err := js.KeyValue(m.within(time.Minute), bucket)
	if err != nil {
		m.t.Fatal(err)
	}
	return kv
}

func TestCatalogueFollowsNodes(t *testing.T) {
	onMesh(t, func(m *mesh) {
		c := m.client()
		if got := c.Modules(); len(got) != 0 {
			m.t.Errorf("modules before any node: %v", got)
		}
		h := newStubHost().add("mod.b", module.Annotations{Readonly: true}, echo)
		n := m.node("n1", h, func(o *bus.NodeOptions) { o.MaxInFlight, o.CallGrace = 7, func() time.Duration { return time.Second } })
		m.wait(c, "mod.b")
		h.add("mod.a", module.Annotations{}, echo) // a change shows at once
		began := time.Now()
		m.wait(c, "mod.a")
		if took := time.Since(began); took > 100*time.Millisecond {
			m.t.Errorf("a new module showed after %v", took)
		}
		list := c.Modules()
		if len(list) != 2 || list[0].Descriptor.ID != "mod.a" || list[1].Descriptor.ID != "mod.b" {
			m.t.Fatalf("modules %+v, want mod.a and mod.b", list)
		}
		b := list[1]
		want := []bus.HostRef{{Node: "n1", Boot: n.Boot(), Version: "1.0.0", Hash: b.Hash}}
		if diff := cmp.Diff(want, b.Hosts); diff != "" {
			m.t.Errorf("hosts (-want +got):\n%s", diff)
		}
		if !b.Descriptor.Annotations.Readonly || b.Descriptor.Hash() != b.Hash {
			m.t.Errorf("descriptor %+v with hash %s", b.Descriptor, b.Hash)
		}
		nodes := c.Nodes()
		if len(nodes) != 1 || nodes[0].Node != "n1" || nodes[0].Boot != n.Boot() || nodes[0].Capacity != 7 || nodes[0].GraceMS != 1000 || nodes[0].Stale || nodes[0].MaxPayload != 1<<20 {
			m.t.Errorf("nodes %+v", nodes)
		}
		if err := n.Close(); err != nil {
			m.t.Fatal(err)
		}
		pass(100 * time.Millisecond)
		if len(c.Nodes()) != 0 || len(c.Modules()) != 0 {
			m.t.Errorf("a closed node still shows: %v %v", c.Nodes(), c.Modules())
		}
		late := m.client() // a client that never saw it alive
		_, err := late.Call(m.t.Context(), "mod.a", nil)
		wantCode(m.t, err, module.CodeBusNoResponders)
		_, err = late.Call(m.t.Context(), "mod.never", nil)
		wantCode(m.t, err, module.CodeModuleNotFound)
	})
}

// The record of a process that died expires; until then, and a while longer, its
// entry is usable as stale.
func TestRecordOfADeadNodeExpires(t *testing.T) {
	onMesh(t, func(m *mesh) {
		conns := m.conns()
		m.nodeOn(conns, "n1", newStubHost().add("mod.x", module.Annotations{}, echo))
		c := m.client()
		m.wait(c, "mod.x")
		pass(20 * time.Second)
		if nodes := c.Nodes(); len(nodes) != 1 || nodes[0].Stale {
			m.t.Fatalf("a live node is %+v after 20 s", nodes)
		}
		conns.Close()
		pass(11 * time.Second)
		if nodes := c.Nodes(); len(nodes) != 1 || nodes[0].Stale {
			m.t.Errorf("11 s after its death: %+v, want a fresh record", nodes)
		}
		pass(6 * time.Second)
		if nodes := c.Nodes(); len(nodes) != 1 || !nodes[0].Stale {
			m.t.Errorf("17 s after its death: %+v, want a stale record", nodes)
		}
		pass(16 * time.Second)
		if nodes := c.Nodes(); len(nodes) != 0 {
			m.t.Errorf("33 s after its death: %+v, want none", nodes)
		}
		if lost := c.Lost("mod.x"); len(lost) != 1 || lost[0].Node != "n1" {
			m.t.Errorf("33 s after its death, %+v is lost, want n1", lost)
		}
		pass(30 * time.Second)
		if lost := c.Lost("mod.x"); len(lost) != 0 {
			m.t.Errorf("after a minute, %+v is still lost", lost)
		}
		keys, err := m.kv("APBUS_NODES").Keys(m.within(time.Minute))
		if err == nil {
			m.t.Errorf("the bucket still holds %v", keys)
		}
	})
}

func TestCatalogueIsListedAgainAfterAReconnect(t *testing.T) {
	onMesh(t, func(m *mesh) {
		m.node("n1", newStubHost().add("mod.x", module.Annotations{}, echo))
		c := m.client()
		m.wait(c, "mod.x")
		m.stopServer()
		pass(20 * time.Second)
		if _, ok := c.Module("mod.x"); !ok {
			m.t.Error("20 s without the bus, the entry is not usable as stale")
		}
		m.start()
		m.node("n2", newStubHost().add("mod.y", module.Annotations{}, echo))
		pass(3 * time.Second)
		for _, id := range []string{"mod.x", "mod.y"} {
			if info, ok := c.Module(id); !ok || len(info.Hosts) != 1 {
				m.t.Errorf("3 s after the restart, %s has hosts %v", id, info.Hosts)
			}
		}
		for _, n := range c.Nodes() {
			if n.Stale {
				m.t.Errorf("%s is still stale", n.Node)
			}
		}
	})
}

func TestVersionForkIsLogged(t *testing.T) {
	onMesh(t, func(m *mesh) {
		var log lockedLog
		c, err := bus.NewClient(m.conns(), bus.ClientOptions{Logger: slog.New(slog.NewTextHandler(&log, nil))})
		if err != nil {
			m.t.Fatal(err)
		}
		m.undo = append(m.undo, c.Close)
		m.node("n1", newStubHost().add("mod.x", module.Annotations{}, echo))
		m.node("n2", newStubHost().add("mod.x", module.Annotations{}, echo))
		m.waitHosts(c, "mod.x", 2)
		if log.count("version_fork") != 0 {
			m.t.Error("hosts that agree are called a fork")
		}
		m.node("n3", newStubHost().add("mod.x", module.Annotations{Idempotent: true}, echo))
		m.waitHosts(c, "mod.x", 3)
		if log.count("version_fork") == 0 || log.count("module_id=mod.x") == 0 {
			m.t.Error("hosts that disagree on a version are not logged")
		}
	})
}

func TestDescriptorsAreServedByHash(t *testing.T) {
	onMesh(t, func(m *mesh) {
		m.node("n1", newStubHost().add("mod.x", module.Annotations{}, echo))
		c := m.client()
		m.wait(c, "mod.x")
		info, _ := c.Module("mod.x")
		entry, err := m.kv("APBUS_MODULES").Get(m.within(time.Minute), info.Hash)
		if err != nil {
			m.t.Fatal(err)
		}
		got, err := contextwire.DecodeMap(contextwire.JSON, entry.Value(), contextwire.DefaultLimits())
		if err != nil || got["module_id"] != "mod.x" {
			m.t.Errorf("stored %v, %v", got, err)
		}
	})
}

// A descriptor that is not the one its hash names is not believed.
func TestForgedDescriptorIsIgnored(t *testing.T) {
	onMesh(t, func(m *mesh) {
		h := newStubHost().add("mod.x", module.Annotations{}, echo)
		n := m.node("n1", h)
		first := m.client()
		m.wait(first, "mod.x")
		info, _ := first.Module("mod.x")
		forged := info.Descriptor
		forged.Annotations.Idempotent = true
		body, err := contextwire.Encode(contextwire.JSON, forged.Map())
		if err != nil {
			m.t.Fatal(err)
		}
		if _, err := m.kv("APBUS_MODULES").Put(m.within(time.Minute), info.Hash, body); err != nil {
			m.t.Fatal(err)
		}
		c := m.client()
		pass(time.Second)
		if got, ok := c.Module("mod.x"); ok {
			m.t.Errorf("the forged descriptor is shown: %+v", got.Descriptor)
		}
		if reply, err := c.Invoke(m.t.Context(), &contextwire.Request{ModuleID: "mod.x"}); err != nil || reply.Node != n.ID() {
			m.t.Errorf("a call without a descriptor: %+v, %v", reply, err)
		}
	})
}

// Whatever is written into the nodes bucket, the catalogue goes on.
func TestGarbageRecordsAreIgnored(t *testing.T) {
	onMesh(t, func(m *mesh) {
		m.node("n1", newStubHost().add("mod.x", module.Annotations{}, echo))
		c := m.client()
		m.wait(c, "mod.x")
		nc := m.connect()
		for i, body := range []string{
			"", "null", "[]", "{}", "\xff\xfe", strings.Repeat("[", 10_000), `{"protocol":1}`,
			`{"protocol":1,"node":"A.B","boot":"x","ns":"default","modules":[]}`,
			`{"protocol":1,"node":"n2","boot":"x","ns":"default","modules":"mod.x"}`,
			`{"protocol":99,"node":"n2","boot":"x","ns":"default","modules":[{"id":"mod.x","version":"1.0.0","hash":"h"}]}`,
			`{"protocol":1,"node":"n2","boot":"x","ns":"other","modules":[]}`,
		} {
			subject := "$KV.APBUS_NODES.default.bad.k" + string(rune('a'+i))
			if err := nc.PublishMsg(&nats.Msg{Subject: subject, Data: []byte(body)}); err != nil {
				m.t.Fatal(err)
			}
		}
		if err := nc.FlushWithContext(m.within(time.Second)); err != nil {
			m.t.Fatal(err)
		}
		late := m.client() // reads them from the bucket
		m.wait(late, "mod.x")
		for name, one := range map[string]*bus.Client{"watching": c, "listing": late} {
			if nodes := one.Nodes(); len(nodes) != 1 || nodes[0].Node != "n1" {
				m.t.Errorf("%s: %+v", name, nodes)
			}
			if _, err := one.Call(m.t.Context(), "mod.x", nil); err != nil {
				m.t.Errorf("%s: %v", name, err)
			}
		}
	})
}

func TestWaitModuleEndsWithItsContext(t *testing.T) {
	onMesh(t, func(m *mesh) {
		ctx, stop := context.WithTimeout(m.t.Context(), time.Second)
		defer stop()
		if err := m.client().WaitModule(ctx, "mod.never"); err == nil {
			m.t.Error("WaitModule returns for a module that nobody hosts")
		}
	})
}
