package plan

// Trace is what a run knows beside its timeline: what each node was given and gave,
// and how each condition was decided. It shares its values with the run and its
// caller, so it is to be looked at before either goes on, and never modified.
type Trace struct {
	Inputs    map[string]any
	Steps     []Step
	Decisions []Decision
	// TooMuch is true of a run whose values are more than a journal looks at. None are
	// kept then: a plan of a thousand rounds would hold on to all that its nodes gave.
	TooMuch bool

	room int // what may still come, about in bytes of JSON
}

func newTrace(inputs map[string]any) *Trace {
	t := &Trace{room: maxRunLooked}
	if t.fits(inputs) {
		t.Inputs = inputs
	}
	return t
}

// fits takes the room for values; once there is not enough, none are kept.
func (t *Trace) fits(values ...map[string]any) bool {
	for _, v := range values {
		n := roughSize(v, t.room)
		if t.TooMuch = t.TooMuch || n < 0; t.TooMuch {
			t.Inputs = nil
			for i := range t.Steps {
				t.Steps[i].Inputs, t.Steps[i].Output = nil, nil
			}
			return false
		}
		t.room -= n
	}
	return true
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
	if !t.fits(s.Inputs, s.Output) {
		s.Inputs, s.Output = nil, nil
	}
	t.Steps = append(t.Steps, s)
}
