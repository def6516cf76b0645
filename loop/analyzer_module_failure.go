package loop

import (
	"context"
	"strings"
	"time"
)

const day = 24 * time.Hour

// moduleFailure finds failures of one kind that a module has often or nearly always.
type moduleFailure struct{}

func (moduleFailure) Manifest() Manifest {
	return Manifest{
		ID: "exec.module_failure/1", Title: "Module failures", Cadence: "fast", DefaultOn: true,
		Description: "The same failure of one module, often or in most of its calls.",
		Types:       []Type{TypeCall, TypeStream},
		Params: []Param{
			intParam("min_count", 5, 1, 1000, "how often at least"),
			ratioParam("min_rate", 0.4, "in which share of the calls that succeed or fail so"),
			intParam("min_abs", 50, 1, 100_000, "how often regardless of the share"),
			windowParam(7 * day),
		},
		Templates: map[string]string{
			"exec.module_failure": "Module {module} failed {count} times ({percent} %) with {code}: {signature}",
		},
	}
}

func (moduleFailure) Begin(in Input) Pass {
	p := in.Params
	return &moduleFailurePass{
		w: windowOf(in.Now, p.Duration("window_ms")), minCount: int(p.Int("min_count")), minAbs: int(p.Int("min_abs")),
		minRate: p.Float("min_rate"), span: p.Duration("window_ms"),
		clusters: newTable[failureCluster](maxCells), good: newTable[int](maxCells),
	}
}

type failureCluster struct {
	n          int
	namespaces tally
	sample     sample
}

type moduleFailurePass struct {
	w                window
	span             time.Duration
	minCount, minAbs int
	minRate          float64
	clusters         table[failureCluster]
	good             table[int]
	key              []byte
}

func (p *moduleFailurePass) Since() time.Time { return p.w.since() }

func (p *moduleFailurePass) Add(r *Record) {
	e := r.Evidence
	if !p.w.holds(r) {
		return
	}
	if e.Outcome == "ok" {
		if n := p.good.at(joinKey(p.key[:0], e.ModuleID)); n != nil {
			*n++
		}
		return
	}
	if !ownFailure(e) {
		return
	}
	signature := Signature(e.Message)
	if signature == "" {
		return
	}
	p.key = joinKey(p.key[:0], e.ModuleID, string(e.Code), signature)
	c := p.clusters.at(p.key)
	if c == nil {
		return
	}
	c.n++
	c.namespaces.add(r.Namespace)
	c.sample.add(r)
}

func (p *moduleFailurePass) cuts() []int64 { return p.w.cuts() }

func (p *moduleFailurePass) merge(o mergeable) {
	with := o.(*moduleFailurePass)
	p.clusters.merge(&with.clusters, func(c, o *failureCluster) {
		c.n += o.n
		c.namespaces.merge(o.namespaces)
		c.sample.merge(&o.sample)
	})
	p.good.merge(&with.good, sum)
}

func (p *moduleFailurePass) settle() int {
	return p.good.settle(nil) + p.clusters.settle(func(c *failureCluster) int { return c.namespaces.settle() + c.sample.settle() })
}

func (p *moduleFailurePass) Drafts(context.Context) ([]Draft, error) {
	var drafts []Draft
	for _, key := range p.clusters.sorted() {
		c := p.clusters.cells[key]
		parts := strings.SplitN(key, string(rune(unitSeparator)), 3)
		id, code, signature := parts[0], parts[1], parts[2]
		ok := 0
		if n := p.good.cells[id]; n != nil {
			ok = *n
		}
		rate := float64(c.n) / float64(ok+c.n)
		if c.n < p.minCount || (rate < p.minRate && c.n < p.minAbs) {
			continue
		}
		severity := SeverityLow
		switch {
		case rate >= 0.7 && c.n >= 10:
			severity = SeverityHigh
		case rate >= 0.5:
			severity = SeverityMedium
		}
		drafts = append(drafts, Draft{
			Target: "entity:lessons/" + targetName(id), Action: ActionClusterFailure, Severity: severity,
			Summary: Summary{"exec.module_failure", map[string]any{
				"module": shown(id), "count": int64(c.n), "percent": percent(rate), "code": shown(code), "signature": shown(signature),
			}},
			Fact: &FactDraft{
				Namespace: c.namespaces.dominant(), Subject: targetName(id), Relation: "fails_with",
				Object: Cap(clean(code+" "+signature), 480), Confidence: rate,
			},
			Evidence: c.sample.hashes(), EvidenceQuery: queryOf("call,stream", id, code, p.w),
			Metric: &Metric{
				Kind: MetricCallErrorRate, ModuleID: id, Code: code, Signature: signature,
				Baseline: rate, N: ok + c.n, Window: p.span, MinN: 20, MinEffect: 0.02,
			},
			Confidence: rate, Importance: 0.5,
		})
	}
	return ordered(drafts), nil
}
