package loop

import (
	"context"
	"time"
)

// staleSetting finds what is past its date: modules that are still called after
// their sunset, and knowledge whose validity is over.
type staleSetting struct{}

func (staleSetting) Manifest() Manifest {
	return Manifest{
		ID: "exec.stale_setting/1", Title: "Stale settings", Cadence: "slow", DefaultOn: true,
		Description: "Modules that are called after their sunset date, and knowledge past its validity.",
		Types:       []Type{TypeModule, TypeCall, TypeStream, TypeFact, TypeLesson, TypeSkill},
		Params: []Param{
			durationParam("grace_ms", time.Second, "how long after the date nothing is said"),
			durationParam("late_ms", 30*day, "how long after the date it is more severe"),
			windowParam(30 * day),
		},
		Templates: map[string]string{
			"exec.sunset_called":     "Module {module} was to be gone by {date} and was called since, last at {last}",
			"exec.knowledge_expired": "A {type} about {subject} was valid until {date}",
		},
	}
}

func (staleSetting) Begin(in Input) Pass {
	p := in.Params
	return &stalePass{
		now: in.Now.UnixMilli(), w: windowOf(in.Now, p.Duration("window_ms")), grace: p.Int("grace_ms"), late: p.Int("late_ms"),
		called: newTable[staleCalls](maxCells), sunsets: newTable[staleSunset](maxCells), expired: newTable[Draft](maxCells / 4),
	}
}

type staleCalls struct{ sample sample }

type staleSunset struct {
	at    int64
	cited sample
}

type stalePass struct {
	now         int64
	w           window
	grace, late int64
	called      table[staleCalls]
	sunsets     table[staleSunset]
	expired     table[Draft]
}

func (p *stalePass) Since() time.Time { return p.w.since() }

func (p *stalePass) Add(r *Record) {
	switch {
	case r.Type == TypeModule:
		at := r.Int("sunset_ms")
		if at <= 0 || at+p.grace > p.now {
			return
		}
		if s := p.sunsets.at([]byte(r.Text("module_id"))); s != nil {
			// Of several hosts the latest date counts.
			s.at = max(s.at, at)
			s.cited.add(r)
		}
	case r.Evidence != nil:
		if !p.w.holds(r) || r.Evidence.Unexecuted || r.Evidence.MadeHere {
			return
		}
		if c := p.called.at([]byte(r.Evidence.ModuleID)); c != nil {
			c.sample.add(r)
		}
	case r.ValidToMS > 0 && r.Live() && r.ValidToMS+p.grace <= p.now:
		if d := p.expired.at([]byte(r.Hash)); d != nil {
			*d = p.expire(r)
		}
	}
}

func (p *stalePass) cuts() []int64 { return p.w.cuts() }

func (p *stalePass) merge(o mergeable) {
	p.called.merge(&o.(*stalePass).called, func(c, o *staleCalls) { c.sample.merge(&o.sample) })
}

func (p *stalePass) settle() int {
	return p.called.settle(func(c *staleCalls) int { return c.sample.settle() })
}

func (p *stalePass) severity(at int64) Severity {
	if p.now-at > p.late {
		return SeverityMedium
	}
	return SeverityLow
}

func (p *stalePass) expire(r *Record) Draft {
	var s sample
	s.add(r)
	return Draft{
		Target: "grain:" + targetName(copied(r.Hash)), Action: ActionFlag, Severity: p.severity(r.ValidToMS),
		Summary: Summary{"exec.knowledge_expired", map[string]any{
			"type": string(r.Type), "subject": shown(copied(r.Text("subject"))), "date": dateOf(r.ValidToMS),
		}},
		Evidence: s.hashes(), Confidence: 0.9, Importance: 0.3,
	}
}

func dateOf(ms int64) string { return time.UnixMilli(ms).UTC().Format(time.RFC3339) }

func (p *stalePass) Drafts(context.Context) ([]Draft, error) {
	var drafts []Draft
	for _, id := range p.sunsets.sorted() {
		s := p.sunsets.cells[id]
		c := p.called.cells[id]
		if c == nil {
			continue
		}
		c.sample.trim()
		c.sample.since(s.at + p.grace)
		if len(c.sample.list) == 0 {
			continue
		}
		drafts = append(drafts, Draft{
			Target: "host:module/" + targetName(id), Action: ActionFlag, Severity: p.severity(s.at),
			Summary: Summary{"exec.sunset_called", map[string]any{
				"module": shown(id), "date": dateOf(s.at), "last": dateOf(c.sample.list[0].at),
			}},
			Evidence: c.sample.hashes(), EvidenceQuery: queryOf("call,stream", id, "", window{s.at, p.now}), Confidence: 0.9, Importance: 0.4,
		})
	}
	for _, hash := range p.expired.sorted() {
		drafts = append(drafts, *p.expired.cells[hash])
	}
	return ordered(drafts), nil
}
