package bus

import (
	"fmt"
	"strconv"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/module"
)

// microName is the name of the micro service that every node is.
const microName = "apbus-node"

// startMicro makes the node visible to `nats micro ls|info|stats|ping`. Calls do
// not go through it: its handlers run one at a time.
func (n *Node) startMicro() error {
	natsControl, ok := n.conns.Control.(natsConn)
	if !ok {
		if err := n.subscribe(n.conns.Control, n.subjects.node(n.opts.ID, n.boot, verbStats), "", n.onStats); err != nil {
			return err
		}
		return n.subscribe(n.conns.Control, n.subjects.node(n.opts.ID, n.boot, verbDescribe), "", n.onDescribe)
	}
	service, err := micro.AddService(natsControl.nc, micro.Config{
		Name: microName, Version: semVer(n.opts.Version), Description: "Apbus node " + n.opts.ID,
		Metadata: map[string]string{
			"node": n.opts.ID, "boot": n.boot, "ns": n.subjects.ns, "protocol": strconv.Itoa(contextwire.ProtocolVersion),
		},
	})
	if err != nil {
		return fmt.Errorf("micro service: %w", err)
	}
	n.onUndo(func() { _ = service.Stop() })
	// No queue group: the subject names one process.
	group := service.AddGroup("", micro.WithGroupQueueGroupDisabled())
	for verb, handler := range map[string]func(*nats.Msg){verbDescribe: n.onDescribe, verbStats: n.onStats} {
		subject := n.subjects.node(n.opts.ID, n.boot, verb)
		err := group.AddEndpoint(verb, micro.HandlerFunc(func(r micro.Request) {
			handler(&nats.Msg{Subject: r.Subject(), Reply: r.Reply(), Header: nats.Header(r.Headers()), Data: r.Data()})
		}), micro.WithEndpointSubject(subject), micro.WithEndpointQueueGroupDisabled())
		if err != nil {
			return fmt.Errorf("micro endpoint %s: %w", verb, err)
		}
	}
	return nil
}

// onDescribe answers with the node's facts or one module's descriptor.
func (n *Node) onDescribe(m *nats.Msg) {
	if len(m.Data) == 0 {
		m.Data = []byte("{}")
	}
	req, ct, ok := readControl(n, m, contextwire.DecodeDescribeRequest)
	if !ok {
		return
	}
	descriptors := n.host.Descriptors()
	if req.Module != "" {
		for _, d := range descriptors {
			if d.ID == req.Module {
				n.answer(m, ct, d.Map())
				return
			}
		}
		n.refuse(m, module.Errorf(module.CodeModuleNotFound, "the node does not host this module"))
		return
	}
	ids := make([]any, len(descriptors))
	for i, d := range descriptors {
		ids[i] = d.ID
	}
	facts := n.load()
	facts["modules"] = ids
	if n.opts.Governance != nil {
		facts["governance"] = n.opts.Governance()
	}
	n.answer(m, ct, facts)
}

// onStats answers with what the node is doing.
func (n *Node) onStats(m *nats.Msg) { n.answer(m, contextwire.JSON, n.report().Map()) }

func (n *Node) load() map[string]any {
	inFlight, waiting := n.gate.load()
	stats := n.table.Stats()
	return map[string]any{
		"node": n.opts.ID, "boot": n.boot, "ns": n.subjects.ns, "protocol": int64(contextwire.ProtocolVersion),
		"version": n.opts.Version, "draining": n.isDraining(), "capacity": int64(n.opts.MaxInFlight),
		"in_flight": int64(inFlight), "waiting": int64(waiting), "debt": int64(n.host.Debt()),
		"tombstones": int64(stats.Tombstones), "tombstones_evicted": int64(stats.Evicted), //nolint:gosec // a count
		"calls": int64(stats.Begun), //nolint:gosec // a count
	}
}
