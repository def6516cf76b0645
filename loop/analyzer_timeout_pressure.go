package loop

import (
	"context"
	"time"

	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/module"
)

// timeoutPressure finds modules that hit their limit, or come close to it.
type timeoutPressure struct{}

func (timeoutPressure) Manifest() Manifest {
	return Manifest{
		ID: "exec.timeout_pressure/1", Title: "Timeout pressure", Cadence: "fast", DefaultOn: true,
		Description: "Many calls of a module time out, or its slow ones need nearly all of their time.",
		Types:       []Type{TypeCall},
		Params: []Param{
			intParam("min_calls", 50, 1, 1_000_000, "how many calls at least"),
			ratioParam("min_share", 0.05, "which share times out"),
			ratioParam("min_p95", 0.8, "which share of the limit the slowest twentieth needs"),
			ratioParam("high_share", 0.2, "from which share it is severe"),
			windowParam(day),
		},
		Templates: map[string]string{
			"exec.timeout_pressure": "Module {module}: {percent} % of {count} calls ended at its limit of {limit}; p50 {p50}, p95 {p95}, p99 {p99}",
		},
	}
}

func (timeoutPressure) Begin(in Input) Pass {
	p := in.Params
	return &timeoutPass{
		w: windowOf(in.Now, p.Duration("window_ms")), minCalls: int(p.Int("min_calls")),
		minShare: p.Float("min_share"), minP95: p.Float("min_p95"), highShare: p.Float("high_share"),
		modules: newTable[timeoutCell](maxCells / 4),
	}
}

type timeoutCell struct {
	n, timeouts   int
	slow          int       // calls that needed nearly all of their limit
	took          histogram // milliseconds
	limit         time.Duration
	ended, slowed sample
}

type timeoutPass struct {
	w                           window
	minCalls                    int
	minShare, minP95, highShare float64
	modules                     table[timeoutCell]
	key                         []byte
}

func (p *timeoutPass) Since() time.Time { return p.w.since() }

func (p *timeoutPass) Add(r *Record) {
	e := r.Evidence
	if !p.w.holds(r) || e.Unexecuted || e.MadeHere || e.Timeout <= 0 || callersFault(e) {
		return
	}
	p.key = joinKey(p.key[:0], e.ModuleID)
	c := p.modules.at(p.key)
	if c == nil {
		return
	}
	c.n++
	c.limit = max(c.limit, e.Timeout)
	c.took.add(float64(e.Duration) / float64(time.Millisecond))
	share := float64(e.Duration) / float64(e.Timeout)
	if share >= p.minP95 {
		c.slow++
	}
	// A caller's short deadline says nothing about the module's limit.
	own := e.Budget == 0 || e.Budget >= e.Timeout
	switch {
	case e.Outcome == contextwire.OutcomeTimeout && e.Code == module.CodeModuleTimeout && e.Origin == "" && own:
		c.timeouts++
		c.ended.add(r)
	case share >= p.minP95:
		c.slowed.add(r)
	}
}

func (p *timeoutPass) cuts() []int64 { return p.w.cuts() }

func (p *timeoutPass) merge(o mergeable) {
	p.modules.merge(&o.(*timeoutPass).modules, func(c, o *timeoutCell) {
		c.n, c.timeouts, c.slow = c.n+o.n, c.timeouts+o.timeouts, c.slow+o.slow
		c.limit = max(c.limit, o.limit)
		c.took.merge(&o.took)
		c.ended.merge(&o.ended)
		c.slowed.merge(&o.slowed)
	})
}

func (p *timeoutPass) settle() int {
	return p.modules.settle(func(c *timeoutCell) int { return c.took.settle() + c.ended.settle() + c.slowed.settle() })
}

func (p *timeoutPass) Drafts(context.Context) ([]Draft, error) {
	var drafts []Draft
	for _, id := range p.modules.sorted() {
		c := p.modules.cells[id]
		share := float64(c.timeouts) / float64(c.n)
		// The slowest twentieth of the calls is what is above the 95th percentile.
		slow := float64(c.slow) > 0.05*float64(c.n)
		if c.n < p.minCalls || (share < p.minShare && !slow) {
			continue
		}
		severity := SeverityMedium
		if share >= p.highShare {
			severity = SeverityHigh
		}
		if len(c.ended.list) < MaxDraftEvidence/2 {
			c.ended.merge(&c.slowed)
		}
		p50, p95, p99 := c.took.quantile(0.5), c.took.quantile(0.95), c.took.quantile(0.99)
		drafts = append(drafts, Draft{
			Target: "host:module-timeout/" + targetName(id), Action: ActionFlag, Severity: severity,
			Summary: Summary{"exec.timeout_pressure", map[string]any{
				"module": shown(id), "percent": percent(share), "count": int64(c.n), "limit": c.limit.String(),
				"p50": millis(p50), "p95": millis(p95), "p99": millis(p99),
			}},
			Data: map[string]any{
				"calls": int64(c.n), "timeouts": int64(c.timeouts), "timeout_ms": c.limit.Milliseconds(),
				"p50_ms": int64(p50), "p95_ms": int64(p95), "p99_ms": int64(p99),
			},
			Evidence: c.ended.hashes(), EvidenceQuery: queryOf("call", id, string(module.CodeModuleTimeout), p.w),
			Confidence: 0.8, Importance: 0.5,
		})
	}
	return ordered(drafts), nil
}
