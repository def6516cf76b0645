package loop

import (
	"context"
	"strings"
	"time"

	"github.com/apbus/apbus/contextwire"
)

// approvalRejection finds what people refuse again and again.
type approvalRejection struct{}

func (approvalRejection) Manifest() Manifest {
	return Manifest{
		ID: "exec.approval_rejection/1", Title: "Rejected approvals", Cadence: "batch", DefaultOn: true,
		Description: "Requests of one caller for one module that people keep rejecting.",
		Types:       []Type{TypeApproval},
		Params: []Param{
			intParam("min_count", 3, 1, 1000, "how many rejections at least"),
			// Who asks a lot is rejected now and then; the labelled histories have it.
			ratioParam("min_share", 0.6, "in which share of that caller's decided requests"),
			windowParam(14 * day),
		},
		Templates: map[string]string{
			"exec.approval_rejection": "Requests for {module} were rejected {count} times, asked by {callers}",
		},
	}
}

func (approvalRejection) Begin(in Input) Pass {
	p := in.Params
	return &rejectionPass{
		w: windowOf(in.Now, p.Duration("window_ms")), minCount: int(p.Int("min_count")), minShare: p.Float("min_share"), pairs: newTable[rejectionCell](maxCells),
	}
}

type rejectionCell struct {
	n, approved int
	sample      sample
}

type rejectionPass struct {
	w        window
	minCount int
	minShare float64
	pairs    table[rejectionCell]
	key      []byte
}

func (p *rejectionPass) Since() time.Time { return p.w.since() }

func (p *rejectionPass) Add(r *Record) {
	e := r.Evidence
	if !p.w.holds(r) || (e.Outcome != contextwire.OutcomeRejected && e.Outcome != contextwire.OutcomeApproved) {
		return
	}
	p.key = joinKey(p.key[:0], e.ModuleID, callerOf(e))
	c := p.pairs.at(p.key)
	switch {
	case c == nil:
	case e.Outcome == contextwire.OutcomeApproved:
		c.approved++
	default:
		c.n++
		c.sample.add(r)
	}
}

func (p *rejectionPass) cuts() []int64 { return p.w.cuts() }

func (p *rejectionPass) merge(o mergeable) {
	p.pairs.merge(&o.(*rejectionPass).pairs, func(c, o *rejectionCell) {
		c.n, c.approved = c.n+o.n, c.approved+o.approved
		c.sample.merge(&o.sample)
	})
}

func (p *rejectionPass) settle() int {
	return p.pairs.settle(func(c *rejectionCell) int { return c.sample.settle() })
}

func (p *rejectionPass) Drafts(context.Context) ([]Draft, error) {
	var drafts []Draft
	var callers tally
	var sum sample
	var total int
	id := ""
	flush := func() {
		if total == 0 {
			return
		}
		drafts = append(drafts, Draft{
			Target: "entity:lessons/" + targetName(id), Action: ActionFlag, Severity: SeverityMedium,
			Summary: Summary{"exec.approval_rejection", map[string]any{
				"module": shown(id), "count": int64(total), "callers": listed(callers.names()),
			}},
			Evidence: sum.hashes(), EvidenceQuery: queryOf("approval", id, "", p.w), Confidence: 0.8, Importance: 0.5,
		})
	}
	for _, key := range p.pairs.sorted() {
		c := p.pairs.cells[key]
		m, caller, _ := strings.Cut(key, string(rune(unitSeparator)))
		if m != id {
			flush()
			id, callers, sum, total = m, tally{}, sample{}, 0
		}
		if c.n >= p.minCount && float64(c.n) >= p.minShare*float64(c.n+c.approved) {
			total += c.n
			callers[caller] = c.n
			sum.merge(&c.sample)
		}
	}
	flush()
	return ordered(drafts), nil
}
