package integration_test

import (
	"context"
	"io"
	"log/slog"
	"testing"
	"time"

	"github.com/apbus/apbus/bus"
	"github.com/apbus/apbus/executor"
	"github.com/apbus/apbus/executor/registry"
	"github.com/apbus/apbus/internal/natstest"
	"github.com/apbus/apbus/module"
)

// A module whose time is over may clean up: what it returns within the grace
// period reaches the caller as details.partial, over the bus as in one process,
// and one that ignores its end is given up when the period is over.
func TestGraceHoldsOverTheBus(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		quiet := slog.New(slog.NewTextHandler(io.Discard, nil))
		must := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		server, err := bus.StartEmbedded(bus.EmbedOptions{NoListen: true, DataDir: t.TempDir()})
		must(err)
		defer server.Shutdown()
		connect := func() *bus.Conns {
			c, err := bus.Connect(t.Context(), bus.Options{InProcess: server.Server(), Logger: quiet})
			must(err)
			return c
		}
		reg := registry.New(registry.Options{Logger: quiet})
		released := make(chan struct{})
		type none struct{}
		type out struct {
			Done bool `json:"done"`
		}
		must(reg.Register(module.New("slow.tidy", "Cleans up for two seconds", func(ctx context.Context, _ none) (out, error) {
			<-ctx.Done()
			<-time.After(2 * time.Second)
			return out{Done: true}, nil
		}, module.WithTimeout(time.Second))))
		must(reg.Register(module.New("slow.stubborn", "Does not stop", func(context.Context, none) (out, error) {
			<-released
			return out{}, nil
		}, module.WithTimeout(time.Second))))
		x, err := executor.New(reg, executor.Config{}, executor.WithLogger(quiet))
		must(err)
		nodeConns, clientConns := connect(), connect()
		defer nodeConns.Close()
		defer clientConns.Close()
		node, err := bus.NewNode(nodeConns, x, bus.NodeOptions{ID: "n1", Logger: quiet})
		must(err)
		defer func() { must(node.Close()) }()
		client, err := bus.NewClient(clientConns, bus.ClientOptions{Logger: quiet})
		must(err)
		defer client.Close()
		must(client.WaitModule(t.Context(), "slow.stubborn"))

		for _, tt := range []struct {
			id      string
			took    time.Duration
			partial bool
		}{
			{"slow.tidy", 3 * time.Second, true},
			{"slow.stubborn", 6 * time.Second, false},
		} {
			began := time.Now()
			_, err := client.Call(t.Context(), tt.id, nil)
			took := time.Since(began)
			e := module.AsError(err)
			if e == nil || e.Code != module.CodeModuleTimeout {
				t.Fatalf("%s: error = %v, want MODULE_TIMEOUT", tt.id, err)
			}
			partial, _ := e.Details["partial"].(map[string]any)
			if got := partial["done"] == true; got != tt.partial {
				t.Errorf("%s: partial = %v, want one: %v", tt.id, e.Details["partial"], tt.partial)
			}
			if took < tt.took || took > tt.took+time.Second {
				t.Errorf("%s: took %v, want %v", tt.id, took, tt.took)
			}
		}
		if got := x.Debt(); got != 1 {
			t.Errorf("debt = %d while the stubborn module runs, want 1", got)
		}
		close(released)
	})
}
