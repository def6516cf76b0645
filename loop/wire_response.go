package loop

// LLMDraft is one draft as DISCOVER returned it. Unknown fields are dropped;
// texts are as they came, capped by the engine later.
type LLMDraft struct {
	Summary  string
	Target   string
	Guidance string
	Evidence []string
	// Confidence is the proposer's own; 0 when absent or not between 0 and 1,
	// which drops the draft.
	Confidence float64
	// Lesson is the older way to propose a lesson; it counts only when no
	// proposal was sent.
	Lesson string
	// Proposal is the proposal as sent, nil when absent or null; read it with
	// [LLMDraft.Parsed].
	Proposal any
}

// DiscoverResponse is the answer to discover: at most [MaxLLMDrafts] drafts.
type DiscoverResponse struct {
	Recommendations []LLMDraft
	// Malformed counts drafts that could not be read. They cost only themselves.
	Malformed int
}

// EnrichNote is guidance for the finding with this target.
type EnrichNote struct{ Target, Guidance string }

// EnrichResponse is the answer to enrich.
type EnrichResponse struct {
	Notes     []EnrichNote
	Malformed int
}

// GroundResult is one verdict of GROUND.
type GroundResult struct {
	ID        int
	Supported bool
	Reason    string
}

// GroundResponse is the answer to ground.
type GroundResponse struct {
	Results   []GroundResult
	Malformed int
}

// VerifyResult is one verdict of VERIFY. Confidence is 0 when it is not between
// 0 and 1.
type VerifyResult struct {
	ID         int
	Keep       bool
	Confidence float64
	Reason     string
}

// VerifyResponse is the answer to verify.
type VerifyResponse struct {
	Results   []VerifyResult
	Malformed int
}

// ParseDiscover reads a DISCOVER response. On error the response is empty; that
// error decides only whether the evidence counts as seen, it never fails a pass.
func ParseDiscover(raw string) (DiscoverResponse, error) {
	var out DiscoverResponse
	var err error
	out.Recommendations, out.Malformed, err = parseElements(raw, "recommendations", MaxLLMDrafts, readDraft)
	return out, err
}

// ParseEnrich reads an ENRICH response.
func ParseEnrich(raw string) (EnrichResponse, error) {
	var out EnrichResponse
	var err error
	out.Notes, out.Malformed, err = parseElements(raw, "notes", maxElements, func(o object) (n EnrichNote, ok bool) {
		ok = o.text("target", &n.Target) && o.text("guidance", &n.Guidance)
		return n, ok
	})
	return out, err
}

// ParseGround reads a GROUND response; what it does not say is unsupported.
func ParseGround(raw string) (GroundResponse, error) {
	var out GroundResponse
	var err error
	out.Results, out.Malformed, err = parseElements(raw, "results", maxElements, func(o object) (r GroundResult, ok bool) {
		ok = o.index("id", &r.ID) && o.flag("supported", &r.Supported) && o.text("reason", &r.Reason)
		return r, ok
	})
	return out, err
}

// ParseVerify reads a VERIFY response; what it does not say is dropped.
func ParseVerify(raw string) (VerifyResponse, error) {
	var out VerifyResponse
	var err error
	out.Results, out.Malformed, err = parseElements(raw, "results", maxElements, func(o object) (r VerifyResult, ok bool) {
		ok = o.index("id", &r.ID) && o.flag("keep", &r.Keep) && o.share("confidence", &r.Confidence) && o.text("reason", &r.Reason)
		return r, ok
	})
	return out, err
}

// ParseProbe reads the answer to the probe and returns the model's name, ""
// when it gave none.
func ParseProbe(raw string) (model string, err error) {
	o, err := parseObject(raw)
	if err != nil {
		return "", err
	}
	if !o.text("model", &model) {
		return "", errShape
	}
	return clean(Cap(model, MaxTargetLen)), nil
}

func readDraft(o object) (d LLMDraft, ok bool) {
	ok = o.text("summary", &d.Summary) && o.text("target", &d.Target) && o.text("guidance", &d.Guidance) &&
		o.texts("evidence", &d.Evidence) && o.share("confidence", &d.Confidence) && o.text("lesson", &d.Lesson)
	d.Proposal = o["proposal"]
	return d, ok
}
