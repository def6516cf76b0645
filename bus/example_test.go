package bus_test

import (
	"context"
	"fmt"
	"time"

	"github.com/apbus/apbus/bus"
	"github.com/apbus/apbus/cancel"
	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/module"
)

// greeter is the smallest host there is. A program uses *executor.Executor,
// which governs the calls that it runs.
type greeter struct{}

func (greeter) Invoke(ctx context.Context, req *contextwire.Request) (*contextwire.Reply, error) {
	if req.ModuleID == "text.wait" {
		<-ctx.Done()
		return nil, module.Wrap(module.CodeExecutionCancelled, context.Cause(ctx), "stopped waiting")
	}
	return &contextwire.Reply{Output: map[string]any{"text": fmt.Sprint("hello ", req.Inputs["name"])}}, nil
}

// InvokeStream makes it a host that streams.
func (g greeter) InvokeStream(ctx context.Context, req *contextwire.Request, send func(module.Chunk) error) (*contextwire.Reply, error) {
	if req.ModuleID != "text.count" {
		reply, err := g.Invoke(ctx, req)
		if err == nil {
			err = send(reply.Output)
		}
		return reply, err
	}
	for i := range int64(1000) {
		if err := send(module.Chunk{"n": i + 1}); err != nil {
			return nil, module.Wrap(module.CodeExecutionCancelled, err, "stopped counting")
		}
	}
	return &contextwire.Reply{Output: map[string]any{"n": int64(1000)}}, nil
}

func (greeter) Check(_ context.Context, req *contextwire.Request) (*module.PreflightResult, error) {
	return &module.PreflightResult{Valid: req.Inputs["name"] != nil}, nil
}

func (greeter) Descriptors() []module.Descriptor {
	return []module.Descriptor{{ID: "text.greet", Description: "Greet somebody"}, {ID: "text.wait", Description: "Wait for ever"}, {ID: "text.count", Description: "Count"}}
}

func (greeter) OnChange(func()) (stop func()) { return func() {} }

func (greeter) Debt() int { return 0 }

// exampleBus starts a server in this process, a node and a client.
func exampleBus(ctx context.Context) (c *bus.Client, n *bus.Node, stop func()) {
	server := must(bus.StartEmbedded(bus.EmbedOptions{NoListen: true}))
	o := bus.Options{InProcess: server.Server(), Logger: quiet()}
	nodeConns, clientConns := must(bus.Connect(ctx, o)), must(bus.Connect(ctx, o))
	n = must(bus.NewNode(nodeConns, greeter{}, bus.NodeOptions{ID: "n1", Logger: quiet()}))
	c = must(bus.NewClient(clientConns, bus.ClientOptions{Name: "ana", Logger: quiet()}))
	if err := c.WaitModule(ctx, "text.wait"); err != nil {
		panic(err)
	}
	return c, n, func() {
		c.Close()
		_ = n.Close()
		clientConns.Close()
		nodeConns.Close()
		server.Shutdown()
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func Example() {
	ctx := context.Background()
	server, err := bus.StartEmbedded(bus.EmbedOptions{NoListen: true}) // or any NATS server
	if err != nil {
		panic(err)
	}
	defer server.Shutdown()
	conns, err := bus.Connect(ctx, bus.Options{InProcess: server.Server()})
	if err != nil {
		panic(err)
	}
	defer conns.Close()
	node, err := bus.NewNode(conns, greeter{}, bus.NodeOptions{ID: "n1"})
	if err != nil {
		panic(err)
	}
	defer func() { _ = node.Close() }()
	client, err := bus.NewClient(conns, bus.ClientOptions{})
	if err != nil {
		panic(err)
	}
	defer client.Close()

	out, err := client.Call(ctx, "text.greet", map[string]any{"name": "Ana"})
	fmt.Println(out["text"], err)
	// Output: hello Ana <nil>
}

func ExampleCall() {
	ctx := context.Background()
	client, _, stop := exampleBus(ctx)
	defer stop()

	type in struct {
		Name string `json:"name"`
	}
	type out struct {
		Text string `json:"text"`
	}
	greeting, err := bus.Call[out](ctx, client, "text.greet", in{Name: "Ana"})
	fmt.Println(greeting.Text, err)
	// Output: hello Ana <nil>
}

// The owner stops as soon as the caller's context is cancelled.
func ExampleClient_Call_cancelled() {
	ctx, leave := context.WithCancelCause(context.Background())
	client, _, stop := exampleBus(ctx)
	defer stop()

	time.AfterFunc(10*time.Millisecond, func() { leave(fmt.Errorf("the user closed the window")) })
	_, err := client.Call(ctx, "text.wait", nil)
	fmt.Println(module.CodeOf(err))
	// Output: EXECUTION_CANCELLED
}

// Anybody who knows a call can stop it.
func ExampleClient_Cancel() {
	ctx := context.Background()
	client, _, stop := exampleBus(ctx)
	defer stop()

	id := contextwire.NewCallID()
	ended := make(chan error)
	go func() {
		_, err := client.Invoke(ctx, &contextwire.Request{CallID: id, ModuleID: "text.wait"})
		ended <- err
	}()
	for {
		calls, err := client.Calls(ctx)
		if err != nil || len(calls) > 0 {
			break // it is running
		}
	}
	res, err := client.Cancel(ctx, cancel.Selector{Call: id}, "took too long", "ana")
	fmt.Println(res.State, res.Nodes, err)
	fmt.Println(module.CodeOf(<-ended))
	// Output:
	// cancelling [n1] <nil>
	// EXECUTION_CANCELLED
}

func ExampleClient_Check() {
	ctx := context.Background()
	client, _, stop := exampleBus(ctx)
	defer stop()

	res, err := client.Check(ctx, &contextwire.Request{ModuleID: "text.greet"})
	fmt.Println(res.Valid, err)
	// Output: false <nil>
}

// A node that drains finishes what it has and takes nothing new.
func ExampleNode_Drain() {
	ctx := context.Background()
	client, node, stop := exampleBus(ctx)
	defer stop()

	if err := node.Drain(ctx); err != nil {
		panic(err)
	}
	<-node.Drained()
	_, err := client.Call(ctx, "text.greet", nil)
	fmt.Println(module.CodeOf(err))
	// Output: BUS_NO_RESPONDERS
}

// A stream is a range over chunks. Leaving the loop stops the module.
func ExampleClient_Stream() {
	ctx := context.Background()
	client, _, stop := exampleBus(ctx)
	defer stop()
	must(0, client.WaitModule(ctx, "text.count"))

	for chunk, err := range client.Stream(ctx, "text.count", nil) {
		if err != nil {
			panic(err)
		}
		fmt.Println(chunk["n"])
		if chunk["n"] == int64(3) {
			break
		}
	}
	// Output:
	// 1
	// 2
	// 3
}
