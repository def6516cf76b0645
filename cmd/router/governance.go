package main

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"sync"

	"github.com/apbus/apbus/bus"
	"github.com/apbus/apbus/gateway"
)

// governanceOf asks every live node what stands in front of its modules. One that
// does not say is listed without a state.
func governanceOf(client *bus.Client, log *slog.Logger) gateway.Governance {
	return gateway.GovernanceFunc(func(ctx context.Context) ([]gateway.NodeGovernance, error) {
		var (
			mu   sync.Mutex
			list []gateway.NodeGovernance
			wg   sync.WaitGroup
		)
		seen := map[string]bool{}
		for _, n := range client.Nodes() {
			if seen[n.Node] || n.NamedOnly {
				continue // an earlier life of the node, still in the catalogue, or a router
			}
			seen[n.Node] = true
			wg.Go(func() {
				state := gateway.NodeGovernance{Node: n.Node, Boot: n.Boot}
				facts, err := client.Describe(ctx, n.Node)
				if err != nil {
					log.Warn("a node does not tell its governance", "node", n.Node, "cause", err)
				}
				if boot, ok := facts["boot"].(string); ok {
					state.Boot = boot
				}
				state.State, _ = facts["governance"].(map[string]any)
				mu.Lock()
				defer mu.Unlock()
				list = append(list, state)
			})
		}
		wg.Wait()
		slices.SortFunc(list, func(a, b gateway.NodeGovernance) int { return cmp.Compare(a.Node, b.Node) })
		return list, ctx.Err()
	})
}

// warnUnprotected tells of the nodes whose control modules nothing recognised
// stands in front of (protocol §6.6.5). The router hosts no modules itself.
func warnUnprotected(ctx context.Context, g gateway.Governance, log *slog.Logger) {
	nodes, err := g.Governance(ctx)
	if err != nil {
		log.Warn("cannot look at the governance of the nodes", "cause", err)
		return
	}
	for _, n := range nodes {
		if n.State["unprotected_control_surface"] == true {
			log.Warn("the control modules of a node are unprotected: neither an ACL nor approvals stand in front of them", "node", n.Node)
		}
	}
}
