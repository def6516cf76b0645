package bus

import (
	"context"
	"fmt"

	"github.com/nats-io/nats.go"
)

// need is one right that a role must have.
type need struct {
	subject string
	why     string
	node    bool // only nodes need it
}

// publishes are the subjects to which a role publishes, each once, in a form that
// reaches nobody.
func (d *doctor) publishes() []need {
	s := d.subjects
	return []need{
		{s.any(kindCall, nobodyModule), "making calls", false},
		{s.directed(kindCall, nobody, nobody, nobodyModule), "calling a known host", false},
		{s.any(kindCheck, nobodyModule), "checking calls", false},
		{s.cancelModule(nobodyModule), "cancelling", false},
		{s.node(nobody, nobody, verbPing), "noticing lost nodes", false},
		{"$JS.API.INFO", "using JetStream", false},
		{"$JS.API.STREAM.INFO.KV_" + nodesBucket, "reading the catalogue", false},
		{"_INBOX." + nobody, "answering", true},
		{"$KV." + nodesBucket + "." + recordKey(s.ns, nobody, nobody), "being listed in the catalogue", true},
		{s.base + "evt." + s.ns + ".doctor." + nobodyModule, "reporting evidence and events", true},
	}
}

// subscriptions are the subjects that a role listens to, each once.
func (d *doctor) subscriptions() []need {
	s := d.subjects
	return []need{
		{"_INBOX." + nobody + ".*", "getting answers", false},
		{nodeRecordSubject(s.ns), "reading the catalogue", false},
		{s.any(kindCall, nobodyModule), "hosting modules", true},
		{s.directed(kindCall, nobody, nobody, ">"), "taking directed calls", true},
		{s.any(kindCheck, nobodyModule), "answering checks", true},
		{s.cancelModule(nobodyModule), "obeying cancels", true},
		{s.cancelAll(), "obeying cancels of a tree", true},
		{s.node(nobody, nobody, verbPing), "showing that it lives", true},
	}
}

// permissions tries what the role has to do.
func (d *doctor) permissions(ctx context.Context, c *HealthCheck) error {
	for _, n := range d.publishes() {
		if n.node && d.role != RoleNode {
			continue
		}
		refused, err := d.tryPublish(ctx, n.subject)
		if err != nil {
			return err
		}
		if refused {
			d.forbid[n.subject] = true
			c.add(SeverityError, "publish "+n.subject, fmt.Sprintf("these credentials may not publish it, which %s needs", n.why),
				fmt.Sprintf("allow it to the user in the server's permissions; a %s needs it", d.role))
		}
	}
	for _, n := range d.subscriptions() {
		if n.node && d.role != RoleNode {
			continue
		}
		refused, err := d.trySubscribe(ctx, n.subject)
		if err != nil {
			return err
		}
		if refused {
			c.add(SeverityError, "subscribe "+n.subject, fmt.Sprintf("these credentials may not subscribe to it, which %s needs", n.why),
				fmt.Sprintf("allow it to the user in the server's permissions; a %s needs it", d.role))
		}
	}
	return nil
}

// tryPublish publishes a message that no stream stores and no one answers. It has no
// body, so that who follows the catalogue takes it for the end of an unknown node.
func (d *doctor) tryPublish(ctx context.Context, subject string) (refused bool, err error) {
	return d.violates(ctx, func() error {
		return d.nc.PublishMsg(&nats.Msg{Subject: subject, Header: nats.Header{"Nats-Expected-Stream": {nobody}}})
	})
}

func (d *doctor) trySubscribe(ctx context.Context, subject string) (refused bool, err error) {
	var sub *nats.Subscription
	refused, err = d.violates(ctx, func() (err error) {
		sub, err = d.nc.SubscribeSync(subject)
		return err
	})
	if sub != nil {
		_ = sub.Unsubscribe() // the connection closes soon
	}
	return refused, err
}

// violates reports whether the server refuses what do does. It tells only as an
// error of the connection, which is there by the time a later message has been
// answered.
func (d *doctor) violates(ctx context.Context, do func() error) (bool, error) {
	before := d.nc.LastError()
	if err := do(); err != nil {
		return false, err
	}
	ctx, stop := d.within(ctx)
	defer stop()
	if err := d.nc.FlushWithContext(ctx); err != nil {
		return false, err
	}
	after := d.nc.LastError()
	return after != nil && after != before, nil //nolint:errorlint // whether it is this very error
}
