package bustest_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"

	"github.com/apbus/apbus/bus"
	"github.com/apbus/apbus/bus/bustest"
	"github.com/apbus/apbus/module"
)

func TestMemKeepsTheContract(t *testing.T) {
	bustest.TestConn(t, func(*testing.T) bustest.Broker {
		mem := bustest.NewMem(bustest.Options{})
		return bustest.Broker{Open: func() bus.Conn { return mem.Open() }, Close: mem.Close}
	})
}

func TestServerKeepsTheContract(t *testing.T) {
	bustest.TestConn(t, func(t *testing.T) bustest.Broker {
		server, err := bus.StartEmbedded(bus.EmbedOptions{NoListen: true, DataDir: t.TempDir()})
		if err != nil {
			t.Fatal(err)
		}
		var open []*nats.Conn
		return bustest.Broker{
			Open: func() bus.Conn {
				nc, err := nats.Connect("", nats.InProcessServer(server.Server()), nats.ReconnectBufSize(-1))
				if err != nil {
					t.Fatal(err)
				}
				open = append(open, nc)
				return bus.WrapNATS(nc)
			},
			Close: func() {
				for _, nc := range open {
					nc.Close()
				}
				server.Shutdown()
			},
		}
	})
}

// pair is a broker with a publisher and a subscriber of everything.
type pair struct {
	t        *testing.T
	mem      *bustest.Mem
	from, to *bustest.Conn
	got      []string
}

func onPair(t *testing.T, test func(*pair)) {
	synctest.Test(t, func(t *testing.T) {
		p := &pair{t: t, mem: bustest.NewMem(bustest.Options{})}
		defer p.mem.Close()
		p.from, p.to = p.mem.Open(), p.mem.Open()
		if _, err := p.to.Subscribe("x.>", "", func(m *nats.Msg) { p.got = append(p.got, string(m.Data)) }); err != nil {
			t.Fatal(err)
		}
		test(p)
	})
}

func (p *pair) send(subject string, bodies ...string) {
	p.t.Helper()
	for _, body := range bodies {
		if err := p.from.Publish(&nats.Msg{Subject: subject, Data: []byte(body)}); err != nil {
			p.t.Fatal(err)
		}
	}
}

func (p *pair) want(want string) {
	p.t.Helper()
	synctest.Wait()
	if got := strings.Join(p.got, " "); got != want {
		p.t.Errorf("arrived %q, want %q", got, want)
	}
}

func TestDropLosesTheNextMessages(t *testing.T) {
	for name, place := range map[string]func(*pair) *bustest.Faults{
		"out": func(p *pair) *bustest.Faults { return p.from.Out },
		"all": func(p *pair) *bustest.Faults { return p.mem.All },
		"in":  func(p *pair) *bustest.Faults { return p.to.In },
	} {
		t.Run(name, func(t *testing.T) {
			onPair(t, func(p *pair) {
				place(p).Drop("x.a", 2)
				p.send("x.a", "1")
				p.send("x.b", "2")
				p.send("x.a", "3", "4")
				p.want("2 4")
				place(p).Drop("x.>", -1)
				p.send("x.a", "5")
				p.want("2 4")
			})
		})
	}
}

func TestDropIfAsksUntilStopped(t *testing.T) {
	onPair(t, func(p *pair) {
		stop := p.mem.All.DropIf(func(m *nats.Msg) bool { return string(m.Data) == "bad" })
		p.send("x.a", "bad", "good", "bad")
		stop()
		p.send("x.a", "bad")
		p.want("good bad")
	})
}

func TestHoldReleasesInOrder(t *testing.T) {
	onPair(t, func(p *pair) {
		release := p.to.In.Hold("x.a")
		p.send("x.a", "1", "2")
		p.send("x.b", "3")
		p.want("3")
		release()
		p.send("x.a", "4")
		p.want("3 1 2 4")
		release() // nothing comes twice
		p.want("3 1 2 4")
	})
}

func TestDuplicateDeliversTwice(t *testing.T) {
	onPair(t, func(p *pair) {
		p.from.Out.Duplicate("x.>", 1)
		p.send("x.a", "1", "2")
		p.want("1 1 2")
	})
}

func TestFreezeStopsBothDirections(t *testing.T) {
	onPair(t, func(p *pair) {
		p.to.Freeze()
		p.send("x.a", "1", "2")
		p.want("")
		ctx, stop := context.WithTimeoutCause(p.t.Context(), time.Second, errors.New("frozen"))
		defer stop()
		if _, err := p.from.Request(ctx, &nats.Msg{Subject: "x.a", Data: []byte("3")}); err == nil || err.Error() != "frozen" {
			t.Errorf("request to a frozen process: %v, want silence until the context ends", err)
		}
		p.to.Thaw()
		p.want("1 2 3")
		p.from.Freeze()
		p.send("x.a", "4", "5")
		p.want("1 2 3")
		p.from.Thaw()
		p.send("x.a", "6")
		p.want("1 2 3 4 5 6")
	})
}

func TestPartitionIsABlackHole(t *testing.T) {
	onPair(t, func(p *pair) {
		for name, cut := range map[string]*bustest.Conn{"receiver": p.to, "sender": p.from} {
			p.got = nil
			cut.Partition()
			p.send("x.a", "lost")
			ctx, stop := context.WithTimeoutCause(p.t.Context(), time.Second, errors.New("silence"))
			if _, err := p.from.Request(ctx, &nats.Msg{Subject: "x.a"}); err == nil || err.Error() != "silence" {
				t.Errorf("%s cut off: request ends with %v, want silence", name, err)
			}
			if err := cut.Flush(ctx); err == nil {
				t.Errorf("%s cut off: Flush succeeds", name)
			}
			stop()
			if !cut.Connected() {
				t.Errorf("%s cut off: it notices", name)
			}
			cut.Heal()
			p.send("x.a", name)
			p.want(name)
		}
	})
}

func TestKillIsNoticed(t *testing.T) {
	onPair(t, func(p *pair) {
		waiting := make(chan error, 1)
		go func() {
			_, err := p.to.Request(p.t.Context(), &nats.Msg{Subject: "x.self"})
			waiting <- err
		}()
		synctest.Wait()
		p.to.Kill()
		p.to.Kill()
		if err := <-waiting; module.CodeOf(err) != module.CodeBusDisconnected {
			t.Errorf("its own request: %v, want %s", err, module.CodeBusDisconnected)
		}
		if _, err := p.from.Request(p.t.Context(), &nats.Msg{Subject: "x.a"}); !errors.Is(err, bus.ErrNoResponders) {
			t.Errorf("a request to it: %v, want %v", err, bus.ErrNoResponders)
		}
		if err := p.to.Publish(&nats.Msg{Subject: "x.a"}); module.CodeOf(err) != module.CodeBusDisconnected {
			t.Errorf("publish: %v, want %s", err, module.CodeBusDisconnected)
		}
		if _, err := p.to.Subscribe("x.a", "", func(*nats.Msg) {}); module.CodeOf(err) != module.CodeBusDisconnected {
			t.Errorf("subscribe: %v, want %s", err, module.CodeBusDisconnected)
		}
		if p.to.Connected() || p.mem.Listening("x.a") != 0 {
			t.Error("a killed connection still counts")
		}
	})
}

func TestMatches(t *testing.T) {
	got := map[string]bool{}
	for _, pattern := range []string{"a", "*", ">", "a.>", "a.*", "*.b"} {
		for _, subject := range []string{"a", "a.b", "a.b.c", "b"} {
			if bustest.Matches(pattern, subject) {
				got[pattern+" "+subject] = true
			}
		}
	}
	want := map[string]bool{
		"a a": true, "* a": true, "* b": true, "> a": true, "> a.b": true, "> a.b.c": true, "> b": true,
		"a.> a.b": true, "a.> a.b.c": true, "a.* a.b": true, "*.b a.b": true,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("matches (-want +got):\n%s", diff)
	}
}
