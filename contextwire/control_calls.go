package contextwire

import "time"

// CallRecord is one call in flight as the control request "calls" lists it. It
// holds no inputs.
type CallRecord struct {
	Call         string
	Attempt      int
	Root, Parent string
	ModuleID     string
	Node, Boot   string
	CallerID     string
	IdentityID   string
	TraceID      string
	// Mode is [ModeUnary] or [ModeStream].
	Mode      string
	StartedAt time.Time
	// BudgetMS is the budget at arrival in milliseconds, 0 when there was none.
	BudgetMS int64
	// State is such as queued, running, cancelling or abandoned.
	State string
}

// Map returns the wire form.
func (c *CallRecord) Map() map[string]any {
	m := map[string]any{"call": c.Call, "module_id": c.ModuleID, "node": c.Node, "boot": c.Boot, "state": c.State}
	putInt(m, "attempt", int64(c.Attempt))
	putText(m, "root", c.Root)
	putText(m, "parent", c.Parent)
	putText(m, "caller_id", c.CallerID)
	putText(m, "identity_id", c.IdentityID)
	putText(m, "trace_id", c.TraceID)
	putText(m, "mode", c.Mode)
	putTime(m, "started_at", c.StartedAt)
	putInt(m, "budget_ms", c.BudgetMS)
	return m
}

func readCallRecord(r *record) CallRecord {
	return CallRecord{
		Call: r.need("call"), Attempt: int(r.integer("attempt", 0, maxAttempt)),
		Root: r.callID("root"), Parent: r.callID("parent"), ModuleID: r.need("module_id"),
		Node: r.text("node"), Boot: r.text("boot"), CallerID: r.text("caller_id"),
		IdentityID: r.text("identity_id"), TraceID: r.text("trace_id"), Mode: r.text("mode"),
		StartedAt: r.time("started_at"), BudgetMS: r.integer("budget_ms", 0, maxMillis), State: r.text("state"),
	}
}

// CallList answers the control request "calls".
type CallList struct {
	Node, Boot string
	Calls      []CallRecord
	// Truncated is true when the process has more calls than it listed.
	Truncated bool
}

// Map returns the wire form.
func (l *CallList) Map() map[string]any {
	calls := make([]any, len(l.Calls))
	for i := range l.Calls {
		calls[i] = l.Calls[i].Map()
	}
	m := map[string]any{"node": l.Node, "boot": l.Boot, "calls": calls}
	if l.Truncated {
		m["truncated"] = true
	}
	return m
}

// DecodeCallList reads a [CallList].
func DecodeCallList(body []byte, ct ContentType, lim Limits) (*CallList, error) {
	r, err := readRecord("call list", body, ct, lim)
	if err != nil {
		return nil, err
	}
	return readCallList(r)
}

// CallListFromMap reads the body of an answering frame.
func CallListFromMap(m map[string]any) (*CallList, error) {
	return readCallList(&record{what: "call list", m: m})
}

func readCallList(r *record) (*CallList, error) {
	l := &CallList{Node: r.need("node"), Boot: r.text("boot"), Truncated: r.boolean("truncated")}
	r.records("calls", func(item *record) { l.Calls = append(l.Calls, readCallRecord(item)) })
	return done(r, l)
}

// CallsRequest asks a process for its calls in flight; set fields narrow it.
type CallsRequest struct {
	Call, Root, Trace, Module string
	// Limit bounds the answer; 0 leaves it to the process.
	Limit int
}

// Map returns the wire form.
func (c *CallsRequest) Map() map[string]any {
	m := map[string]any{}
	putText(m, "call", c.Call)
	putText(m, "root", c.Root)
	putText(m, "trace", c.Trace)
	putText(m, "module", c.Module)
	putInt(m, "limit", int64(c.Limit))
	return m
}

// DecodeCallsRequest reads a [CallsRequest].
func DecodeCallsRequest(body []byte, ct ContentType, lim Limits) (*CallsRequest, error) {
	r, err := readRecord("calls request", body, ct, lim)
	if err != nil {
		return nil, err
	}
	return done(r, &CallsRequest{
		Call: r.callID("call"), Root: r.callID("root"), Trace: r.text("trace"),
		Module: r.text("module"), Limit: r.count("limit"),
	})
}
