package loop

import (
	"context"
	"math"
	"time"
)

// regressed compares a measurement with what was before: worse by more than the
// tolerance. A tolerance that is no number or negative counts as none.
func regressed(current, baseline, tolerance float64, higherIsBetter bool) bool {
	const epsilon = 1e-9
	if math.IsNaN(tolerance) || math.IsInf(tolerance, 0) || tolerance < 0 {
		tolerance = 0
	}
	if higherIsBetter {
		return current < baseline-tolerance-epsilon
	}
	return current > baseline+tolerance+epsilon
}

// meter counts the opportunities and failures of one applied recommendation.
type meter struct {
	c         *Case
	n, failed int
}

func (m *meter) add(r *Record) {
	metric, e := m.c.Rec.Metric, r.Evidence
	if r.CreatedAtMS <= m.c.Status.AppliedAtMS || metric.ModuleID != "" && e.ModuleID != metric.ModuleID {
		return
	}
	if metric.Metric == MetricTaskFailureRate {
		if r.Type != TypeTask || e.Outcome == "cancelled" || e.Outcome == "pending" {
			return
		}
		m.n++
		if Failed(e.Outcome) {
			m.failed++
		}
		return
	}
	if !isCall(r.Type) {
		return
	}
	mine := ownFailure(e) && (metric.Code == "" || string(e.Code) == metric.Code) &&
		(metric.Signature == "" || Signature(e.Message) == metric.Signature)
	if mine {
		m.failed++
	}
	if mine || e.Outcome == "ok" {
		m.n++
	}
}

// measure measures applied recommendations whose horizons are due, each once, over
// one reading of the evidence since the oldest apply. What cannot be measured yet
// stays due. A measurement is never made up.
func (p *pass) measure(ctx context.Context) error {
	var due []*meter
	since := p.now
	for _, c := range p.cases {
		if c.Status.State != StateApplied || c.Rec.Metric == nil || len(p.dueHorizons(c)) == 0 {
			continue
		}
		switch c.Rec.Metric.Metric {
		case MetricCallErrorRate, MetricTaskFailureRate:
		default:
			continue
		}
		due = append(due, &meter{c: c})
		if at := time.UnixMilli(c.Status.AppliedAtMS); at.Before(since) {
			since = at
		}
	}
	if len(due) > 0 {
		for r, err := range p.reader.Records(ctx, Query{Types: []Type{TypeCall, TypeStream, TypeTask}, Since: since}) {
			if err != nil {
				return storeError("measuring outcomes", err)
			}
			for _, m := range due {
				m.add(r)
			}
		}
	}
	for _, m := range due {
		if m.n == 0 || m.n < m.c.Rec.Metric.MinN {
			continue
		}
		for _, horizon := range p.dueHorizons(m.c) {
			if err := p.measured(ctx, m, horizon); err != nil {
				return err
			}
		}
	}
	if err := p.measureEvalsets(ctx); err != nil {
		return err
	}
	p.outcomes = p.latest()
	return nil
}

func (p *pass) dueHorizons(c *Case) []int64 {
	var due []int64
	for _, h := range c.Rec.Metric.HorizonsMS {
		if p.now.UnixMilli() >= c.Status.AppliedAtMS+h && !c.Status.measuredAt(h) {
			due = append(due, h)
		}
	}
	return due
}

func (p *pass) measured(ctx context.Context, m *meter, horizon int64) error {
	metric := m.c.Rec.Metric
	current := float64(m.failed) / float64(m.n)
	verdict := VerdictHeld
	if regressed(current, metric.Baseline, metric.MinEffect, metric.HigherIsBetter) {
		verdict = VerdictRegress
	}
	done, err := p.note(ctx, m.c, "outcome_review", AuditEntry{Event: EventMeasured, Because: "measured as planned", Measured: &Measured{
		HorizonMS: horizon, Verdict: verdict, Baseline: metric.Baseline, Current: current, N: m.n,
	}})
	if done {
		p.result.Measured++
	}
	return err
}

// latest are the newest verdicts on what is applied; a regression outweighs a drift.
// They are given in every pass, not only when they are new, so that a pass that
// crashed loses none; dedup keeps the same revert from being proposed twice.
func (p *pass) latest() []Outcome {
	var list []Outcome
	for _, c := range p.cases {
		if c.Status.State != StateApplied {
			continue
		}
		o := Outcome{RecHash: c.Hash, Target: c.Rec.Target, Evidence: c.Rec.Evidence}
		m := c.Status.Latest()
		switch {
		case m != nil && m.Verdict == VerdictRegress:
			o.Verdict, o.Metric, o.Baseline, o.Current, o.N = m.Verdict, c.Rec.Metric.Metric, m.Baseline, m.Current, m.N
		case c.Status.Moved > 0:
			o.Verdict = VerdictDrifted
		case m != nil:
			o.Verdict, o.Metric, o.Baseline, o.Current, o.N = m.Verdict, c.Rec.Metric.Metric, m.Baseline, m.Current, m.N
		default:
			continue
		}
		list = append(list, o)
	}
	return list
}

// drift looks at whether the knowledge that recommendations cite still holds. Of
// what is applied a count is recorded, once for each; what is open is withdrawn.
// Evidence does not move: it happened, and that it is kept for days only says
// nothing.
func (p *pass) drift(ctx context.Context) error {
	if !p.policy.PremiseDrift {
		return nil
	}
	byHash := make(map[string]*Item, len(p.items))
	for _, i := range p.items {
		byHash[i.Hash] = i
	}
	for _, c := range p.cases {
		if c.Rec.Proposal.Kind == ChangeRevert {
			continue // that something has moved may be its very reason
		}
		moved := 0
		for _, h := range c.Rec.Evidence {
			if i := byHash[h]; i != nil && !i.Live && i.ByRec != c.Hash && !i.Same {
				moved++
			}
		}
		if moved == 0 {
			continue
		}
		switch {
		case c.Status.State == StateApplied && c.Status.Intent == "" && moved != c.Status.Moved:
			done, err := p.note(ctx, c, "premise_drift", AuditEntry{Event: EventDrifted, Because: "what it cites has changed", Moved: moved})
			if err != nil {
				return err
			}
			if done {
				p.result.Drifted++
			}
		case c.Status.may(EventWithdrawn) && (moved == len(c.Rec.Evidence) || !p.policy.PremiseDriftOpenAll):
			done, err := p.note(ctx, c, "premise_drift", AuditEntry{Event: EventWithdrawn, Because: "what it cites has changed", Moved: moved})
			if err != nil {
				return err
			}
			if done {
				p.result.Withdrawn++
			}
		}
	}
	p.outcomes = p.latest()
	return nil
}
