package bus

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/module"
)

// fleetPatience is how long one process may take to answer a question about
// itself.
const fleetPatience = time.Second

// Calls lists every bus call in flight in the namespace, oldest first. A
// process that does not answer within a second is left out and logged.
func (c *Client) Calls(ctx context.Context) ([]contextwire.CallRecord, error) {
	lists := askNodes(ctx, c, verbCalls, &contextwire.CallsRequest{}, contextwire.CallListFromMap, "a node does not tell its calls")
	var out []contextwire.CallRecord
	for _, list := range lists {
		out = append(out, list.Calls...)
	}
	slices.SortFunc(out, func(a, b contextwire.CallRecord) int {
		return cmp.Or(a.StartedAt.Compare(b.StartedAt), cmp.Compare(a.Call, b.Call))
	})
	return out, nil
}

// FleetStats asks every process of the namespace what it does and has done, sorted by
// node. One that does not answer within a second is left out and logged.
func (c *Client) FleetStats(ctx context.Context) ([]contextwire.NodeStats, error) {
	answers := askNodes(ctx, c, verbStats, &contextwire.DescribeRequest{}, contextwire.NodeStatsFromMap, "a node does not tell what it does")
	var out []contextwire.NodeStats
	for _, stats := range answers {
		out = append(out, *stats)
	}
	slices.SortFunc(out, func(a, b contextwire.NodeStats) int {
		return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.Boot, b.Boot))
	})
	return out, nil
}

// askNodes asks every process at once and returns the answers in no order. Who does
// not answer within a second is left out, with the message silent in the log.
func askNodes[T any](ctx context.Context, c *Client, verb string, question contextwire.ControlMessage, read func(map[string]any) (*T, error), silent string) []*T {
	ctx, stop := context.WithTimeoutCause(ctx, fleetPatience, errors.New("no answer about "+verb))
	defer stop()
	var (
		mu  sync.Mutex
		out []*T
		wg  sync.WaitGroup
	)
	for _, n := range c.Nodes() {
		wg.Go(func() {
			body, err := ask(ctx, c.conns.Control, c.subjects.node(n.Node, n.Boot, verb), question)
			var answer *T
			if err == nil {
				answer, err = read(body)
			}
			if err != nil {
				if !errors.Is(err, ErrNoResponders) {
					c.dir.calm.warn(silent, "node", n.Node, "cause", err)
				}
				return
			}
			mu.Lock()
			defer mu.Unlock()
			out = append(out, answer)
		})
	}
	wg.Wait()
	return out
}

// Drain tells a node to finish what it has within grace and to take nothing
// new. It answers at once with the calls still in flight; the end shows in the
// catalogue. A node that is not in the catalogue is BUS_NO_RESPONDERS.
func (c *Client) Drain(ctx context.Context, node string, grace time.Duration, by string) (inFlight int, err error) {
	var boots []string
	for _, n := range c.Nodes() {
		if n.Node == node {
			boots = append(boots, n.Boot)
		}
	}
	if len(boots) == 0 {
		return 0, module.Errorf(module.CodeBusNoResponders, "no live node has this id").WithDetail("node", node)
	}
	ctx, stop := context.WithTimeoutCause(ctx, fleetPatience, errors.New("no answer to a drain"))
	defer stop()
	for _, boot := range boots {
		body, err := ask(ctx, c.conns.Control, c.subjects.node(node, boot, verbDrain),
			&contextwire.DrainRequest{GraceMS: grace.Milliseconds(), By: by})
		if errors.Is(err, ErrNoResponders) {
			continue // an earlier life of the node, still in the catalogue
		}
		if err != nil {
			return inFlight, fmt.Errorf("drain %s: %w", node, err)
		}
		answer, err := contextwire.DrainAnswerFromMap(body)
		if err != nil {
			return inFlight, err
		}
		inFlight += answer.InFlight
	}
	return inFlight, nil
}

// Describe asks a node for its facts: node, boot, ns, version, protocol, draining,
// capacity, in_flight, waiting, debt, the IDs of its modules, and governance, what
// stands in front of them, where the node tells. It takes at most a second. A node
// that is not in the catalogue, or no longer answers, is BUS_NO_RESPONDERS.
func (c *Client) Describe(ctx context.Context, node string) (map[string]any, error) {
	ctx, stop := context.WithTimeoutCause(ctx, fleetPatience, errors.New("no answer to describe"))
	defer stop()
	for _, n := range c.Nodes() {
		if n.Node != node {
			continue
		}
		facts, err := ask(ctx, c.conns.Control, c.subjects.node(node, n.Boot, verbDescribe), &contextwire.DescribeRequest{})
		if errors.Is(err, ErrNoResponders) {
			continue // an earlier life of the node, still in the catalogue
		}
		if err != nil {
			return nil, fmt.Errorf("describe %s: %w", node, err)
		}
		return facts, nil
	}
	return nil, module.Errorf(module.CodeBusNoResponders, "no live node has this id").WithDetail("node", node)
}
