package main

import (
	"context"
	"time"

	"github.com/apbus/apbus/bus"
	"github.com/apbus/apbus/cancel"
	"github.com/apbus/apbus/executor/system"
	"github.com/apbus/apbus/gateway"
)

// The gateway and the bus are strangers; these few lines introduce them.

// catalog shows the gateway the modules that the client's catalogue holds; those that
// the router answers for the fleet as it answers them.
type catalog struct {
	client *bus.Client
	fleet  *system.Fleet
}

// Modules implements gateway.Catalog.
func (c catalog) Modules() []gateway.Module {
	infos := c.client.Modules()
	list := make([]gateway.Module, len(infos))
	for i, info := range infos {
		list[i] = c.moduleOf(info)
	}
	return list
}

// Module implements gateway.Catalog.
func (c catalog) Module(id string) (gateway.Module, bool) {
	info, ok := c.client.Module(id)
	return c.moduleOf(info), ok
}

func (c catalog) moduleOf(info bus.ModuleInfo) gateway.Module {
	if d, ours := c.fleet.Descriptor(info.Descriptor.ID); ours {
		info.Descriptor, info.Hash = d, d.Hash()
	}
	hosts := make([]gateway.Host, len(info.Hosts))
	for i, h := range info.Hosts {
		hosts[i] = gateway.Host{Node: h.Node, Boot: h.Boot, Version: h.Version, Draining: h.Draining}
	}
	return gateway.Module{Descriptor: info.Descriptor, Hash: info.Hash, Hosts: hosts}
}

// fleetOf shows the gateway the nodes.
func fleetOf(client *bus.Client) gateway.Fleet {
	return gateway.FleetFuncs{
		NodesFunc: func() []gateway.Node {
			infos := client.Nodes()
			list := make([]gateway.Node, len(infos))
			for i, info := range infos {
				list[i] = gateway.Node{NodeRecord: info.NodeRecord, SeenAt: info.SeenAt, Stale: info.Stale}
			}
			return list
		},
		DrainFunc: func(ctx context.Context, node string, grace time.Duration, by string) (int, error) {
			return client.Drain(ctx, node, grace, by)
		},
	}
}

// callsOf shows the gateway the calls in flight.
func callsOf(client *bus.Client) gateway.Calls {
	return gateway.CallsFuncs{
		CallsFunc: client.Calls,
		CancelFunc: func(ctx context.Context, sel cancel.Selector, reason, by string) (gateway.CancelResult, error) {
			res, err := client.Cancel(ctx, sel, reason, by)
			return gateway.CancelResult{Nodes: res.Nodes, Calls: res.Calls, State: res.State}, err
		},
	}
}
