package loop

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"time"
	"unsafe"

	"github.com/apbus/apbus/module"
)

// retryStorm finds modules that are tried over and over, and failures that are tried
// again though they said that this is useless.
type retryStorm struct{}

func (retryStorm) Manifest() Manifest {
	return Manifest{
		ID: "exec.retry_storm/1", Title: "Retry storms", Cadence: "fast", DefaultOn: true,
		Description: "As many retries as first attempts, or retries of failures that cannot be retried.",
		Types:       []Type{TypeCall, TypeStream, TypeTask},
		Params: []Param{
			floatParam("min_ratio", 1, 0.01, 1000, "retries for each first attempt"),
			intParam("min_count", 20, 1, 1_000_000, "how many first attempts at least"),
			intParam("min_useless", 3, 1, 1000, "how many retries of failures that are not retryable"),
			windowParam(time.Hour),
		},
		Templates: map[string]string{
			"exec.retry_storm":   "Module {module} had {retries} retries for {count} first attempts",
			"exec.retry_useless": "Failures of {module} that cannot be retried were retried {count} times: {codes}",
		},
	}
}

func (retryStorm) Begin(in Input) Pass {
	p := in.Params
	return &retryPass{
		w: windowOf(in.Now, p.Duration("window_ms")), minCount: int(p.Int("min_count")),
		useless: int(p.Int("min_useless")), minRatio: p.Float("min_ratio"),
		modules: newTable[retryModule](maxCells / 4), works: newTable[retryWork](maxTasks),
	}
}

type retryModule struct {
	first, retries, useless int
	codes                   tally
	again, refused          sample
}

// retryWork is one call or task over all its attempts.
type retryWork struct {
	module string
	hard   []hardFailure // attempts that failed for good, the earliest of them
	last   int
}

type hardFailure struct {
	attempt int
	code    string
	cited   cited
}

func compareHard(a, b hardFailure) int {
	return cmp.Or(cmp.Compare(a.attempt, b.attempt), compareCited(a.cited, b.cited))
}

func (w *retryWork) trim(most int) {
	if len(w.hard) > most {
		slices.SortFunc(w.hard, compareHard)
		w.hard = w.hard[:maxListed]
	}
}

type retryPass struct {
	w        window
	minCount int
	useless  int
	minRatio float64
	modules  table[retryModule]
	works    table[retryWork]
	names    names
	key      []byte
}

func (p *retryPass) Since() time.Time { return p.w.since() }

func (p *retryPass) Add(r *Record) {
	e := r.Evidence
	if !p.w.holds(r) || e.MadeHere {
		return
	}
	attempt := e.Attempt
	if r.Type == TypeTask {
		attempt = e.TaskAttempt
	}
	m := p.modules.at([]byte(e.ModuleID))
	if m == nil {
		m = &retryModule{} // not in the sample
	}
	m.retries += e.Retries
	if r.Type != TypeTask && e.TaskAttempt > 0 {
		return // the record of the attempt tells the rest
	}
	if attempt > 1 {
		m.retries++
	} else {
		m.first++
	}
	if attempt > 1 || e.Retries > 0 {
		m.again.add(r)
	}
	work := e.Call
	if r.Type == TypeTask {
		work = e.TaskID
	}
	hard := Failed(e.Outcome) && e.Retryable == module.False
	if work == "" || (attempt <= 1 && !hard) {
		return
	}
	p.key = joinKey(p.key[:0], string(r.Type), work, strconv.FormatUint(digestText(e.CallChain...), 36))
	w := p.works.at(p.key)
	if w == nil {
		return
	}
	w.module, w.last = max(w.module, p.names.of(e.ModuleID)), max(w.last, attempt)
	var s sample
	if s.add(r); hard && len(s.list) > 0 {
		w.hard = append(w.hard, hardFailure{attempt, p.names.of(string(e.Code)), s.list[0]})
		w.trim(2 * maxListed)
	}
}

func (p *retryPass) cuts() []int64 { return p.w.cuts() }

func (p *retryPass) merge(o mergeable) {
	with := o.(*retryPass)
	p.modules.merge(&with.modules, func(m, o *retryModule) {
		m.first, m.retries = m.first+o.first, m.retries+o.retries
		m.again.merge(&o.again)
	})
	p.works.merge(&with.works, func(w, o *retryWork) {
		w.module, w.last = max(w.module, o.module), max(w.last, o.last)
		w.hard = append(w.hard, o.hard...)
		w.trim(maxListed)
	})
}

func (p *retryPass) settle() int {
	return p.modules.settle(func(m *retryModule) int { return m.again.settle() }) +
		p.works.settle(func(w *retryWork) int {
			w.trim(maxListed)
			return len(w.hard) * int(unsafe.Sizeof(hardFailure{}))
		})
}

func (p *retryPass) Drafts(context.Context) ([]Draft, error) {
	for _, key := range p.works.sorted() {
		w := p.works.cells[key]
		m := p.modules.cells[w.module]
		if m == nil {
			continue
		}
		w.trim(maxListed)
		for i := range w.hard {
			if f := &w.hard[i]; f.attempt < w.last {
				m.useless++
				m.codes.add(f.code)
				m.refused.take(f.cited)
			}
		}
	}
	var drafts []Draft
	for _, id := range p.modules.sorted() {
		m := p.modules.cells[id]
		d := Draft{
			Target: "host:retry/" + targetName(id), Action: ActionFlag, Severity: SeverityHigh,
			EvidenceQuery: queryOf("call,stream,task", id, "", p.w), Confidence: 0.8, Importance: 0.6,
		}
		useless := m.useless * p.works.scale()
		switch {
		case m.first >= p.minCount && float64(m.retries) >= p.minRatio*float64(m.first):
			d.Summary = Summary{"exec.retry_storm", map[string]any{"module": shown(id), "retries": int64(m.retries), "count": int64(m.first)}}
			d.Evidence = m.again.hashes()
		case useless >= p.useless:
			d.Summary = Summary{"exec.retry_useless", map[string]any{"module": shown(id), "count": int64(useless), "codes": listed(m.codes.names())}}
			d.Evidence = m.refused.hashes()
		default:
			continue
		}
		drafts = append(drafts, d)
	}
	return ordered(drafts), nil
}
