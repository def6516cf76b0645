package bus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"github.com/apbus/apbus/contextwire"
)

// silence is how long the doctor waits for another answer to one question.
const silence = 300 * time.Millisecond

// listeners finds who listens to subjects of calls without being a host: where one
// does, the server never says that nobody is there, and a call waits for its time
// instead.
func (d *doctor) listeners(ctx context.Context, c *HealthCheck) error {
	const mend = "end that subscription or narrow its subject; to watch calls, watch apbus.v1.evt.> or GET /v1/calls"
	for _, subject := range []string{
		d.subjects.any(kindCall, nobodyModule), d.subjects.directed(kindCall, nobody, nobody, nobodyModule),
		d.subjects.any(kindCheck, nobodyModule), d.subjects.cancelModule(nobodyModule), d.subjects.node(nobody, nobody, verbPing),
	} {
		if d.forbid[subject] {
			c.Note = "not all subjects may be published to"
			continue
		}
		answered, err := d.reached(ctx, subject)
		switch {
		case err != nil:
			return err
		case answered == "":
			continue
		}
		c.add(SeverityError, subject, "somebody listens to it though there is no such module or node, "+answered+
			": callers of a module without a host wait instead of being told", mend)
	}
	if d.server == nil {
		return nil
	}
	subs, err := d.subscribers()
	if err != nil {
		return err
	}
	for _, sub := range subs {
		if sub.queue == "" && d.isWiretap(sub.subject) {
			c.add(SeverityError, sub.subject, sub.who+" listens to it: callers of a module without a host wait instead of being told", mend)
		}
	}
	return nil
}

// reached says how a message to a subject that nobody should hear was received; ""
// means that the server says that nobody was there.
func (d *doctor) reached(ctx context.Context, subject string) (how string, err error) {
	asked, stop := context.WithTimeoutCause(ctx, silence, errors.New("no answer"))
	defer stop()
	m := &nats.Msg{Subject: subject, Header: nats.Header{"Nats-Expected-Stream": {nobody}}, Data: []byte("{}")}
	answer, err := d.nc.RequestMsgWithContext(asked, m)
	switch {
	case errors.Is(err, nats.ErrNoResponders):
		return "", nil
	case err == nil && strings.Contains(string(answer.Data), `"stream"`):
		return "a stream", nil
	case err == nil:
		return "and answers", nil
	case ctx.Err() == nil && asked.Err() != nil:
		return "and does not answer", nil
	}
	return "", err
}

// isWiretap reports whether a subscription without a queue group is none of those
// that nodes have.
func (d *doctor) isWiretap(subject string) bool {
	s := d.subjects
	for _, kind := range []string{kindCall, kindCheck} {
		if subjectsOverlap(subject, s.base+kind+s.ns+".>") {
			// A process listens to its directed calls with one wildcard.
			own, directed := strings.CutPrefix(subject, s.base+kind+s.ns+".@.")
			tokens := strings.Split(own, ".")
			return !directed || len(tokens) != 3 || tokens[0] == "*" || tokens[1] == "*"
		}
	}
	for _, kind := range []string{"cancel.", "node."} {
		if subjectsOverlap(subject, s.base+kind+s.ns+".>") {
			return strings.ContainsAny(subject, "*>")
		}
	}
	return false
}

// queueGroups finds modules whose calls go to more than one queue group, so that
// they run twice.
func (d *doctor) queueGroups(ctx context.Context, c *HealthCheck) error {
	const mend = "let every host of a module join the queue group " + queueGroup + " and no other"
	groups := map[string]map[string]bool{} // who says so, by subject and group
	note := func(subject, group, who string) {
		at := subject + "\x00" + group
		if groups[at] == nil {
			groups[at] = map[string]bool{}
		}
		groups[at][who] = true
	}
	if d.server != nil {
		subs, err := d.subscribers()
		if err != nil {
			return err
		}
		for _, sub := range subs {
			if sub.queue != "" && sub.queue != queueGroup && d.isCall(sub.subject) {
				note(sub.subject, sub.queue, sub.who)
			}
		}
	} else {
		c.Note = "seen from outside: hosts that are no micro services and answer no checks are not found"
		if err := d.microServices(ctx, note); err != nil {
			return err
		}
	}
	for _, at := range slices.Sorted(maps.Keys(groups)) {
		subject, group, _ := strings.Cut(at, "\x00")
		c.add(SeverityError, subject, fmt.Sprintf("%s listens to it in the queue group %q: a call runs there and on a host of the group %q too",
			strings.Join(slices.Sorted(maps.Keys(groups[at])), ", "), group, queueGroup), mend)
	}
	return d.doubleAnswers(ctx, c, mend)
}

func (d *doctor) isCall(subject string) bool {
	s := d.subjects
	return subjectsOverlap(subject, s.base+kindCall+s.ns+".>") || subjectsOverlap(subject, s.base+kindCheck+s.ns+".>")
}

// microServices asks all micro services of what they listen to.
func (d *doctor) microServices(ctx context.Context, note func(subject, group, who string)) error {
	subject, err := micro.ControlSubject(micro.InfoVerb, "", "")
	if err != nil {
		return err
	}
	answers, err := d.collect(ctx, map[string]*nats.Msg{subject: {Subject: subject}})
	if err != nil {
		return err
	}
	for _, m := range answers[subject] {
		var info micro.Info
		if json.Unmarshal(m.Data, &info) != nil {
			continue
		}
		for _, e := range info.Endpoints {
			if e.QueueGroup != "" && e.QueueGroup != queueGroup && d.isCall(e.Subject) {
				note(e.Subject, e.QueueGroup, "service "+info.Name)
			}
		}
	}
	return nil
}

// maxAsked bounds how many modules the doctor asks after.
const maxAsked = 500

// doubleAnswers asks every module a check that each host refuses unseen. One queue
// group gives one answer.
func (d *doctor) doubleAnswers(ctx context.Context, c *HealthCheck, mend string) error {
	if err := d.readRecords(ctx); err != nil {
		return err
	}
	questions := map[string]*nats.Msg{}
	for _, r := range d.records {
		for _, m := range r.Modules {
			if subject := d.subjects.any(kindCheck, m.ID); len(questions) < maxAsked && !r.Draining {
				questions[subject] = &nats.Msg{Subject: subject, Header: nats.Header{
					contextwire.HeaderVersion: {"0"}, contextwire.HeaderCall: {contextwire.NewCallID()},
				}}
			}
		}
	}
	answers, err := d.collect(ctx, questions)
	if err != nil {
		return err
	}
	for _, subject := range slices.Sorted(maps.Keys(answers)) {
		if n := len(answers[subject]); n > 1 {
			c.add(SeverityError, subject, fmt.Sprintf("one check got %d answers, so a call runs %d times", n, n), mend)
		}
	}
	return nil
}

// collect asks several questions at once and returns all answers to each, until none
// has come for a while.
func (d *doctor) collect(ctx context.Context, questions map[string]*nats.Msg) (map[string][]*nats.Msg, error) {
	if len(questions) == 0 {
		return nil, nil
	}
	inbox := d.nc.NewInbox()
	sub, err := d.nc.SubscribeSync(inbox + ".*")
	if err != nil {
		return nil, err
	}
	defer func() { _ = sub.Unsubscribe() }() // the connection closes soon
	order := slices.Sorted(maps.Keys(questions))
	for i, key := range order {
		m := questions[key]
		m.Reply = fmt.Sprintf("%s.%d", inbox, i)
		if err := d.nc.PublishMsg(m); err != nil {
			return nil, err
		}
	}
	answers := map[string][]*nats.Msg{}
	for {
		next, stop := context.WithTimeoutCause(ctx, silence, errors.New("nobody else answers"))
		m, err := sub.NextMsgWithContext(next)
		stop()
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if errors.Is(err, nats.ErrNoResponders) {
			continue
		}
		if err != nil {
			return answers, nil //nolint:nilerr // the silence that ends it
		}
		var i int
		if _, err := fmt.Sscanf(m.Subject[len(inbox):], ".%d", &i); err == nil && i >= 0 && i < len(order) && !isNoResponders(m) {
			answers[order[i]] = append(answers[order[i]], m)
		}
	}
}

// subscriber is one subscription as the server knows it.
type subscriber struct{ subject, queue, who string }

// subscribers lists the subscriptions of the server that is looked into.
func (d *doctor) subscribers() ([]subscriber, error) {
	srv := d.server.server
	names := map[uint64]string{}
	conns, err := srv.Connz(&server.ConnzOptions{Limit: 1 << 20})
	if err != nil {
		return nil, fmt.Errorf("list the connections: %w", err)
	}
	for _, conn := range conns.Conns {
		names[conn.Cid] = fmt.Sprintf("connection %q from %s", conn.Name, conn.IP)
	}
	subz, err := srv.Subsz(&server.SubszOptions{Subscriptions: true, Limit: 1 << 20, Account: srv.GlobalAccount().GetName()})
	if err != nil {
		return nil, fmt.Errorf("list the subscriptions: %w", err)
	}
	var list []subscriber
	for _, sub := range subz.Subs {
		if who, isClient := names[sub.Cid]; isClient {
			list = append(list, subscriber{sub.Subject, sub.Queue, who})
		}
	}
	return list, nil
}
