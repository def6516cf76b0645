package loop

import (
	"context"
	"math"
	"time"

	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/module"
)

// approvalFriction finds approvals that are always given, or that nobody gives in
// time.
type approvalFriction struct{}

func (approvalFriction) Manifest() Manifest {
	return Manifest{
		ID: "exec.approval_friction/1", Title: "Approval friction", Cadence: "slow", DefaultOn: true,
		Description: "A module whose requests are nearly always approved, or often run out.",
		Types:       []Type{TypeApproval, TypeCall},
		Params: []Param{
			intParam("min_decisions", 10, 1, 10_000, "how many decisions at least"),
			ratioParam("min_approved", 0.95, "which share is approved"),
			// Ten approvals in a row happen to a module of which every fifth request is
			// rejected, too; the labelled histories have it.
			ratioParam("min_sure", 0.85, "of which share one can be sure after so few decisions"),
			intParam("min_requests", 5, 1, 10_000, "how many requests at least, for those that run out"),
			ratioParam("min_timeouts", 0.2, "which share runs out"),
			windowParam(30 * day),
		},
		Templates: map[string]string{
			"exec.approval_routine": "Requests for {module} are approved in {percent} % of {count} decisions",
			"exec.approval_late":    "Requests for {module} ran out undecided in {percent} % of {count} cases",
		},
	}
}

func (approvalFriction) Begin(in Input) Pass {
	p := in.Params
	return &frictionPass{
		w: windowOf(in.Now, p.Duration("window_ms")), minDecisions: int(p.Int("min_decisions")),
		minRequests: int(p.Int("min_requests")), minApproved: p.Float("min_approved"), sure: p.Float("min_sure"), minTimeouts: p.Float("min_timeouts"),
		modules: newTable[frictionCell](maxCells / 4),
	}
}

type frictionCell struct {
	approved, rejected, timeouts int
	yes, late                    sample
}

type frictionPass struct {
	w                         window
	minDecisions, minRequests int
	minApproved, minTimeouts  float64
	sure                      float64
	modules                   table[frictionCell]
}

func (p *frictionPass) Since() time.Time { return p.w.since() }

func (p *frictionPass) Add(r *Record) {
	// A request that runs out is known by the call that came back for it.
	ranOut := r.Type == TypeCall && r.Evidence.Code == module.CodeApprovalTimeout && r.Evidence.Origin == ""
	if !p.w.holds(r) || (r.Type == TypeCall && !ranOut) {
		return
	}
	c := p.modules.at([]byte(r.Evidence.ModuleID))
	if c == nil {
		return
	}
	switch r.Evidence.Outcome {
	case contextwire.OutcomeApproved:
		c.approved++
		c.yes.add(r)
	case contextwire.OutcomeRejected:
		c.rejected++
	case contextwire.OutcomeTimeout:
		c.timeouts++
		c.late.add(r)
	}
}

func (p *frictionPass) cuts() []int64 { return p.w.cuts() }

func (p *frictionPass) merge(o mergeable) {
	p.modules.merge(&o.(*frictionPass).modules, func(c, o *frictionCell) {
		c.approved, c.rejected, c.timeouts = c.approved+o.approved, c.rejected+o.rejected, c.timeouts+o.timeouts
		c.yes.merge(&o.yes)
		c.late.merge(&o.late)
	})
}

func (p *frictionPass) settle() int {
	return p.modules.settle(func(c *frictionCell) int { return c.yes.settle() + c.late.settle() })
}

func (p *frictionPass) Drafts(context.Context) ([]Draft, error) {
	var drafts []Draft
	for _, id := range p.modules.sorted() {
		c := p.modules.cells[id]
		decisions := c.approved + c.rejected
		requests := decisions + c.timeouts
		d := Draft{
			Target: "host:approval/" + targetName(id), Action: ActionFlag,
			EvidenceQuery: queryOf("approval", id, "", p.w), Confidence: 0.8, Importance: 0.3,
		}
		switch {
		case requests >= p.minRequests && float64(c.timeouts) >= p.minTimeouts*float64(requests) && c.timeouts > 0:
			share := float64(c.timeouts) / float64(requests)
			d.Severity, d.Evidence = SeverityMedium, c.late.hashes()
			d.Summary = Summary{"exec.approval_late", map[string]any{"module": shown(id), "percent": percent(share), "count": int64(requests)}}
		case decisions >= p.minDecisions && float64(c.approved) >= p.minApproved*float64(decisions) && surely(c.approved, decisions) >= p.sure:
			share := float64(c.approved) / float64(decisions)
			d.Severity, d.Evidence = SeverityLow, c.yes.hashes()
			d.Summary = Summary{"exec.approval_routine", map[string]any{"module": shown(id), "percent": percent(share), "count": int64(decisions)}}
		default:
			continue
		}
		drafts = append(drafts, d)
	}
	return ordered(drafts), nil
}

// surely is the share that is exceeded with a probability of 95 %, as far as n trials
// tell (Wilson's lower bound).
func surely(hits, n int) float64 {
	const z = 1.645
	share, trials := float64(hits)/float64(n), float64(n)
	spread := z * math.Sqrt(share*(1-share)/trials+z*z/(4*trials*trials))
	return (share + z*z/(2*trials) - spread) / (1 + z*z/trials)
}
