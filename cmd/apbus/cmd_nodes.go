package main

import (
	"fmt"
	"time"

	"github.com/apbus/apbus/internal/settings"
)

// nodesCmd lists nodes or drains one.
type nodesCmd struct {
	List  nodesListCmd  `cmd:"" default:"1" help:"List the nodes."`
	Drain nodesDrainCmd `cmd:"" help:"Tell a node to finish what it has and to take nothing new."`
}

type nodesListCmd struct{}

// Run lists the nodes.
func (*nodesListCmd) Run(s *session) error {
	return s.with(func(b backend) error {
		nodes, err := b.Nodes(s.ctx)
		if err != nil {
			return err
		}
		if s.stdout.json {
			return s.stdout.document(map[string]any{"nodes": anyMaps(nodes)})
		}
		rows := make([][]string, 0, len(nodes))
		for _, n := range nodes {
			hosted, _ := n["modules"].([]any)
			state := "live"
			switch {
			case n["draining"] == true:
				state = "draining"
			case n["stale"] == true:
				state = "stale"
			}
			rows = append(rows, []string{
				text(n["node"]), text(n["boot"]), state, fmt.Sprintf("%v/%v", n["in_flight"], n["capacity"]),
				fmt.Sprint(len(hosted)), text(n["version"]), text(n["seen_at"]),
			})
		}
		return s.stdout.table([]string{"NODE", "BOOT", "STATE", "IN FLIGHT", "MODULES", "VERSION", "SEEN"}, rows)
	})
}

type nodesDrainCmd struct {
	ID    string        `arg:"" help:"The node to drain."`
	Grace time.Duration `local:"" default:"10s" help:"How long the node may finish what it has."`
}

// Run drains a node.
func (c *nodesDrainCmd) Run(s *session) error {
	if c.Grace < 0 {
		return settings.Usagef("--grace must not be negative")
	}
	return s.with(func(b backend) error {
		doc, err := b.Drain(s.ctx, c.ID, c.Grace)
		if err != nil {
			return err
		}
		if s.stdout.json {
			return s.stdout.document(doc)
		}
		return s.stdout.line("%s is draining, %v calls in flight", c.ID, doc["in_flight"])
	})
}
