package main

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"maps"
	"time"

	"github.com/apbus/apbus/bus"
	"github.com/apbus/apbus/cancel"
	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/executor/approval"
	"github.com/apbus/apbus/internal/settings"
	"github.com/apbus/apbus/module"
)

// busBackend speaks to the bus itself. Calls have no identity.
type busBackend struct {
	conns   *bus.Conns
	client  *bus.Client
	maxBody int
}

var _ backend = (*busBackend)(nil)

// clientName is who cancels and drains, as the nodes see it.
const clientName = "apbus"

func newBusBackend(ctx context.Context, flags *cli, log *slog.Logger) (*busBackend, error) {
	ctx, stop := context.WithTimeoutCause(ctx, connectLimit, errors.New("the bus did not answer"))
	defer stop()
	conns, err := bus.Connect(ctx, bus.Options{Servers: flags.NATS, Name: clientName, Creds: flags.Creds, Logger: log})
	if err != nil {
		return nil, err
	}
	client, err := bus.NewClient(conns, bus.ClientOptions{ //nolint:contextcheck // a client lives until it is closed
		Namespace: flags.NS, Name: clientName, Logger: log, Limits: contextwire.Limits{MaxBody: flags.MaxBody},
	})
	if err != nil {
		conns.Close()
		return nil, err
	}
	return &busBackend{conns: conns, client: client, maxBody: flags.MaxBody}, nil
}

// Close waits until the notices of cancelled calls have left.
func (b *busBackend) Close() {
	b.client.Close()
	b.conns.Close()
}

// describeLimit bounds waiting for descriptors, which a client reads after it
// has read which modules there are.
const describeLimit = 2 * time.Second

// Modules lists the modules of the catalogue.
func (b *busBackend) Modules(ctx context.Context) ([]map[string]any, error) {
	b.awaitDescriptors(ctx, "")
	var out []map[string]any
	for _, info := range b.client.Modules() {
		if info.Descriptor.Annotations.Hidden {
			continue
		}
		out = append(out, moduleDocument(info))
	}
	return out, nil
}

// Module returns one module of the catalogue.
func (b *busBackend) Module(ctx context.Context, id string) (map[string]any, error) {
	if err := module.ValidateID(id); err != nil {
		return nil, err
	}
	b.awaitDescriptors(ctx, id)
	info, known := b.client.Module(id)
	if !known {
		return nil, module.Errorf(module.CodeModuleNotFound, "no node hosts module %s", id)
	}
	return moduleDocument(info), nil
}

// awaitDescriptors waits until the modules that the nodes list, or the one asked
// for, are described. What is not by then is shown as far as it is known.
func (b *busBackend) awaitDescriptors(ctx context.Context, only string) {
	ctx, stop := context.WithTimeoutCause(ctx, describeLimit, errors.New("the descriptors are late"))
	defer stop()
	for _, n := range b.client.Nodes() {
		if n.Draining || n.Stale {
			continue
		}
		for _, m := range n.Modules {
			if only == "" || m.ID == only {
				_ = b.client.WaitModule(ctx, m.ID) // see above
			}
		}
	}
}

func moduleDocument(info bus.ModuleInfo) map[string]any {
	doc := info.Descriptor.Map()
	hosts := make([]any, len(info.Hosts))
	for i, h := range info.Hosts {
		hosts[i] = map[string]any{"node": h.Node, "boot": h.Boot, "version": h.Version, "draining": h.Draining}
	}
	doc["hosts"], doc["hash"], doc["guidance"] = hosts, info.Hash, []any{}
	return doc
}

// Nodes lists the processes of the catalogue.
func (b *busBackend) Nodes(context.Context) ([]map[string]any, error) {
	var out []map[string]any
	for _, n := range b.client.Nodes() {
		doc := n.Map()
		delete(doc, "inbox")
		doc["seen_at"], doc["stale"] = n.SeenAt.UTC().Format(time.RFC3339Nano), n.Stale
		out = append(out, doc)
	}
	return out, nil
}

// Stats asks the nodes themselves.
func (b *busBackend) Stats(ctx context.Context) ([]contextwire.NodeStats, error) {
	return b.client.FleetStats(ctx)
}

// Drain drains a node.
func (b *busBackend) Drain(ctx context.Context, node string, grace time.Duration) (map[string]any, error) {
	inFlight, err := b.client.Drain(ctx, node, grace, clientName)
	if err != nil {
		return nil, err
	}
	return map[string]any{"node": node, "in_flight": int64(inFlight)}, nil
}

// request reads the inputs and makes the request of a call or check.
func (b *busBackend) request(r *callRequest) (*contextwire.Request, error) {
	inputs := r.inputs
	if r.raw != nil {
		limits := contextwire.Limits{MaxBody: b.maxBody}
		if r.size > int64(b.maxBody) { // a file is not read for nothing
			return nil, contextwire.TooLarge(r.size, int64(b.maxBody))
		}
		raw, err := io.ReadAll(io.LimitReader(r.raw, int64(limits.MaxBody)+1))
		if err != nil {
			return nil, err
		}
		if inputs, err = contextwire.DecodeMap(contextwire.JSON, raw, limits); err != nil {
			return nil, err
		}
	}
	if r.approval != "" {
		inputs = maps.Clone(inputs)
		inputs[approval.TokenKey] = r.approval
	}
	return &contextwire.Request{
		CallID: contextwire.NewCallID(), ModuleID: r.id, Inputs: inputs,
		Context: module.NewContext(module.ContextOptions{}),
		Node:    r.node, Trace: r.trace, Progress: r.progress,
	}, nil
}

// budget gives ctx the time that the call may take.
func budget(ctx context.Context, r *callRequest) (context.Context, context.CancelFunc) {
	if r.timeout <= 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeoutCause(ctx, r.timeout, cancel.Because(cancel.Timeout, clientName, "the time given with --timeout is over"))
}

// Call calls a module.
func (b *busBackend) Call(ctx context.Context, r *callRequest) (*callResult, error) {
	req, err := b.request(r)
	if err != nil {
		return nil, err
	}
	type answer struct {
		result *callResult
		err    error
	}
	// Ctrl-C cancels by ID first, which tells who stops; only then is the call
	// given up here.
	call, stop := budget(context.WithoutCancel(ctx), r)
	defer stop()
	answered := make(chan answer, 1)
	go func() {
		result, err := b.carry(call, r, req)
		answered <- answer{result, err}
	}()
	select {
	case got := <-answered:
		return got.result, got.err
	case <-ctx.Done():
	}
	notice, stopNotice := context.WithTimeoutCause(context.WithoutCancel(ctx), cancelLimit, errors.New("no answer to the cancel"))
	defer stopNotice()
	result, err := b.Cancel(notice, cancel.Selector{Call: req.CallID}, "interrupted")
	stop()
	if got := <-answered; got.err == nil {
		return got.result, nil // the answer was faster
	}
	return nil, &interruptedError{result: result, err: err}
}

// carry makes the call.
func (b *busBackend) carry(ctx context.Context, r *callRequest, req *contextwire.Request) (*callResult, error) {
	result := &callResult{}
	var reply *contextwire.Reply
	var err error
	if r.chunk == nil {
		reply, err = b.client.Invoke(ctx, req)
	} else {
		reply, err = b.client.InvokeStream(ctx, req, func(chunk module.Chunk) error {
			err := r.chunk(result.chunks, chunk)
			result.chunks++
			return err
		})
	}
	if reply != nil {
		result.output, result.trace = reply.Output, reply.Trace
	}
	return result, err
}

// Start cannot work: a call ends with the process that made it.
func (b *busBackend) Start(context.Context, *callRequest) (string, error) {
	return "", settings.Usagef("--detach needs a router, which stays the call's caller; it does not go with --nats")
}

// Check checks a call.
func (b *busBackend) Check(ctx context.Context, r *callRequest) (*module.PreflightResult, error) {
	req, err := b.request(r)
	if err != nil {
		return nil, err
	}
	ctx, stop := budget(ctx, r)
	defer stop()
	return b.client.Check(ctx, req)
}

// Cancel stops calls.
func (b *busBackend) Cancel(ctx context.Context, sel cancel.Selector, reason string) (*cancelled, error) {
	res, err := b.client.Cancel(ctx, sel, reason, clientName)
	if err != nil {
		return nil, err
	}
	return &cancelled{nodes: res.Nodes, calls: res.Calls, state: res.State}, nil
}
