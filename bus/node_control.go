package bus

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/apbus/apbus/cancel"
	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/module"
)

func (n *Node) subscribeControl() error {
	for verb, handler := range map[string]func(*nats.Msg){
		verbPing: n.onPing, verbCancel: n.onCancelDirected, verbDrain: n.onDrain, verbCalls: n.onCalls,
	} {
		if err := n.subscribe(n.conns.Control, n.subjects.node(n.opts.ID, n.boot, verb), "", handler); err != nil {
			return err
		}
	}
	return n.subscribe(n.conns.Control, n.subjects.cancelAll(), "", n.onCancelBroadcast)
}

// answer replies to a control message with one result frame.
func (n *Node) answer(m *nats.Msg, ct contextwire.ContentType, body map[string]any) {
	n.answerFrame(m, ct, &contextwire.Frame{Kind: contextwire.FrameResult, Body: body})
}

// refuse replies to a control message with an error frame.
func (n *Node) refuse(m *nats.Msg, err error) {
	n.answerFrame(m, contextwire.JSON, &contextwire.Frame{Kind: contextwire.FrameError, Err: module.Propagate(err, "", nil)})
}

func (n *Node) answerFrame(m *nats.Msg, ct contextwire.ContentType, f *contextwire.Frame) {
	if m.Reply == "" {
		return
	}
	f.Node, f.Boot = n.opts.ID, n.boot
	h, body, err := contextwire.EncodeFrame(f, ct)
	if err == nil {
		err = n.conns.Control.Publish(&nats.Msg{Subject: m.Reply, Header: nats.Header(h), Data: body})
	}
	if err != nil {
		n.calm.warn("cannot answer a control message", "subject", m.Subject, "cause", err)
	}
}

// readControl decodes a control message or refuses it.
func readControl[T any](n *Node, m *nats.Msg, decode func([]byte, contextwire.ContentType, contextwire.Limits) (*T, error)) (*T, contextwire.ContentType, bool) {
	ct, err := controlType(m)
	var v *T
	if err == nil {
		v, err = decode(m.Data, ct, n.opts.Limits)
	}
	if err != nil {
		n.calm.warn("refusing a control message", "subject", m.Subject, "cause", err)
		n.refuse(m, err)
		return nil, ct, false
	}
	return v, ct, true
}

// onPing tells a client which of its calls are not known here and sends again
// the ends that it may have missed.
func (n *Node) onPing(m *nats.Msg) {
	ping, ct, ok := readControl(n, m, contextwire.DecodePing)
	if !ok {
		return
	}
	resend, unsettled := n.replay.told(ping.Client, parseKeys(ping.Open), parseKeys(ping.Closed))
	for _, frame := range resend {
		n.resend(frame)
	}
	pong := &contextwire.Pong{Node: n.opts.ID, Boot: n.boot, Draining: n.isDraining(), Debt: n.host.Debt()}
	pong.InFlight, _ = n.gate.load()
	if n.doubtful() {
		// The request may lie unread in what piled up here; it is asked about again.
		unsettled = nil
	}
	for _, key := range unsettled {
		// A call that ends at this instant is in the replay before it leaves the
		// table, so look again there.
		if !n.table.Has(key) && !n.replay.finished(key.Call, key.Attempt) {
			pong.Unknown = append(pong.Unknown, contextwire.FormatKey(key.Call, key.Attempt))
		}
	}
	n.answer(m, ct, pong.Map())
}

func parseKeys(list []string) []cancel.Key {
	keys := make([]cancel.Key, 0, len(list))
	for _, s := range list {
		if call, attempt, ok := contextwire.ParseKey(s); ok {
			keys = append(keys, cancel.Key{Call: call, Attempt: attempt})
		}
	}
	return keys
}

func (n *Node) resend(frame *nats.Msg) {
	if err := n.conns.Calls.Publish(frame); err != nil {
		n.calm.warn("cannot send a reply again", "cause", err)
	}
}

// onCancelDirected answers always: whoever names this process wants to know.
func (n *Node) onCancelDirected(m *nats.Msg) {
	if a, ct, ok := n.cancel(m); ok {
		n.answer(m, ct, a.Map())
	}
}

// onCancelBroadcast answers only when this process knew a call, so that nobody
// answering means that nobody knew it.
func (n *Node) onCancelBroadcast(m *nats.Msg) {
	if a, ct, ok := n.cancel(m); ok && a.State != StateTombstoned {
		n.answer(m, ct, a.Map())
	}
}

func (n *Node) cancel(m *nats.Msg) (*contextwire.CancelAnswer, contextwire.ContentType, bool) {
	notice, ct, ok := readControl(n, m, contextwire.DecodeCancelNotice)
	if !ok {
		return nil, ct, false
	}
	sel := cancel.Selector{
		Call: notice.Call, Attempt: notice.Attempt, Root: notice.Root, Parent: notice.Parent, Trace: notice.Trace,
	}
	if err := sel.Valid(); err != nil {
		n.refuse(m, module.Errorf(module.CodeBusBadMessage, "cancel: %w", err))
		return nil, ct, false
	}
	a := &contextwire.CancelAnswer{Node: n.opts.ID, Boot: n.boot, Calls: []string{}}
	// In open mode nobody proves who they are, so everybody may cancel.
	by := cancel.CancelRequest{
		Issuer: notice.By, Privileged: true,
		Cause: cancel.Because(remoteReason(notice.Reason), notice.By, notice.Reason),
	}
	// What runs is cancelled first: an earlier attempt of the call may be over.
	matched, _ := n.table.Cancel(sel, by)
	if len(matched) == 0 && sel.Call != "" && n.replay.finished(sel.Call, sel.Attempt) {
		a.Calls, a.State = []string{sel.Call}, StateFinished
		return a, ct, true
	}
	if len(matched) == 0 { // it may have begun since, which Bury looks at again
		by.Bury = true
		matched, _ = n.table.Cancel(sel, by)
	}
	if len(matched) == 0 {
		a.State = StateTombstoned
		return a, ct, true
	}
	a.State = StateCancelling
	n.counts.cancelsObeyed.Add(int64(len(matched)))
	for _, c := range matched {
		a.Calls = append(a.Calls, c.Call)
	}
	return a, ct, true
}

// remoteReason keeps a reason of the protocol and takes any other text as a
// person's words for a remote cancel.
func remoteReason(text string) cancel.Reason {
	switch r := cancel.Reason(text); r {
	case cancel.Caller, cancel.Parent, cancel.Timeout, cancel.Shutdown, cancel.LeaseLost, cancel.CallerGone, cancel.NodeLost:
		return r
	}
	return cancel.Remote
}

// maxListed bounds the list of calls to what fits a message.
const maxListed = 2000

// onCalls lists the calls in flight here.
func (n *Node) onCalls(m *nats.Msg) {
	req, ct, ok := readControl(n, m, contextwire.DecodeCallsRequest)
	if !ok {
		return
	}
	limit := maxListed
	if req.Limit > 0 {
		limit = min(limit, req.Limit)
	}
	list := &contextwire.CallList{Node: n.opts.ID, Boot: n.boot, Calls: []contextwire.CallRecord{}}
	for _, r := range n.callsHere() {
		record := r.record()
		if !wanted(req, &record) {
			continue
		}
		if len(list.Calls) == limit {
			list.Truncated = true
			break
		}
		list.Calls = append(list.Calls, record)
	}
	n.answer(m, ct, list.Map())
}

// inFlight is a call as the list shows it.
type inFlight interface{ record() contextwire.CallRecord }

// callsHere are all calls in flight, those of our own among them.
func (n *Node) callsHere() []inFlight {
	n.mu.Lock()
	defer n.mu.Unlock()
	all := make([]inFlight, 0, len(n.running)+len(n.own))
	for _, r := range n.running {
		if r.kind == kindCall {
			all = append(all, r)
		}
	}
	for _, c := range n.own {
		all = append(all, c)
	}
	return all
}

// wanted reports whether a call is among those asked for.
func wanted(req *contextwire.CallsRequest, c *contextwire.CallRecord) bool {
	match := func(want, is string) bool { return want == "" || want == is }
	return match(req.Call, c.Call) && match(req.Root, c.Root) && match(req.Trace, c.TraceID) && match(req.Module, c.ModuleID)
}

// onDrain starts a drain and answers at once.
func (n *Node) onDrain(m *nats.Msg) {
	req, ct, ok := readControl(n, m, contextwire.DecodeDrainRequest)
	if !ok {
		return
	}
	inFlight, _ := n.gate.load()
	n.log.Info("asked to drain", "by", req.By, "grace_ms", req.GraceMS)
	grace := time.Duration(req.GraceMS) * time.Millisecond
	if grace <= 0 {
		grace = n.opts.DrainGrace
	}
	n.mu.Lock()
	if !n.closed {
		n.draining = true // before the answer: whoever asked may count on it
		n.wg.Go(func() {
			ctx, stop := context.WithTimeoutCause(n.life, grace, errDrainGrace)
			defer stop()
			if err := n.drain(ctx); err != nil {
				n.log.Warn("drain cut calls short", "cause", err)
			}
		})
	}
	n.mu.Unlock()
	n.answer(m, ct, (&contextwire.DrainAnswer{InFlight: inFlight}).Map())
}

var errDrainGrace = errors.New("the drain's grace is over")
