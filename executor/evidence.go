package executor

import (
	"time"

	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/executor/approval"
	"github.com/apbus/apbus/module"
)

// EvidenceSink takes records of evidence. Record never blocks: what finds no room is
// dropped and counted by the sink. It fills in what only it knows (namespace,
// process, number) and may keep e; it must be safe for concurrent use.
type EvidenceSink interface {
	Record(e *contextwire.Evidence)
}

// EvidenceSinkFunc is a function as an [EvidenceSink].
type EvidenceSinkFunc func(e *contextwire.Evidence)

// Record calls f.
func (f EvidenceSinkFunc) Record(e *contextwire.Evidence) { f(e) }

// EvidenceObserver records how calls ended: one record for each, and one more for a
// denial by the access rules (durable design, section 3). Redaction happens in
// Observe, as it must; encoding and hashing are the sink's, off the call's path.
func EvidenceObserver(sink EvidenceSink) Observer {
	return ObserverFunc(func(c Completion) {
		e := EvidenceOf(c)
		if !c.DeniedByRules() {
			sink.Record(e)
			return
		}
		d := *e // before the sink has e
		d.Type, d.Inputs = contextwire.EvidenceACL, nil
		sink.Record(e)
		sink.Record(&d)
	})
}

// Observers tells each of the observers, in order; nil ones are left out. A panic of
// one keeps the others from hearing of that call.
func Observers(list ...Observer) Observer {
	var all []Observer
	for _, o := range list {
		if o != nil {
			all = append(all, o)
		}
	}
	if len(all) == 1 {
		return all[0]
	}
	return ObserverFunc(func(c Completion) {
		for _, o := range all {
			o.Observe(c)
		}
	})
}

// DeniedByRules reports whether the access rules of this process refused the call.
func (c *Completion) DeniedByRules() bool {
	return c.Err != nil && c.Err.Code == module.CodeACLDenied && !c.Foreign && !c.Executed
}

// EvidenceOf is the record of a completion. It is to be called in
// [Observer.Observe] and shares nothing with the call that could still change.
func EvidenceOf(c Completion) *contextwire.Evidence {
	mctx := c.Context
	e := &contextwire.Evidence{
		Type: contextwire.EvidenceCall, At: contextwire.EvidenceTime(c.Started.Add(c.Duration)),
		ModuleID: c.ModuleID, TraceID: mctx.TraceID(), CallerID: mctx.CallerID(), CallChain: mctx.ChainView(),
		Mode: contextwire.ModeUnary, Outcome: contextwire.OutcomeOK,
		Duration: c.Duration.Truncate(time.Microsecond),
		Timeout:  c.Limit.Truncate(time.Millisecond), Budget: c.Budget.Truncate(time.Millisecond),
		Retries: c.Retries, Chunks: c.Chunks,
	}
	if c.Stream {
		e.Type, e.Mode = contextwire.EvidenceStream, contextwire.ModeStream
	}
	if c.Descriptor != nil {
		e.Version = c.Descriptor.EffectiveVersion()
	}
	call := mctx.Call()
	e.Call, e.Attempt, e.Root, e.Parent = call.ID, call.Attempt, call.Root, call.Parent
	if task, ok := mctx.Data().Get(contextwire.DataTask); ok {
		if e.TaskID, _ = task.(string); e.TaskID != "" && call.Root == call.ID && e.CallerID == "" {
			e.TaskAttempt = call.Attempt // of a task, not a client's own retry
		}
	}
	if id := mctx.Identity(); id != nil {
		e.IdentityID, e.IdentityType = id.ID(), id.Type()
	}
	if size, fits := roughSize(c.raw, contextwire.MaxEvidenceInputs, 0); fits {
		e.Inputs = c.Inputs()
	} else {
		e.InputBytes = size
	}
	switch {
	case c.Err != nil:
		evidenceOfError(e, &c, c.Err)
	case c.PostError != nil:
		evidenceOfError(e, &c, c.PostError)
	}
	return e
}

func evidenceOfError(e *contextwire.Evidence, c *Completion, err *module.Error) {
	e.Outcome, e.Code, e.Message = contextwire.OutcomeOf(err.Code), err.Code, err.Message
	e.Retryable, e.Unexecuted = err.Retryable, !c.Executed
	if err.ModuleID != e.ModuleID {
		e.Origin = err.ModuleID
	}
	if c.Foreign {
		e.Message = scrubShort(e.Message, c.raw, c.Inputs())
		return
	}
	if err.Code == module.CodeSchemaValidation || err.Code == module.CodeSchemaUnionNoMatch || err.Code == module.CodeSchemaUnionAmbiguous {
		e.Side, e.Fields = contextwire.SideInput, violatedPaths(err)
		if c.Executed {
			e.Side = contextwire.SideOutput
		}
	}
}

// violatedPaths are the paths of the fields that a schema refused.
func violatedPaths(err *module.Error) []string {
	list, _ := err.Details["errors"].([]any)
	var paths []string
	for _, item := range list[:min(len(list), contextwire.MaxEvidenceList)] {
		if m, ok := item.(map[string]any); ok {
			if path, ok := m["path"].(string); ok {
				paths = append(paths, path)
			}
		}
	}
	return paths
}

// ApprovalEvidence is the record of a request that was decided, withdrawn or ran
// out; ok is false while it is open. A request that was approved is recorded when
// it is decided, not again when it is used.
func ApprovalEvidence(r approval.Record) (e *contextwire.Evidence, ok bool) {
	e = &contextwire.Evidence{
		Type: contextwire.EvidenceApproval, At: contextwire.EvidenceTime(r.DecidedAt),
		ModuleID: r.Binding.ModuleID, Version: r.Binding.Version, CallerID: r.Binding.CallerID,
		IdentityID: r.Binding.IdentityID, IdentityType: r.Binding.IdentityType,
		TraceID: r.TraceID, CallChain: r.CallChain, Inputs: r.Inputs,
		By: r.DecidedBy, Role: r.DecidedType, Text: r.BecauseOf,
	}
	switch r.State {
	case approval.StateApproved:
		e.Outcome = contextwire.OutcomeApproved
	case approval.StateRejected:
		e.Outcome = contextwire.OutcomeRejected
	case approval.StateExpired:
		if !r.DecidedAt.IsZero() {
			return nil, false // it was decided, and then not used
		}
		e.Outcome, e.At = contextwire.OutcomeTimeout, contextwire.EvidenceTime(r.ExpiresAt)
	case approval.StateWithdrawn:
		e.Outcome, e.At = contextwire.OutcomeCancelled, contextwire.EvidenceTime(time.Now())
	default:
		return nil, false
	}
	if !r.CreatedAt.IsZero() {
		e.Duration = max(0, e.At.Sub(r.CreatedAt)).Truncate(time.Microsecond)
	}
	return e, true
}
