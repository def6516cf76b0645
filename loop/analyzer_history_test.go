package loop_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/loop"
	"github.com/apbus/apbus/module"
)

// labelled is a fleet's week in which some things are wrong, which the label lists
// as analyzer and target, and much looks as if it were and is not.
type labelled struct {
	h     history
	r     *rand.Rand
	wrong map[string]bool // what a finding may say
}

func (l *labelled) label(analyzer, target string) { l.wrong["exec."+analyzer+" "+target] = true }

// at is a moment within the last so many hours.
func (l *labelled) at(hours float64) time.Time {
	return today.Add(-time.Duration(l.r.Float64() * hours * float64(time.Hour)))
}

// traffic is healthy work with the noise of every fleet: single failures of many
// kinds, denials, cancels, inputs that do not fit, now and then a retry.
func (l *labelled) traffic(modules, calls int) {
	for m := range modules {
		id := fmt.Sprintf("mod%d.run", m)
		l.h.know((&loop.ModuleSnapshot{ModuleID: id, Version: "1.0.0", Description: fmt.Sprint("number ", m, " of many"), Node: "n1", Since: today.Add(-90 * 24 * time.Hour),
			InputSchema: map[string]any{"title": id}}).Record())
		rate := 0.002 + 0.02*l.r.Float64()
		for i := range calls {
			e := contextwire.Evidence{
				ModuleID: id, At: l.at(160), Node: fmt.Sprint("n", 1+l.r.IntN(3)), CallerID: fmt.Sprint("app", l.r.IntN(5)), Attempt: 1,
				Call: fmt.Sprintf("call-%d-%016d", m, i), TraceID: fmt.Sprintf("%032x", l.r.Uint64()),
				Duration: time.Duration(5+l.r.IntN(400)) * time.Millisecond, Timeout: 30 * time.Second, Budget: 60 * time.Second,
				CallChain: []string{"app.main", id},
			}
			switch p := l.r.Float64(); {
			case p < rate:
				e.Outcome, e.Code, e.Message = contextwire.OutcomeError, module.Code(fmt.Sprint("E", l.r.IntN(6))), fmt.Sprintf("cannot do %s", strings.Repeat("x", 1+l.r.IntN(4)))
				e.Retryable = module.True
			case p < rate+0.004:
				e.Outcome, e.Code, e.Unexecuted = contextwire.OutcomeDenied, module.CodeACLDenied, true
			case p < rate+0.008:
				e.Outcome, e.Code = contextwire.OutcomeCancelled, module.CodeExecutionCancelled
			case p < rate+0.012:
				e = refusedInput(e.CallerID, fmt.Sprint("/f", l.r.IntN(4)))
				e.ModuleID, e.At = id, l.at(160)
			case p < rate+0.018:
				e.Attempt = 2
			case p < rate+0.020:
				e.Outcome, e.Code, e.Message, e.Duration = contextwire.OutcomeTimeout, module.CodeModuleTimeout, "exceeded", 30*time.Second
			}
			l.h.add(1, e)
			if e.Code == module.CodeACLDenied {
				e.Type = contextwire.EvidenceACL
				l.h.add(1, e)
			}
		}
		for range 10 + l.r.IntN(30) {
			d := decision(contextwire.OutcomeApproved)
			if l.r.Float64() < 0.2 {
				d.Outcome = contextwire.OutcomeRejected
			}
			d.ModuleID, d.CallerID, d.At = id, fmt.Sprint("person", l.r.IntN(60)), l.at(160)
			l.h.add(1, d)
		}
		for i := range 30 {
			t := attempt(fmt.Sprint(id, i), 1, contextwire.OutcomeOK, "")
			if l.r.Float64() < 0.1 {
				t.Outcome, t.Code = contextwire.OutcomeError, "SMTP"
			}
			t.ModuleID, t.At = id, l.at(160)
			l.h.add(1, t)
		}
	}
}

// troubles puts one trouble of each kind into the week.
func (l *labelled) troubles() {
	id := func(name string) string { return fmt.Sprintf("bad%d.%s", l.r.IntN(1000), name) }
	fails := func(m, node string, n int, code module.Code, hours float64) {
		for range n {
			l.h.add(1, contextwire.Evidence{ModuleID: m, Node: node, At: l.at(hours), Outcome: contextwire.OutcomeError, Code: code, Message: fmt.Sprint("broken pipe ", l.r.IntN(99))})
		}
	}
	works := func(m, node string, n int, hours float64) {
		for range n {
			l.h.add(1, contextwire.Evidence{ModuleID: m, Node: node, At: l.at(hours)})
		}
	}
	m := id("failing")
	fails(m, "n1", 10+l.r.IntN(30), "PIPE", 160)
	works(m, "n1", l.r.IntN(10), 160)
	l.label("module_failure", "entity:lessons/"+m)

	m = id("slow")
	for range 60 + l.r.IntN(60) {
		e := timed(10*time.Second, 10*time.Second, 60*time.Second)
		if l.r.Float64() < 0.7 {
			e = timed(time.Duration(1+l.r.IntN(5))*time.Second, 10*time.Second, 60*time.Second)
		}
		e.ModuleID, e.At = m, l.at(23)
		l.h.add(1, e)
	}
	l.label("timeout_pressure", "host:module-timeout/"+m) // and not most of its calls

	entry := id("entry")
	for range 80 {
		trace := fmt.Sprintf("%032x", l.r.Uint64())
		l.h.add(1, contextwire.Evidence{ModuleID: "mod0.run", TraceID: trace, CallChain: []string{entry, "mod0.run"}, Budget: time.Duration(100+l.r.IntN(1500)) * time.Millisecond, At: l.at(23)})
		l.h.add(1, contextwire.Evidence{ModuleID: entry, TraceID: trace, Budget: 10 * time.Second, At: l.at(23)})
	}
	l.label("deadline_pressure", "host:deadline/"+entry)

	m = id("gone")
	for range 5 {
		l.h.add(1, contextwire.Evidence{ModuleID: m, At: l.at(160), Outcome: contextwire.OutcomeError, Code: module.CodeModuleNotFound, MadeHere: true})
	}
	l.label("unknown_module", "entity:coverage/"+m)

	for range 8 {
		e := denied("intruder.a", "mod1.run")
		e.At = l.at(160)
		l.h.add(1, e)
	}
	l.label("acl_denial", "host:acl/intruder.a")

	m = id("routine")
	for range 25 {
		d := decision(contextwire.OutcomeApproved)
		d.ModuleID, d.At = m, l.at(160)
		l.h.add(1, d)
	}
	l.label("approval_friction", "host:approval/"+m)
	m = id("refused")
	for range 4 {
		d := decision(contextwire.OutcomeRejected)
		d.ModuleID, d.CallerID, d.At = m, "pushy", l.at(160)
		l.h.add(1, d)
	}
	l.label("approval_rejection", "entity:lessons/"+m)

	m = id("job")
	for i := range 20 {
		t := attempt(fmt.Sprint(m, i), 1, contextwire.OutcomeError, "DISK")
		if i%4 == 0 {
			t.Outcome, t.Code = contextwire.OutcomeOK, ""
		}
		t.ModuleID, t.At = m, l.at(160)
		l.h.add(1, t)
	}
	l.label("task_outcome", "host:task/"+m)

	m = id("storm")
	for i := range 90 {
		l.h.add(1, contextwire.Evidence{ModuleID: m, Attempt: 1 + i%3, Call: fmt.Sprintf("storm-%016d", i/3), At: l.at(0.9)})
	}
	l.label("retry_storm", "host:retry/"+m)

	l.h.know((&loop.RunningSnapshot{TaskID: "stuck-1", ModuleID: m, Node: "n1", Started: today.Add(-3 * time.Hour), Progress: today.Add(-2 * time.Hour)}).Record())
	l.h.know((&loop.RunningSnapshot{TaskID: "busy-1", ModuleID: m, Node: "n1", Started: today.Add(-3 * time.Hour), Progress: today.Add(-time.Minute)}).Record())
	l.label("stuck_task", "host:task/stuck-1")

	m = id("shape")
	for range 9 {
		e := refusedInput("old.client", "/amount")
		e.ModuleID, e.At = m, l.at(160)
		l.h.add(1, e)
	}
	l.label("schema_drift", "entity:lessons/"+m)

	for range 3 {
		e := stopped(module.CodeCircularCall, "ring.a", "ring.b", "ring.a")
		e.At = l.at(160)
		l.h.add(1, e)
	}
	l.label("call_graph", "host:callgraph/ring.a")

	l.h.host("fork.m", "1.0.0", "n1", today.Add(-5*time.Hour)).host("fork.m", "1.1.0", "n2", today.Add(-time.Hour))
	l.h.host("rolling.m", "1.0.0", "n1", today.Add(-5*time.Hour)).host("rolling.m", "1.1.0", "n2", today.Add(-2*time.Minute))
	l.label("version_fork", "host:module/fork.m")

	m = id("skewed")
	fails(m, "n9", 25, "DISK", 23)
	works(m, "n9", 25, 23)
	works(m, "n8", 60, 23)
	l.label("node_skew", "host:node/n9")

	l.h.know((&loop.ModuleSnapshot{ModuleID: "sunset.m", Node: "n1", Since: today.Add(-999 * time.Hour), Sunset: today.Add(-99 * time.Hour), Description: "going away"}).Record())
	l.h.add(1, contextwire.Evidence{ModuleID: "sunset.m", At: today.Add(-time.Hour)})
	l.label("stale_setting", "host:module/sunset.m")

	l.h.know((&loop.ModuleSnapshot{ModuleID: "cold.m", Node: "n1", Since: today.Add(-60 * 24 * time.Hour), Description: "nobody calls this"}).Record())
	l.h.add(1, contextwire.Evidence{ModuleID: "mod0.run", At: today.Add(-30*24*time.Hour - time.Hour)})
	l.label("cold_module", "host:module/cold.m")

	twins(&l.h, "resize a picture to a width", "resize a picture to a width", true)
	l.label("duplicate_module", "host:module/twin.m1")

	lessons(&l.h, 9, loop.TypeLesson)
	l.label("lesson_pile", "entity:lessons/pay.charge")
	skill(&l.h, 1, 9)
	l.label("module_failure", "entity:lessons/pay.charge") // which is what the skill was about
	l.label("skill_stall", "entity:skills/refund")
}

// Over labelled weeks, each analyzer that is on by default is right in at least nine
// of ten findings, and finds at least nine of ten troubles.
func TestPrecisionOverLabelledHistories(t *testing.T) {
	right, made, missed, labels := map[string]int{}, map[string]int{}, map[string]int{}, map[string]int{}
	for seed := range uint64(12) {
		l := &labelled{r: rand.New(rand.NewPCG(seed, 7)), wrong: map[string]bool{}}
		l.traffic(12, 120)
		if seed%4 != 3 { // every fourth week nothing is wrong
			l.troubles()
		}
		outcomes := []loop.Outcome{{RecHash: strings.Repeat("cd", 32), Target: "entity:lessons/ok", Verdict: loop.VerdictHeld}}
		if seed%4 != 3 {
			outcomes = append(outcomes, outcome(loop.VerdictRegress)...)
			l.label("outcome_review", "entity:lessons/pay.charge")
		}
		found, err := loop.Analyze(t.Context(), loop.NewMemReader(shuffled(l.h.records, seed)...), today, loop.Query{}, outcomes, loop.DefaultRuns())
		if err != nil {
			t.Fatal(err)
		}
		hit := map[string]bool{}
		for _, f := range found {
			name, _, _ := strings.Cut(f.ID, "/")
			for _, d := range f.Drafts {
				key := name + " " + d.Target
				made[name]++
				if l.wrong[key] {
					right[name]++
					hit[key] = true
				} else {
					t.Logf("seed %d: %s %s: %v", seed, name, d.Target, d.Summary.Args)
				}
			}
		}
		for key := range l.wrong {
			name, _, _ := strings.Cut(key, " ")
			if labels[name]++; !hit[key] {
				missed[name]++
			}
		}
	}
	for _, run := range loop.DefaultRuns() {
		name, _, _ := strings.Cut(run.Analyzer.Manifest().ID, "/")
		if made[name] == 0 || labels[name] == 0 {
			t.Errorf("%s: %d findings over %d troubles", name, made[name], labels[name])
			continue
		}
		precision := float64(right[name]) / float64(made[name])
		recall := 1 - float64(missed[name])/float64(labels[name])
		t.Logf("%-26s precision %.2f of %d, recall %.2f of %d", name, precision, made[name], recall, labels[name])
		if precision < 0.90 || recall < 0.90 {
			t.Errorf("%s: precision %.2f, recall %.2f, want 0.90", name, precision, recall)
		}
	}
}
