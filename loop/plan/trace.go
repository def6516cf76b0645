package plan

// Trace is what a run knows beside its timeline: what each node was given and gave,
// and how each condition was decided. It shares its values with the run and its
// caller, so it is to be looked at before either goes on, and never modified.
type Trace struct {
	Inputs    map[string]any
	Steps     []Step
	Decisions []Decision
}

// Step is one attempt of one node.
type Step struct {
	Event
	Inputs, Output map[string]any // Output is nil unless the attempt succeeded
	// Reads are the nodes whose outputs the inputs are made of, with the generation of
	// the output that was the newest then, 0 for none. A node without bindings reads
	// none.
	Reads map[string]int
	// Final is true for a failure that says of itself that another attempt is useless.
	Final bool
}

// Decision is how the condition of an edge was decided when the node it leaves had
// run. What an edge is, is its position; one without a condition has no decisions,
// nor has one that was exhausted.
type Decision struct {
	Edge       int  `json:"edge"`
	Generation int  `json:"generation"`
	Held       bool `json:"held"`
	// Reads is as in [Step].
	Reads map[string]int `json:"reads,omitempty"`
}

func (r *run) trace(s Step) {
	t := r.result.Trace
	if t == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	t.Steps = append(t.Steps, s)
}
