package bus

import (
	"slices"
	"strings"
	"time"

	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/module"
)

// recordEnd leaves a record of a call that ended where no executor saw it: its owner
// is lost, nobody listens, it was refused at the door. What an owner answered, the
// owner records; what the caller ended itself is cancelled there, and recorded there
// too. A record holds no inputs, since their schema is not known here.
func (c *Client) recordEnd(req *contextwire.Request, took time.Duration, err *module.Error) {
	if c.evidence == nil || err == nil || !unseen(err) {
		return
	}
	e := &contextwire.Evidence{
		Type: contextwire.EvidenceCall, Mode: contextwire.ModeUnary, At: contextwire.EvidenceTime(time.Now()),
		ModuleID: req.ModuleID, Call: req.CallID, Attempt: req.Attempt, Root: req.Root, Parent: req.Parent,
		Outcome: contextwire.OutcomeError, Code: err.Code, Message: err.Message,
		Retryable: err.Retryable, Unexecuted: err.Unexecuted, MadeHere: !err.Remote,
		Duration: took.Truncate(time.Microsecond), Budget: max(0, req.Budget).Truncate(time.Millisecond),
	}
	if req.Stream {
		e.Type, e.Mode = contextwire.EvidenceStream, contextwire.ModeStream
	}
	if err.Code == module.CodeModuleTimeout || err.Code == module.CodeBusBudgetExhausted {
		e.Outcome = contextwire.OutcomeTimeout
	}
	if mctx := req.Context; mctx != nil {
		chain := mctx.ChainView()
		e.TraceID = mctx.TraceID()
		e.CallChain = slices.Concat(chain, []string{req.ModuleID})
		if len(chain) > 0 {
			e.CallerID = chain[len(chain)-1]
		}
		if id := mctx.Identity(); id != nil {
			e.IdentityID, e.IdentityType = id.ID(), id.Type()
		}
	}
	c.evidence(e)
}

// unseen reports whether no executor can have recorded the end of a call.
func unseen(err *module.Error) bool {
	switch err.Code {
	case module.CodeExecutionCancelled, module.CodeInvalidInput:
		return false
	case module.CodeModuleNotFound:
		return err.Unexecuted // an owner that has it answers otherwise
	}
	return !err.Remote || (err.Unexecuted && strings.HasPrefix(string(err.Code), "BUS_"))
}
