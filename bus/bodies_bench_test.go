package bus_test

import (
	"context"
	"strings"
	"testing"

	"github.com/apbus/apbus/bus"
	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/module"
)

// BenchmarkLargeBody calls a module with a text of 16 MiB over TCP, so that the
// bytes per second are those of a whole call: encode, upload, read, decode, run.
func BenchmarkLargeBody(b *testing.B) {
	server, err := bus.StartEmbedded(bus.EmbedOptions{Listen: "127.0.0.1:0", DataDir: b.TempDir()})
	if err != nil {
		b.Fatal(err)
	}
	defer server.Shutdown()
	connect := func() *bus.Conns {
		conns, err := bus.Connect(b.Context(), bus.Options{Servers: []string{server.URL()}, Logger: quiet()})
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(conns.Close)
		return conns
	}
	text := strings.Repeat("sixteen letters ", 1<<20)
	host := newStubHost().add("mod.take", module.Annotations{}, func(_ context.Context, req *contextwire.Request) (map[string]any, error) {
		return map[string]any{"bytes": int64(len(req.Inputs["text"].(string)))}, nil
	}).add("mod.give", module.Annotations{}, func(context.Context, *contextwire.Request) (map[string]any, error) {
		return map[string]any{"text": text}, nil
	})
	node, err := bus.NewNode(connect(), host, bus.NodeOptions{ID: "n1", Logger: quiet()})
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = node.Close() }()
	client, err := bus.NewClient(connect(), bus.ClientOptions{Logger: quiet()})
	if err != nil {
		b.Fatal(err)
	}
	defer client.Close()
	for _, direction := range []struct {
		name, id string
		in       map[string]any
	}{
		{"request", "mod.take", map[string]any{"text": text}},
		{"reply", "mod.give", nil},
	} {
		b.Run(direction.name, func(b *testing.B) {
			b.SetBytes(int64(len(text)))
			for b.Loop() {
				if _, err := client.Call(b.Context(), direction.id, direction.in); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
