// Package bus carries governed calls between processes over NATS. A [Node]
// hosts the modules of one process, a [Client] calls, streams, checks and
// cancels modules anywhere, and both speak the wire protocol of docs/wire.md.
//
//	conns, err := bus.Connect(ctx, bus.Options{Servers: []string{url}})
//	client, err := bus.NewClient(conns, bus.ClientOptions{})
//	out, err := client.Call(ctx, "math.add", map[string]any{"a": 1, "b": 2})
//	for chunk, err := range client.Stream(ctx, "text.words", map[string]any{"text": "to be"}) {
//		…
//	}
//
// # What it promises
//
// Every call ends with one outcome. A call that was certainly not started is
// tried again within its time; one that may have been is tried again only when
// its module says that this is safe. A caller that leaves, is cancelled or dies
// stops what it started, and a caller whose host dies or freezes hears of it. A
// stream is held back by its reader and is never whole when a chunk is missing.
//
// # Concurrency and shutdown
//
// Clients and nodes may be used from any number of goroutines. Calls run in
// goroutines of their own, never in a subscription's: a module that blocks
// holds up neither other modules nor pings and cancels. Node.Drain finishes
// accepted work, Close ends it; both wait for every goroutine they own. The
// connections belong to whoever made them and are closed last.
//
// # Testing
//
// Package bustest runs the contract of [Conn] against any implementation and
// has one in memory that can lose, hold and repeat messages on command. The
// embedded server of [StartEmbedded] also runs inside testing/synctest.
//
// # What is not here
//
// The package decides nothing about a call: that is the executor, which it
// meets as [Host]. Durable work belongs to jetstream.
package bus
