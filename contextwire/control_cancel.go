package contextwire

import "time"

// CancelNotice asks to stop calls. Exactly one of Call, Root, Parent and Trace is
// set; Attempt, with Call, narrows it to one attempt.
type CancelNotice struct {
	Call    string
	Attempt int
	Root    string
	Parent  string
	Trace   string
	// Reason and By are free text for people and evidence.
	Reason, By string
	At         time.Time
}

// Map returns the wire form.
func (n *CancelNotice) Map() map[string]any {
	m := map[string]any{}
	putText(m, "call", n.Call)
	putInt(m, "attempt", int64(n.Attempt))
	putText(m, "root", n.Root)
	putText(m, "parent", n.Parent)
	putText(m, "trace", n.Trace)
	putText(m, "reason", clip(n.Reason))
	putText(m, "by", clip(n.By))
	putTime(m, "at", n.At)
	return m
}

// DecodeCancelNotice reads a [CancelNotice].
func DecodeCancelNotice(body []byte, ct ContentType, lim Limits) (*CancelNotice, error) {
	r, err := readRecord("cancel notice", body, ct, lim)
	if err != nil {
		return nil, err
	}
	n := &CancelNotice{
		Call: r.callID("call"), Attempt: int(r.integer("attempt", 0, maxAttempt)),
		Root: r.callID("root"), Parent: r.callID("parent"), Trace: r.text("trace"),
		Reason: r.text("reason"), By: r.text("by"), At: r.time("at"),
	}
	selectors := 0
	for _, s := range []string{n.Call, n.Root, n.Parent, n.Trace} {
		if s != "" {
			selectors++
		}
	}
	if selectors != 1 && r.err == nil {
		return nil, bad("cancel notice: want exactly one of call, root, parent and trace")
	}
	if n.Attempt != 0 && n.Call == "" {
		r.fail("attempt", "needs a call")
	}
	return done(r, n)
}

// The values of [CancelAnswer.State].
const (
	CancelCancelling = "cancelling"
	CancelFinished   = "finished"
	CancelTombstoned = "tombstoned"
)

// CancelAnswer is what a process with a match says.
type CancelAnswer struct {
	Node, Boot string
	// Calls are the IDs of the calls concerned.
	Calls []string
	State string
}

// Map returns the wire form.
func (a *CancelAnswer) Map() map[string]any {
	return map[string]any{"node": a.Node, "boot": a.Boot, "calls": listOf(a.Calls), "state": a.State}
}

// DecodeCancelAnswer reads a [CancelAnswer].
func DecodeCancelAnswer(body []byte, ct ContentType, lim Limits) (*CancelAnswer, error) {
	r, err := readRecord("cancel answer", body, ct, lim)
	if err != nil {
		return nil, err
	}
	return readCancelAnswer(r)
}

// CancelAnswerFromMap reads the body of an answering frame.
func CancelAnswerFromMap(m map[string]any) (*CancelAnswer, error) {
	return readCancelAnswer(&record{what: "cancel answer", m: m})
}

func readCancelAnswer(r *record) (*CancelAnswer, error) {
	return done(r, &CancelAnswer{
		Node: r.need("node"), Boot: r.text("boot"), Calls: r.texts("calls"), State: r.need("state"),
	})
}
