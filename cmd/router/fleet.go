package main

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/apbus/apbus/bus"
	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/executor/system"
	"github.com/apbus/apbus/internal/settings"
)

// fleetNode is the node ID under which routers answer system.* on the bus. Every
// router has it: any of them answers for the same fleet.
const fleetNode = "router"

// openFleet answers calls of system modules for all nodes.
func openFleet(cfg *config, client *bus.Client) (*system.Fleet, error) {
	groups := []system.Group{}
	if cfg.SysModules || cfg.SysControl {
		groups = system.ReadGroups()
	}
	if cfg.SysControl {
		groups = append(groups, system.Control)
	}
	fleet, err := system.NewFleet(client, peersOf(client), system.FleetOptions{Groups: groups})
	if err != nil {
		return nil, fmt.Errorf("answer for the fleet: %w", err)
	}
	return fleet, nil
}

// peersOf tells which nodes host a module. Processes that must be named are no
// part of the fleet: routers are among them.
func peersOf(client *bus.Client) system.Peers {
	return func(moduleID string) (m system.Members) {
		info, _ := client.Module(moduleID)
		has := map[string]bool{}
		for _, h := range info.Hosts {
			m.Hosting, has[h.Node] = append(m.Hosting, system.Peer{Node: h.Node, Boot: h.Boot}), true
		}
		for _, n := range client.Nodes() {
			if !has[n.Node] && !n.NamedOnly && !n.Stale {
				m.Absent, has[n.Node] = append(m.Absent, system.Peer{Node: n.Node, Boot: n.Boot}), true
			}
		}
		for _, h := range client.Lost(moduleID) {
			m.Lost = append(m.Lost, system.Peer{Node: h.Node, Boot: h.Boot})
		}
		return m
	}
}

// hostFleet puts the fleet's modules on the bus, for those who name the router; a
// router that is not asked to does nothing.
func hostFleet(cfg *config, spec settings.Spec, conns *bus.Conns, fleet *system.Fleet, eyes *watch, log *slog.Logger) (closeNode func(), err error) {
	if len(fleet.Descriptors()) == 0 {
		return func() {}, nil
	}
	node, err := bus.NewNode(conns, fleet, bus.NodeOptions{
		ID: fleetNode, NamedOnly: true, Namespace: cfg.NS, Version: spec.Version, DrainGrace: drainGrace,
		CallGrace: func() time.Duration { return afterGrace }, TracerProvider: eyes.tracing.Provider(),
		Logger: log, Limits: contextwire.Limits{MaxBody: int(cfg.MaxBody)},
	})
	if err != nil {
		return nil, fmt.Errorf("host the fleet's modules: %w", err)
	}
	return func() {
		if err := node.Close(); err != nil {
			log.Warn("the fleet's modules ended early", "cause", err)
		}
	}, nil
}
