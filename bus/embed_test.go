package bus_test

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nats.go/micro"

	"github.com/apbus/apbus/bus"
	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/module"
)

func TestStartEmbeddedSaysWhatIsWrong(t *testing.T) {
	busy, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = busy.Close() }()
	locked := t.TempDir()
	first, err := bus.StartEmbedded(bus.EmbedOptions{NoListen: true, DataDir: locked})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name string
		opts bus.EmbedOptions
		want string
	}{
		{"busy port", bus.EmbedOptions{Listen: busy.Addr().String(), DataDir: t.TempDir()}, busy.Addr().String()},
		{"no address", bus.EmbedOptions{Listen: "nowhere", DataDir: t.TempDir()}, "nowhere"},
		{"no port", bus.EmbedOptions{Listen: "127.0.0.1:http", DataDir: t.TempDir()}, "port"},
		{"port too large", bus.EmbedOptions{Listen: "127.0.0.1:70000", DataDir: t.TempDir()}, "port"},
		{"locked directory", bus.EmbedOptions{NoListen: true, DataDir: locked}, "in use by another process"},
		{"file for a directory", bus.EmbedOptions{NoListen: true, DataDir: file}, "data directory"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, err := bus.StartEmbedded(tt.opts)
			if err == nil {
				s.Shutdown()
				t.Fatal("it started")
			}
			if wantCode(t, err, module.CodeConfigInvalid); !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%q does not speak of %q", err, tt.want)
			}
		})
	}
	first.Shutdown()
	again, err := bus.StartEmbedded(bus.EmbedOptions{NoListen: true, DataDir: locked})
	if err != nil {
		t.Fatalf("after a shutdown the directory is still locked: %v", err)
	}
	if again.URL() != "" {
		t.Errorf("a server that does not listen has URL %s", again.URL())
	}
	again.Shutdown()
}

func TestStartEmbeddedListens(t *testing.T) {
	s, err := bus.StartEmbedded(bus.EmbedOptions{Listen: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Shutdown()
	conns, err := bus.Connect(t.Context(), bus.Options{Servers: []string{s.URL()}, Logger: quiet()})
	if err != nil {
		t.Fatal(err)
	}
	defer conns.Close()
	n, err := bus.NewNode(conns, newStubHost().add("mod.x", module.Annotations{}, echo), bus.NodeOptions{ID: "n1", Logger: quiet()})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = n.Close() }()
	c, err := bus.NewClient(conns, bus.ClientOptions{Logger: quiet()})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.Ready(t.Context()); err != nil {
		t.Error(err)
	}
	if err := c.WaitModule(t.Context(), "mod.x"); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Call(t.Context(), "mod.x", nil); err != nil {
		t.Error(err)
	}
}

func TestConnectToNobodyIsDisconnected(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	_ = l.Close()
	_, err = bus.Connect(t.Context(), bus.Options{Servers: []string{"nats://" + addr}, Logger: quiet()})
	wantCode(t, err, module.CodeBusDisconnected)
}

func TestCheckStreamsRefusesWhatCapturesCalls(t *testing.T) {
	for _, tt := range []struct {
		subject string
		ok      bool
	}{
		{"apbus.v1.evt.>", true},
		{"apbus.v1.task.default.>", true},
		{"other.>", true},
		{"apbus.v1.call.default._.math.add", false},
		{"apbus.v1.call.other.>", false},
		{"apbus.v1.check.>", false},
		{"apbus.v1.cancel.default._all", false},
		{"apbus.v1.node.*.*.*.ping", false},
		{"apbus.v1.>", false},
		{"apbus.>", false},
		{"*.v1.*.>", false},
	} {
		t.Run(tt.subject, func(t *testing.T) {
			onMesh(t, func(m *mesh) {
				conns := m.conns()
				_, err := conns.JS.CreateStream(m.within(5e9), jetstream.StreamConfig{Name: "S", Subjects: []string{tt.subject}, NoAck: strings.HasPrefix(tt.subject, "*")})
				if err != nil {
					m.t.Fatal(err)
				}
				err = bus.CheckStreams(m.t.Context(), conns, "")
				if tt.ok && err != nil {
					m.t.Errorf("refused: %v", err)
				}
				if !tt.ok && (module.CodeOf(err) != module.CodeConfigInvalid || !strings.Contains(err.Error(), "stream S")) {
					m.t.Errorf("got %v, want an error that names the stream", err)
				}
			})
		})
	}
}

func TestNodeIsAMicroService(t *testing.T) {
	onMesh(t, func(m *mesh) {
		n := m.node("n1", newStubHost().add("mod.x", module.Annotations{}, echo), func(o *bus.NodeOptions) { o.Version = "1.2.3" })
		nc := m.connect()
		ask := func(subject, body string) map[string]any {
			m.t.Helper()
			reply, err := nc.RequestMsgWithContext(m.within(5e9), &nats.Msg{Subject: subject, Data: []byte(body)})
			if err != nil {
				m.t.Fatalf("%s: %v", subject, err)
			}
			got, err := contextwire.DecodeMap(contextwire.JSON, reply.Data, contextwire.DefaultLimits())
			if err != nil {
				m.t.Fatalf("%s: %v", subject, err)
			}
			return got
		}
		for _, verb := range []micro.Verb{micro.PingVerb, micro.InfoVerb, micro.StatsVerb} {
			subject, err := micro.ControlSubject(verb, "apbus-node", "")
			if err != nil {
				m.t.Fatal(err)
			}
			got := ask(subject, "")
			meta, _ := got["metadata"].(map[string]any)
			if got["name"] != "apbus-node" || got["version"] != "1.2.3" || meta["node"] != "n1" || meta["boot"] != n.Boot() || meta["ns"] != "default" || meta["protocol"] != "1" {
				m.t.Errorf("%s: %v", verb, got)
			}
		}
		if d := ask(control(n, "describe"), ""); d["node"] != "n1" || len(d["modules"].([]any)) != 1 {
			m.t.Errorf("describe: %v", d)
		}
		if d := ask(control(n, "describe"), `{"module":"mod.x"}`); d["module_id"] != "mod.x" {
			m.t.Errorf("describe a module: %v", d)
		}
		if d := ask(control(n, "describe"), `{"module":"no.such"}`); d["code"] != string(module.CodeModuleNotFound) {
			m.t.Errorf("describe an unknown module: %v", d)
		}
		if d := ask(control(n, "stats"), ""); d["capacity"] != int64(256) || d["in_flight"] != int64(0) {
			m.t.Errorf("stats: %v", d)
		}
	})
}
