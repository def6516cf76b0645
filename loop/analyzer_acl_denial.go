package loop

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"
	"unsafe"

	"github.com/apbus/apbus/contextwire"
)

// aclDenial finds callers that are refused again and again. It never proposes to
// widen a rule.
type aclDenial struct{}

func (aclDenial) Manifest() Manifest {
	return Manifest{
		ID: "exec.acl_denial/1", Title: "Access denials", Cadence: "fast", DefaultOn: true,
		Description: "A caller that is always refused by a module, or that tries many modules in a short time.",
		Types:       []Type{TypeACL, TypeCall, TypeStream},
		Params: []Param{
			intParam("min_count", 5, 1, 1000, "how often at least, of one caller at one module"),
			intParam("probe_modules", 20, 2, 1000, "how many modules refuse one caller"),
			durationParam("probe_ms", 10*time.Minute, "within which time"),
			windowParam(7 * day),
		},
		Templates: map[string]string{
			"exec.acl_denial": "{caller} was refused {count} times and never let in: {modules}",
			"exec.acl_probe":  "{caller} was refused by {count} modules within {span}, beginning {at}",
		},
	}
}

func (aclDenial) Begin(in Input) Pass {
	p := in.Params
	return &aclPass{
		w: windowOf(in.Now, p.Duration("window_ms")), minCount: int(p.Int("min_count")),
		probe: int(p.Int("probe_modules")), span: p.Duration("probe_ms"),
		pairs: newTable[aclPair](2 * maxCells), callers: newTable[aclCaller](maxCells),
	}
}

type aclPair struct {
	denied, allowed int
	sample          sample
}

// aclCaller keeps when and where a caller was refused, the newest of it.
type aclCaller struct {
	tries []aclTry
	all   sample
}

type aclTry struct {
	at     int64
	module uint64
}

const maxTries = 4096

type aclPass struct {
	w        window
	minCount int
	probe    int
	span     time.Duration
	pairs    table[aclPair]
	callers  table[aclCaller]
	key      []byte
}

func (p *aclPass) Since() time.Time { return p.w.since() }

func (p *aclPass) Add(r *Record) {
	e := r.Evidence
	if !p.w.holds(r) || (r.Type != TypeACL && (e.Outcome != contextwire.OutcomeOK || e.MadeHere)) {
		return
	}
	caller := callerOf(e)
	p.key = joinKey(p.key[:0], caller, e.ModuleID)
	c := p.pairs.at(p.key)
	if c == nil {
		return
	}
	if r.Type != TypeACL {
		c.allowed++
		return
	}
	c.denied++
	c.sample.add(r)
	p.key = joinKey(p.key[:0], caller)
	if who := p.callers.at(p.key); who != nil {
		who.all.add(r)
		who.tries = append(who.tries, aclTry{r.CreatedAtMS, digestText(e.ModuleID)})
		if len(who.tries) >= 2*maxTries {
			who.trim()
		}
	}
}

func (c *aclCaller) trim() {
	slices.SortFunc(c.tries, func(a, b aclTry) int {
		return cmp.Or(cmp.Compare(b.at, a.at), cmp.Compare(a.module, b.module))
	})
	if len(c.tries) > maxTries {
		c.tries = slices.Clip(c.tries[:maxTries:maxTries])
	}
}

func (p *aclPass) cuts() []int64 { return p.w.cuts() }

func (p *aclPass) merge(o mergeable) {
	with := o.(*aclPass)
	p.pairs.merge(&with.pairs, func(c, o *aclPair) {
		c.denied, c.allowed = c.denied+o.denied, c.allowed+o.allowed
		c.sample.merge(&o.sample)
	})
	p.callers.merge(&with.callers, func(c, o *aclCaller) {
		c.all.merge(&o.all)
		if c.tries = append(c.tries, o.tries...); len(c.tries) >= 2*maxTries {
			c.trim()
		}
	})
}

func (p *aclPass) settle() int {
	return p.pairs.settle(func(c *aclPair) int { return c.sample.settle() }) + p.callers.settle(func(c *aclCaller) int {
		c.trim()
		c.tries = slices.Clip(c.tries)
		return c.all.settle() + len(c.tries)*int(unsafe.Sizeof(aclTry{}))
	})
}

// callerOf names who called: the calling module, else the identity, else that
// nobody said.
func callerOf(e *contextwire.Evidence) string {
	switch {
	case e.CallerID != "":
		return e.CallerID
	case e.IdentityID != "":
		return e.IdentityType + ":" + e.IdentityID
	}
	return "@external"
}

func (p *aclPass) Drafts(context.Context) ([]Draft, error) {
	type finding struct {
		count   int
		modules tally
		sample  sample
	}
	refused := map[string]*finding{}
	for _, key := range p.pairs.sorted() {
		c := p.pairs.cells[key]
		if c.denied < p.minCount || c.allowed > 0 {
			continue
		}
		caller, id, _ := strings.Cut(key, string(rune(unitSeparator)))
		f := refused[caller]
		if f == nil {
			f = &finding{modules: tally{}}
			refused[caller] = f
		}
		f.count += c.denied
		f.modules[id] = c.denied
		f.sample.merge(&c.sample)
	}
	var drafts []Draft
	for _, caller := range p.callers.sorted() {
		who := p.callers.cells[caller]
		d := Draft{
			Target: "host:acl/" + targetName(caller), Action: ActionFlag, Severity: SeverityMedium,
			EvidenceQuery: queryOf("acl", "", "", p.w), Confidence: 0.8, Importance: 0.5,
		}
		if n, at := who.most(p.span); n >= p.probe {
			d.Severity, d.Confidence = SeverityHigh, 0.9
			d.Summary = Summary{"exec.acl_probe", map[string]any{
				"caller": shown(caller), "count": int64(n), "span": p.span.String(), "at": time.UnixMilli(at).UTC().Format(time.RFC3339),
			}}
			d.Evidence = who.all.hashes()
			drafts = append(drafts, d)
			continue
		}
		if f := refused[caller]; f != nil {
			d.Summary = Summary{"exec.acl_denial", map[string]any{
				"caller": shown(caller), "count": int64(f.count), "modules": listed(f.modules.names()),
			}}
			d.Evidence = f.sample.hashes()
			drafts = append(drafts, d)
		}
	}
	return ordered(drafts), nil
}

// most is the largest number of different modules within one stretch of time, and
// when it began.
func (c *aclCaller) most(span time.Duration) (n int, at int64) {
	c.trim()
	slices.SortFunc(c.tries, func(a, b aclTry) int {
		return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.module, b.module))
	})
	inside := map[uint64]int{}
	from := 0
	for _, t := range c.tries {
		inside[t.module]++
		for ; t.at-c.tries[from].at > span.Milliseconds(); from++ {
			m := c.tries[from].module
			if inside[m]--; inside[m] == 0 {
				delete(inside, m)
			}
		}
		if len(inside) > n {
			n, at = len(inside), c.tries[from].at
		}
	}
	return n, at
}
