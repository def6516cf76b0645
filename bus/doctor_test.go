package bus_test

import (
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nats.go/micro"

	"github.com/apbus/apbus/bus"
	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/internal/natstest"
	"github.com/apbus/apbus/module"
)

// diagnosis is what the doctor says, by check.
type diagnosis map[string]bus.HealthCheck

func (m *mesh) diagnose(o bus.DoctorOptions) diagnosis {
	m.t.Helper()
	return diagnose(m.t, bus.Options{InProcess: m, Logger: quiet()}, o)
}

func diagnose(t *testing.T, o bus.Options, d bus.DoctorOptions) diagnosis {
	t.Helper()
	checks, err := bus.Diagnose(t.Context(), o, d)
	if err != nil {
		t.Fatal(err)
	}
	by := diagnosis{}
	for _, c := range checks {
		by[c.Name] = c
		if (c.State == bus.CheckFound) != (len(c.Findings) > 0) {
			t.Errorf("%s: state %s with %d findings", c.Name, c.State, len(c.Findings))
		}
		for _, f := range c.Findings {
			if f.What == "" || f.Problem == "" || f.Mend == "" || f.Severity == "" {
				t.Errorf("%s: incomplete finding %+v", c.Name, f)
			}
		}
	}
	return by
}

// want requires a finding of a check that mentions all parts, and nothing of the
// checks that are not named.
func (d diagnosis) want(t *testing.T, check string, parts ...string) {
	t.Helper()
	for _, f := range d[check].Findings {
		all := fmt.Sprint(f)
		missing := false
		for _, p := range parts {
			missing = missing || !strings.Contains(all, p)
		}
		if !missing {
			return
		}
	}
	t.Errorf("%s: %+v, want a finding with %q", check, d[check], parts)
}

func (d diagnosis) wantOK(t *testing.T, except ...string) {
	t.Helper()
	skip := map[string]bool{}
	for _, name := range except {
		skip[name] = true
	}
	for name, c := range d {
		if !skip[name] && c.State != bus.CheckOK {
			t.Errorf("%s: %+v, want it to be ok", name, c)
		}
	}
}

// list puts a record into the catalogue that no process stands behind.
func (m *mesh) list(edit func(*contextwire.NodeRecord)) {
	m.t.Helper()
	r := contextwire.NodeRecord{
		Protocol: contextwire.ProtocolVersion, Node: "ghost", Boot: "b0", NS: "default", MaxPayload: 1 << 20, Version: "0.0.0", Capacity: 1, At: time.Now(),
	}
	edit(&r)
	body, err := contextwire.Encode(contextwire.JSON, r.Map())
	if err != nil {
		m.t.Fatal(err)
	}
	kv, err := m.conns().JS.KeyValue(m.t.Context(), "APBUS_NODES")
	if err != nil {
		m.t.Fatal(err)
	}
	if _, err := kv.Put(m.t.Context(), "default."+r.Node+"."+r.Boot, body); err != nil {
		m.t.Fatal(err)
	}
}

// healthy is a mesh of two nodes that have a module in common.
func healthy(m *mesh) {
	m.t.Helper()
	for _, id := range []string{"n1", "n2"} {
		m.node(id, newStubHost().add("mod.x", module.Annotations{}, echo))
	}
	m.waitHosts(m.client(), "mod.x", 2)
}

func TestDoctorFindsNothing(t *testing.T) {
	onMesh(t, func(m *mesh) {
		healthy(m)
		for _, role := range []bus.Role{"", bus.RoleRouter, bus.RoleNode} {
			m.diagnose(bus.DoctorOptions{Role: role}).wantOK(m.t)
			m.diagnose(bus.DoctorOptions{Role: role, Server: m.server.Load()}).wantOK(m.t)
		}
	})
}

func TestDoctorOnAnEmptyBus(t *testing.T) {
	onMesh(t, func(m *mesh) {
		d := m.diagnose(bus.DoctorOptions{})
		for _, name := range []string{"catalogue", "clock_skew", "versions", "max_payload"} {
			if c := d[name]; c.State != bus.CheckSkipped || !strings.Contains(c.Note, "no catalogue yet") {
				m.t.Errorf("%s: %+v", name, c)
			}
		}
		if _, err := m.conns().JS.KeyValue(m.t.Context(), "APBUS_NODES"); err == nil {
			m.t.Error("the doctor made a catalogue")
		}
	})
}

func TestDoctorFindsStreamsOverTheCalls(t *testing.T) {
	onMesh(t, func(m *mesh) {
		healthy(m)
		js := m.conns().JS
		for name, subject := range map[string]string{"CALLS": "apbus.v1.call.>", "EVENTS": "apbus.v1.evt.>"} {
			if _, err := js.CreateStream(m.t.Context(), jetstream.StreamConfig{Name: name, Subjects: []string{subject}}); err != nil {
				m.t.Fatal(err)
			}
		}
		d := m.diagnose(bus.DoctorOptions{})
		d.want(m.t, "stream_overlap", "CALLS", "apbus.v1.call.>", "nats stream edit CALLS")
		if n := len(d["stream_overlap"].Findings); n != 1 {
			m.t.Errorf("%d findings, want one", n)
		}
		d.want(m.t, "wildcard_listener", "a stream") // which it is too
		d.wantOK(m.t, "stream_overlap", "wildcard_listener")
	})
}

func TestDoctorFindsListeners(t *testing.T) {
	for _, tt := range []struct{ name, subject string }{
		{"all calls", "apbus.v1.call.>"},
		{"calls of the namespace", "apbus.v1.call.default.>"},
		{"all directed calls", "apbus.v1.call.default.@.*.*.>"},
		{"checks", "apbus.v1.check.default._.>"},
		{"cancels", "apbus.v1.cancel.default.>"},
		{"control", "apbus.v1.node.>"},
		{"everything", ">"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			onMesh(t, func(m *mesh) {
				healthy(m)
				nc := m.connect()
				if _, err := nc.SubscribeSync(tt.subject); err != nil {
					m.t.Fatal(err)
				}
				if err := nc.Flush(); err != nil {
					m.t.Fatal(err)
				}
				outside := m.diagnose(bus.DoctorOptions{})
				outside.want(m.t, "wildcard_listener", "does not answer", "no such module or node")
				outside.wantOK(m.t, "wildcard_listener", "catalogue")
				m.diagnose(bus.DoctorOptions{Server: m.server.Load()}).want(m.t, "wildcard_listener", tt.subject, "connection")
			})
		})
	}
}

func TestDoctorFindsQueueGroups(t *testing.T) {
	t.Run("a micro service", func(t *testing.T) {
		onMesh(t, func(m *mesh) {
			healthy(m)
			service, err := micro.AddService(m.connect(), micro.Config{Name: "worker", Version: "1.0.0"})
			if err != nil {
				m.t.Fatal(err)
			}
			ignore := micro.HandlerFunc(func(micro.Request) {})
			if err := service.AddEndpoint("call", ignore, micro.WithEndpointSubject("apbus.v1.call.default._.mod.x"), micro.WithEndpointQueueGroup("workers")); err != nil {
				m.t.Fatal(err)
			}
			d := m.diagnose(bus.DoctorOptions{})
			d.want(m.t, "queue_groups", "apbus.v1.call.default._.mod.x", `"workers"`, "service worker")
			d.wantOK(m.t, "queue_groups")
		})
	})
	t.Run("a plain subscriber, looked at from inside", func(t *testing.T) {
		onMesh(t, func(m *mesh) {
			healthy(m)
			nc := m.connect()
			if _, err := nc.QueueSubscribe("apbus.v1.call.default._.mod.x", "workers", func(*nats.Msg) {}); err != nil {
				m.t.Fatal(err)
			}
			if err := nc.Flush(); err != nil {
				m.t.Fatal(err)
			}
			d := m.diagnose(bus.DoctorOptions{Server: m.server.Load()})
			d.want(m.t, "queue_groups", "apbus.v1.call.default._.mod.x", `"workers"`, "connection")
			d.wantOK(m.t, "queue_groups")
		})
	})
	t.Run("two that answer", func(t *testing.T) {
		onMesh(t, func(m *mesh) {
			healthy(m)
			nc := m.connect()
			if _, err := nc.QueueSubscribe("apbus.v1.check.default._.mod.x", "workers", func(r *nats.Msg) { _ = r.Respond([]byte("{}")) }); err != nil {
				m.t.Fatal(err)
			}
			if err := nc.Flush(); err != nil {
				m.t.Fatal(err)
			}
			m.diagnose(bus.DoctorOptions{}).want(m.t, "queue_groups", "2 answers")
		})
	})
}

func TestDoctorFindsStaleEntries(t *testing.T) {
	onMesh(t, func(m *mesh) {
		healthy(m)
		m.list(func(*contextwire.NodeRecord) {})
		d := m.diagnose(bus.DoctorOptions{})
		d.want(m.t, "catalogue", "node ghost", "the process is gone")
		d.wantOK(m.t, "catalogue")
	})
}

func TestDoctorFindsABucketThatForgetsNothing(t *testing.T) {
	onMesh(t, func(m *mesh) {
		if _, err := m.conns().JS.CreateKeyValue(m.t.Context(), jetstream.KeyValueConfig{Bucket: "APBUS_NODES", Storage: jetstream.MemoryStorage}); err != nil {
			m.t.Fatal(err)
		}
		healthy(m)
		m.diagnose(bus.DoctorOptions{}).want(m.t, "catalogue", "bucket APBUS_NODES", "kept for ever", "--max-age 15s")
	})
}

func TestDoctorFindsTwoNodesOfOneID(t *testing.T) {
	onMesh(t, func(m *mesh) {
		healthy(m)
		m.node("n1", newStubHost())
		pass(time.Second)
		m.diagnose(bus.DoctorOptions{}).want(m.t, "catalogue", "node n1", "2 processes")
	})
}

func TestDoctorFindsWrongClocks(t *testing.T) {
	onMesh(t, func(m *mesh) {
		healthy(m)
		m.list(func(r *contextwire.NodeRecord) { r.Node, r.At = "early", time.Now().Add(-time.Minute) })
		m.list(func(r *contextwire.NodeRecord) { r.Node, r.At = "late", time.Now().Add(time.Hour) })
		m.list(func(r *contextwire.NodeRecord) { r.Node, r.At = "near", time.Now().Add(time.Second) })
		d := m.diagnose(bus.DoctorOptions{})
		d.want(m.t, "clock_skew", "node early", "1m0s behind")
		d.want(m.t, "clock_skew", "node late", "1h0m0s ahead of")
		if n := len(d["clock_skew"].Findings); n != 2 {
			m.t.Errorf("%d findings, want two: %+v", n, d["clock_skew"])
		}
	})
}

func TestDoctorFindsDifferences(t *testing.T) {
	onMesh(t, func(m *mesh) {
		m.node("n1", newStubHost().add("mod.x", module.Annotations{}, echo), func(o *bus.NodeOptions) { o.Version = "1.0.0" })
		m.node("n2", newStubHost().add("mod.x", module.Annotations{Readonly: true}, echo), func(o *bus.NodeOptions) { o.Version = "1.1.0" })
		m.waitHosts(m.client(), "mod.x", 2)
		m.list(func(r *contextwire.NodeRecord) { r.Node, r.Protocol, r.Version = "new", 2, "1.1.0" })
		m.list(func(r *contextwire.NodeRecord) { r.Node, r.MaxPayload, r.Version = "small", 65536, "1.1.0" })
		d := m.diagnose(bus.DoctorOptions{})
		d.want(m.t, "versions", "1.0.0 (n1), 1.1.0 (n2, new, small)")
		d.want(m.t, "versions", "module mod.x", "(n1)", "(n2)")
		d.want(m.t, "versions", "node new", "version 2")
		d.want(m.t, "max_payload", "65536 bytes (small), 1048576 bytes (n1, n2, new, this connection)")
	})
}

// inBubble runs a test with a server of its own configuration.
func inBubble(t *testing.T, configure func(*server.Options), test func(t *testing.T, o bus.Options)) {
	t.Helper()
	natstest.Bubble(t, func(t *testing.T) {
		opts := &server.Options{NoSigs: true, NoLog: true, DontListen: true, JetStream: true, StoreDir: t.TempDir()}
		configure(opts)
		s, err := server.NewServer(opts)
		if err != nil {
			t.Fatal(err)
		}
		s.Start()
		if !s.ReadyForConnections(10 * time.Second) {
			t.Fatal("the server is not ready")
		}
		test(t, bus.Options{InProcess: s, Logger: quiet()})
		s.Shutdown()
		s.WaitForShutdown()
	})
}

func TestDoctorFindsMissingPermissions(t *testing.T) {
	user := func(name string, p *server.Permissions) *server.User {
		return &server.User{Username: name, Password: "pw", Permissions: p}
	}
	subjects := func(allow ...string) *server.SubjectPermission { return &server.SubjectPermission{Allow: allow} }
	inBubble(t, func(o *server.Options) {
		o.Users = []*server.User{
			user("router", &server.Permissions{
				Publish: subjects("apbus.v1.call.>", "apbus.v1.check.>", "apbus.v1.node.>", "$JS.API.>"), Subscribe: subjects("_INBOX.>"),
			}),
			user("node", &server.Permissions{
				Publish:   subjects("apbus.v1.>", "$JS.API.>", "_INBOX.>"),
				Subscribe: subjects("_INBOX.>", "$KV.>", "apbus.v1.call.>", "apbus.v1.check.>", "apbus.v1.cancel.>"),
			}),
			user("all", nil),
		}
	}, func(t *testing.T, o bus.Options) {
		as := func(name string, role bus.Role) diagnosis {
			o := o
			o.Extra = []nats.Option{nats.UserInfo(name, "pw")}
			return diagnose(t, o, bus.DoctorOptions{Role: role})
		}
		d := as("router", bus.RoleRouter)
		d.want(t, "permissions", "publish apbus.v1.cancel.default.", "which cancelling needs")
		d.want(t, "permissions", "subscribe $KV.APBUS_NODES.default.>", "which reading the catalogue needs")
		if n := len(d["permissions"].Findings); n != 2 {
			t.Errorf("%d findings, want two: %+v", n, d["permissions"])
		}
		if d["wildcard_listener"].State != bus.CheckOK {
			t.Errorf("listeners: %+v", d["wildcard_listener"])
		}
		d = as("node", bus.RoleNode)
		d.want(t, "permissions", "publish $KV.APBUS_NODES.default.", "being listed in the catalogue")
		d.want(t, "permissions", "subscribe apbus.v1.node.default.", "showing that it lives")
		if n := len(d["permissions"].Findings); n != 2 {
			t.Errorf("%d findings, want two: %+v", n, d["permissions"])
		}
		as("all", bus.RoleNode).wantOK(t, "catalogue", "clock_skew", "versions", "max_payload")
	})
}

func TestDoctorFindsNoJetStream(t *testing.T) {
	inBubble(t, func(o *server.Options) { o.JetStream = false }, func(t *testing.T, o bus.Options) {
		d := diagnose(t, o, bus.DoctorOptions{})
		d.want(t, "jetstream", "switched off", "store_dir")
		for _, name := range []string{"stream_overlap", "catalogue", "clock_skew", "versions", "max_payload"} {
			if c := d[name]; c.State != bus.CheckSkipped || c.Note == "" {
				t.Errorf("%s: %+v", name, c)
			}
		}
	})
}

func TestDoctorRefuses(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	_ = l.Close()
	for _, tt := range []struct {
		name string
		o    bus.DoctorOptions
		want module.Code
	}{
		{"nobody there", bus.DoctorOptions{}, module.CodeBusDisconnected},
		{"bad namespace", bus.DoctorOptions{Namespace: "A.B"}, module.CodeConfigInvalid},
		{"bad role", bus.DoctorOptions{Role: "king"}, module.CodeInvalidInput},
	} {
		_, err := bus.Diagnose(t.Context(), bus.Options{Servers: []string{"nats://" + addr}, Logger: quiet()}, tt.o)
		if module.CodeOf(err) != tt.want {
			t.Errorf("%s: %v, want %s", tt.name, err, tt.want)
		}
	}
}
