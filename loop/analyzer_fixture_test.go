package loop_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/loop"
	"github.com/apbus/apbus/module"
)

// fixture is one history and what one analyzer says about it.
type fixture struct {
	analyzer, name string
	build          func(h *history)
	outcomes       []loop.Outcome
	want           []string
}

func denied(caller, id string) contextwire.Evidence {
	return contextwire.Evidence{Type: contextwire.EvidenceACL, ModuleID: id, CallerID: caller, Outcome: contextwire.OutcomeDenied, Code: module.CodeACLDenied}
}

func decision(outcome string) contextwire.Evidence {
	return contextwire.Evidence{Type: contextwire.EvidenceApproval, ModuleID: "pay.refund", CallerID: "shop", Outcome: outcome, By: "bob"}
}

func attempt(task string, n int, outcome string, code module.Code) contextwire.Evidence {
	return contextwire.Evidence{Type: contextwire.EvidenceTask, ModuleID: "mail.send", TaskID: task, TaskAttempt: n, Outcome: outcome, Code: code}
}

func tasks(h *history, failed, ok int) {
	for i := range failed + ok {
		if i < failed {
			h.add(1, attempt(fmt.Sprint("t", i), 1, contextwire.OutcomeError, "SMTP"))
		} else {
			h.add(1, attempt(fmt.Sprint("t", i), 1, contextwire.OutcomeOK, ""))
		}
	}
}

func timed(took, limit, budget time.Duration) contextwire.Evidence {
	e := contextwire.Evidence{Duration: took, Timeout: limit, Budget: budget}
	if took >= limit {
		e.Outcome, e.Code, e.Message = contextwire.OutcomeTimeout, module.CodeModuleTimeout, "module exceeded its time"
	}
	return e
}

// hurried makes n trees of two calls; the inner ones begin with so much of 10 s.
func hurried(h *history, n int, left time.Duration) {
	for range n {
		trace := fmt.Sprintf("%032d", h.n)
		h.add(1, contextwire.Evidence{ModuleID: "inventory.reserve", TraceID: trace, CallChain: []string{"orders.place", "inventory.reserve"}, Budget: left, Duration: time.Second})
		h.add(1, contextwire.Evidence{ModuleID: "orders.place", TraceID: trace, Budget: 10 * time.Second})
	}
}

func refusedInput(caller, field string) contextwire.Evidence {
	return contextwire.Evidence{CallerID: caller, Outcome: contextwire.OutcomeError, Code: module.CodeSchemaValidation, Side: contextwire.SideInput, Fields: []string{field}, Message: "inputs do not fit"}
}

func stopped(code module.Code, chain ...string) contextwire.Evidence {
	return contextwire.Evidence{ModuleID: chain[len(chain)-1], CallChain: chain, Outcome: contextwire.OutcomeError, Code: code, Message: "stopped"}
}

func skewed(h *history, failedHere, here, failedThere, there int) {
	for node, n := range map[string][2]int{"n1": {failedHere, here}, "n2": {failedThere, there}} {
		h.add(n[0], contextwire.Evidence{Node: node, Outcome: contextwire.OutcomeError, Code: "DISK", Message: "disk is full"})
		h.add(n[1]-n[0], contextwire.Evidence{Node: node})
	}
}

func sunset(h *history, at time.Time, called time.Time) {
	m := loop.ModuleSnapshot{ModuleID: "pay.charge", Node: "n1", Since: today.Add(-300 * 24 * time.Hour), Deprecated: true, Sunset: at}
	h.know(m.Record()).add(1, contextwire.Evidence{At: called})
}

func cold(h *history, since, oldest time.Duration, change func(*loop.ModuleSnapshot)) {
	m := loop.ModuleSnapshot{ModuleID: "old.thing", Node: "n1", Since: today.Add(-since)}
	if change != nil {
		change(&m)
	}
	h.know(m.Record()).add(1, contextwire.Evidence{At: today.Add(-oldest)})
}

func twins(h *history, a, b string, same bool) {
	for i, d := range []string{a, b} {
		m := loop.ModuleSnapshot{ModuleID: fmt.Sprint("twin.m", i), Description: d, Node: "n1", Since: today, InputSchema: map[string]any{"type": "object"}}
		if !same && i == 1 {
			m.InputSchema = map[string]any{"type": "array"}
		}
		h.know(m.Record())
	}
}

func lessons(h *history, n int, typ loop.Type) {
	for i := range n {
		h.know(knowledge(typ, i, map[string]any{"subject": "pay.charge", "relation": "lesson", "object": fmt.Sprint("rule ", i)}))
	}
}

func skill(h *history, ok, failed int) {
	s := knowledge(loop.TypeSkill, 1, map[string]any{"name": "refund"})
	h.know(s)
	h.add(ok, contextwire.Evidence{Guidance: []string{s.Hash}})
	h.add(failed, contextwire.Evidence{Guidance: []string{s.Hash}, Outcome: contextwire.OutcomeError, Code: "X", Message: "x"})
}

func running(h *history, started, progress time.Duration) {
	r := loop.RunningSnapshot{TaskID: "t-1", ModuleID: "mail.send", Node: "n2", Started: today.Add(-started), Progress: today.Add(-progress)}
	h.know(r.Record())
}

func outcome(verdict string) []loop.Outcome {
	return []loop.Outcome{{RecHash: strings.Repeat("ab", 32), Target: "entity:lessons/pay.charge", Verdict: verdict, Metric: "call_error_rate", Baseline: 0.2, Current: 0.41, N: 50}}
}

const hour = time.Hour

// At, just below and above every threshold of every analyzer (loop specification,
// section 5.2).
func fixtures() []fixture {
	const declined = "card 4711 declined by /usr/bank"
	return []fixture{
		{"module_failure", "at the count", func(h *history) { h.fail(5, "PAY_NO", declined) }, nil,
			[]string{"medium entity:lessons/pay.charge | Module pay.charge failed 5 times (100 %) with PAY_NO: card # declined by <path>"}},
		{"module_failure", "below the count", func(h *history) { h.fail(4, "PAY_NO", declined) }, nil, nil},
		{"module_failure", "at the rate", func(h *history) { h.fail(6, "PAY_NO", declined).add(9, contextwire.Evidence{}) }, nil,
			[]string{"low entity:lessons/pay.charge | Module pay.charge failed 6 times (40 %) with PAY_NO: card # declined by <path>"}},
		{"module_failure", "below the rate", func(h *history) { h.fail(6, "PAY_NO", declined).add(10, contextwire.Evidence{}) }, nil, nil},
		{"module_failure", "at the absolute count", func(h *history) { h.fail(50, "PAY_NO", declined).add(950, contextwire.Evidence{}) }, nil,
			[]string{"low entity:lessons/pay.charge | Module pay.charge failed 50 times (5 %) with PAY_NO: card # declined by <path>"}},
		{"module_failure", "below the absolute count", func(h *history) { h.fail(49, "PAY_NO", declined).add(950, contextwire.Evidence{}) }, nil, nil},
		{"module_failure", "severe", func(h *history) { h.fail(14, "PAY_NO", declined).add(6, contextwire.Evidence{}) }, nil,
			[]string{"high entity:lessons/pay.charge | Module pay.charge failed 14 times (70 %) with PAY_NO: card # declined by <path>"}},
		{"module_failure", "too old", func(h *history) {
			h.add(20, contextwire.Evidence{At: today.Add(-8 * 24 * hour), Outcome: contextwire.OutcomeError, Code: "X", Message: "x"})
		}, nil, nil},
		{"module_failure", "the caller's fault", func(h *history) {
			for _, c := range []module.Code{module.CodeACLDenied, module.CodeApprovalDenied, module.CodeModuleNotFound, module.CodeModuleDisabled, module.CodeInvalidInput} {
				h.fail(60, c, "no")
			}
			h.add(60, refusedInput("shop", "/a"))
			h.add(60, contextwire.Evidence{Outcome: contextwire.OutcomeCancelled, Code: module.CodeExecutionCancelled, Message: "gone"})
		}, nil, nil},
		{"module_failure", "handed on, or lost on the way", func(h *history) {
			h.add(60, contextwire.Evidence{Outcome: contextwire.OutcomeError, Code: "X", Message: "x", Origin: "bank.debit"})
			h.add(60, contextwire.Evidence{Outcome: contextwire.OutcomeError, Code: module.CodeBusNodeLost, Message: "x", MadeHere: true})
		}, nil, nil},

		{"timeout_pressure", "at the share", func(h *history) {
			h.add(5, timed(10*time.Second, 10*time.Second, 0)).add(95, timed(time.Second, 10*time.Second, 0))
		}, nil, []string{"medium host:module-timeout/pay.charge | Module pay.charge: 5 % of 100 calls ended at its limit of 10s; p50 1.003s, p95 1.003s, p99 9.987s"}},
		{"timeout_pressure", "below the share", func(h *history) {
			h.add(4, timed(10*time.Second, 10*time.Second, 0)).add(96, timed(time.Second, 10*time.Second, 0))
		}, nil, nil},
		{"timeout_pressure", "too few calls", func(h *history) { h.add(49, timed(10*time.Second, 10*time.Second, 0)) }, nil, nil},
		{"timeout_pressure", "severe", func(h *history) {
			h.add(20, timed(10*time.Second, 10*time.Second, 0)).add(80, timed(time.Second, 10*time.Second, 0))
		}, nil, []string{"high host:module-timeout/pay.charge | Module pay.charge: 20 % of 100 calls ended at its limit of 10s; p50 1.003s, p95 9.987s, p99 9.987s"}},
		{"timeout_pressure", "slow ones near the limit", func(h *history) {
			h.add(10, timed(8500*time.Millisecond, 10*time.Second, 0)).add(90, timed(time.Second, 10*time.Second, 0))
		}, nil, []string{"medium host:module-timeout/pay.charge | Module pay.charge: 0 % of 100 calls ended at its limit of 10s; p50 1.003s, p95 8.517s, p99 8.517s"}},
		{"timeout_pressure", "slow ones not so near", func(h *history) {
			h.add(10, timed(7500*time.Millisecond, 10*time.Second, 0)).add(90, timed(time.Second, 10*time.Second, 0))
		}, nil, nil},
		{"timeout_pressure", "the caller had no time", func(h *history) {
			e := timed(10*time.Second, 10*time.Second, 0)
			e.Duration, e.Budget = time.Second, time.Second
			h.add(50, e).add(50, timed(time.Second, 10*time.Second, 0))
		}, nil, nil},

		{"deadline_pressure", "at the count", func(h *history) { hurried(h, 30, 900*time.Millisecond) }, nil,
			[]string{"medium host:deadline/orders.place | 30 nested calls under orders.place (100 %) began with less than 10 % of their caller's time; slowest hops: inventory.reserve 1s"}},
		{"deadline_pressure", "below the count", func(h *history) { hurried(h, 29, 900*time.Millisecond) }, nil, nil},
		{"deadline_pressure", "enough time left", func(h *history) { hurried(h, 100, time.Second) }, nil, nil},
		{"deadline_pressure", "at the share", func(h *history) { hurried(h, 30, 900*time.Millisecond); hurried(h, 90, 5*time.Second) }, nil,
			[]string{"medium host:deadline/orders.place | 30 nested calls under orders.place (25 %) began with less than 10 % of their caller's time; slowest hops: inventory.reserve 1s"}},
		{"deadline_pressure", "below the share", func(h *history) { hurried(h, 30, 900*time.Millisecond); hurried(h, 91, 5*time.Second) }, nil, nil},

		{"unknown_module", "at the count, with a hint", func(h *history) {
			h.host("pay.charge", "1.0.0", "n1", today).host("far.away", "1.0.0", "n1", today)
			h.add(3, contextwire.Evidence{ModuleID: "pay.chrage", Outcome: contextwire.OutcomeError, Code: module.CodeModuleNotFound, MadeHere: true})
		}, nil, []string{"medium entity:coverage/pay.chrage | Module pay.chrage was called 3 times and does not exist; near it: pay.charge"}},
		{"unknown_module", "without a hint", func(h *history) {
			h.add(4, contextwire.Evidence{ModuleID: "no.such", Outcome: contextwire.OutcomeError, Code: module.CodeModuleNotFound}).add(1, contextwire.Evidence{ModuleID: "no.such"})
		}, nil, []string{"medium entity:coverage/no.such | Module no.such was called 4 times and does not exist"}},
		{"unknown_module", "below the count", func(h *history) {
			h.add(2, contextwire.Evidence{ModuleID: "no.such", Outcome: contextwire.OutcomeError, Code: module.CodeModuleNotFound})
		}, nil, nil},
		{"unknown_module", "below the share", func(h *history) {
			h.add(7, contextwire.Evidence{ModuleID: "no.such", Outcome: contextwire.OutcomeError, Code: module.CodeModuleNotFound}).add(2, contextwire.Evidence{ModuleID: "no.such"})
		}, nil, nil},
		{"unknown_module", "it exists by now", func(h *history) {
			h.host("no.such", "1.0.0", "n1", today).add(9, contextwire.Evidence{ModuleID: "no.such", Outcome: contextwire.OutcomeError, Code: module.CodeModuleNotFound})
		}, nil, nil},

		{"acl_denial", "at the count", func(h *history) { h.add(5, denied("shop", "pay.charge")) }, nil,
			[]string{"medium host:acl/shop | shop was refused 5 times and never let in: pay.charge"}},
		{"acl_denial", "below the count", func(h *history) { h.add(4, denied("shop", "pay.charge")) }, nil, nil},
		{"acl_denial", "let in once", func(h *history) {
			h.add(9, denied("shop", "pay.charge")).add(1, contextwire.Evidence{CallerID: "shop"})
		}, nil, nil},
		{"acl_denial", "a probe", func(h *history) {
			for i := range 20 {
				e := denied("bad", fmt.Sprint("m.x", i))
				e.At = today.Add(-hour + time.Duration(i)*30*time.Second)
				h.add(1, e)
			}
		}, nil, []string{"high host:acl/bad | bad was refused by 20 modules within 10m0s, beginning 2026-05-20T11:00:00Z"}},
		{"acl_denial", "a slow walk", func(h *history) {
			for i := range 20 {
				e := denied("bad", fmt.Sprint("m.x", i))
				e.At = today.Add(-hour + time.Duration(i)*32*time.Second)
				h.add(1, e)
			}
		}, nil, nil},
		{"acl_denial", "19 modules at once", func(h *history) {
			for i := range 19 {
				h.add(1, denied("bad", fmt.Sprint("m.x", i)))
			}
		}, nil, nil},

		{"approval_friction", "always approved", func(h *history) { h.add(16, decision(contextwire.OutcomeApproved)) }, nil,
			[]string{"low host:approval/pay.refund | Requests for pay.refund are approved in 100 % of 16 decisions"}},
		{"approval_friction", "nearly always approved", func(h *history) {
			h.add(38, decision(contextwire.OutcomeApproved)).add(2, decision(contextwire.OutcomeRejected))
		}, nil, []string{"low host:approval/pay.refund | Requests for pay.refund are approved in 95 % of 40 decisions"}},
		{"approval_friction", "not always", func(h *history) {
			h.add(37, decision(contextwire.OutcomeApproved)).add(2, decision(contextwire.OutcomeRejected))
		}, nil, nil},
		{"approval_friction", "not surely", func(h *history) { h.add(15, decision(contextwire.OutcomeApproved)) }, nil, nil},
		{"approval_friction", "late", func(h *history) {
			h.add(1, decision(contextwire.OutcomeTimeout)).add(4, decision(contextwire.OutcomeApproved))
		}, nil,
			[]string{"medium host:approval/pay.refund | Requests for pay.refund ran out undecided in 20 % of 5 cases"}},
		{"approval_friction", "late as the call shows", func(h *history) {
			h.add(5, contextwire.Evidence{ModuleID: "pay.refund", Outcome: contextwire.OutcomeTimeout, Code: module.CodeApprovalTimeout})
		}, nil, []string{"medium host:approval/pay.refund | Requests for pay.refund ran out undecided in 100 % of 5 cases"}},
		{"approval_friction", "rarely late", func(h *history) {
			h.add(1, decision(contextwire.OutcomeTimeout)).add(3, decision(contextwire.OutcomeApproved))
		}, nil, nil},

		{"approval_rejection", "at the count", func(h *history) { h.add(3, decision(contextwire.OutcomeRejected)) }, nil,
			[]string{"medium entity:lessons/pay.refund | Requests for pay.refund were rejected 3 times, asked by shop"}},
		{"approval_rejection", "below the count", func(h *history) { h.add(2, decision(contextwire.OutcomeRejected)) }, nil, nil},
		{"approval_rejection", "at the share", func(h *history) {
			h.add(3, decision(contextwire.OutcomeRejected)).add(2, decision(contextwire.OutcomeApproved))
		}, nil,
			[]string{"medium entity:lessons/pay.refund | Requests for pay.refund were rejected 3 times, asked by shop"}},
		{"approval_rejection", "below the share", func(h *history) {
			h.add(4, decision(contextwire.OutcomeRejected)).add(3, decision(contextwire.OutcomeApproved))
		}, nil, nil},
		{"approval_rejection", "of two callers", func(h *history) {
			other := decision(contextwire.OutcomeRejected)
			other.CallerID = "web"
			h.add(2, decision(contextwire.OutcomeRejected)).add(2, other)
		}, nil, nil},

		{"task_outcome", "at the count", func(h *history) { tasks(h, 5, 0) }, nil,
			[]string{"high host:task/mail.send | 5 of 5 tasks of mail.send failed (100 %), most with SMTP"}},
		{"task_outcome", "below the count", func(h *history) { tasks(h, 4, 0) }, nil, nil},
		{"task_outcome", "at the share", func(h *history) { tasks(h, 4, 4) }, nil,
			[]string{"high host:task/mail.send | 4 of 8 tasks of mail.send failed (50 %), most with SMTP"}},
		{"task_outcome", "below the share", func(h *history) { tasks(h, 4, 5) }, nil, nil},
		{"task_outcome", "a later attempt succeeded", func(h *history) {
			for i := range 9 {
				h.add(1, attempt(fmt.Sprint("t", i), 2, contextwire.OutcomeOK, ""))
				h.add(1, attempt(fmt.Sprint("t", i), 1, contextwire.OutcomeError, "SMTP"))
			}
		}, nil, nil},
		{"task_outcome", "cancelled ones do not count", func(h *history) {
			tasks(h, 4, 0)
			for i := range 9 {
				h.add(1, attempt(fmt.Sprint("c", i), 1, contextwire.OutcomeCancelled, module.CodeExecutionCancelled))
			}
		}, nil, nil},

		{"retry_storm", "at the ratio", func(h *history) {
			h.add(20, contextwire.Evidence{At: today.Add(-time.Minute), Attempt: 1}).add(20, contextwire.Evidence{At: today.Add(-time.Minute), Attempt: 2})
		}, nil, []string{"high host:retry/pay.charge | Module pay.charge had 20 retries for 20 first attempts"}},
		{"retry_storm", "below the ratio", func(h *history) {
			h.add(20, contextwire.Evidence{At: today.Add(-time.Minute), Attempt: 1}).add(19, contextwire.Evidence{At: today.Add(-time.Minute), Attempt: 2})
		}, nil, nil},
		{"retry_storm", "the calls of attempts, which their own records tell of", func(h *history) {
			h.add(20, contextwire.Evidence{At: today.Add(-time.Minute), Attempt: 1}).add(20, contextwire.Evidence{At: today.Add(-time.Minute), Attempt: 2, TaskID: "t1", TaskAttempt: 2})
		}, nil, nil},
		{"retry_storm", "few first attempts", func(h *history) {
			h.add(19, contextwire.Evidence{At: today.Add(-time.Minute), Attempt: 1}).add(60, contextwire.Evidence{At: today.Add(-time.Minute), Attempt: 2})
		}, nil, nil},
		{"retry_storm", "useless", func(h *history) { useless(h, 3) }, nil, []string{"high host:retry/pay.charge | Failures of pay.charge that cannot be retried were retried 3 times: BAD"}},
		{"retry_storm", "hardly useless", func(h *history) { useless(h, 2) }, nil, nil},

		{"stuck_task", "stuck", func(h *history) { running(h, 16*time.Minute, 5*time.Minute) }, nil,
			[]string{"medium host:task/t-1 | Task t-1 of mail.send has run for 16m0s on n2, without progress for 5m0s; p95 of its kind is 0s"}},
		{"stuck_task", "not long", func(h *history) { running(h, 15*time.Minute, 10*time.Minute) }, nil, nil},
		{"stuck_task", "making progress", func(h *history) { running(h, hour, 5*time.Minute-time.Second) }, nil, nil},
		{"stuck_task", "its kind is slow", func(h *history) {
			running(h, 16*time.Minute, 10*time.Minute)
			h.add(20, contextwire.Evidence{Type: contextwire.EvidenceTask, ModuleID: "mail.send", TaskID: "x", Duration: 6 * time.Minute})
		}, nil, nil},

		{"schema_drift", "at the count", func(h *history) { h.add(5, refusedInput("shop", "/items/3/sku")) }, nil,
			[]string{"medium entity:lessons/pay.charge | Inputs for pay.charge from shop fail at /items/*/sku, 5 times"}},
		{"schema_drift", "below the count", func(h *history) { h.add(4, refusedInput("shop", "/a")) }, nil, nil},
		{"schema_drift", "at the share", func(h *history) { h.add(6, refusedInput("shop", "/a")).add(14, contextwire.Evidence{CallerID: "shop"}) }, nil,
			[]string{"medium entity:lessons/pay.charge | Inputs for pay.charge from shop fail at /a, 6 times"}},
		{"schema_drift", "below the share", func(h *history) { h.add(6, refusedInput("shop", "/a")).add(15, contextwire.Evidence{CallerID: "shop"}) }, nil, nil},
		{"schema_drift", "another caller is fine", func(h *history) { h.add(6, refusedInput("shop", "/a")).add(500, contextwire.Evidence{CallerID: "web"}) }, nil,
			[]string{"medium entity:lessons/pay.charge | Inputs for pay.charge from shop fail at /a, 6 times"}},
		{"schema_drift", "output", func(h *history) {
			e := refusedInput("shop", "")
			e.Side = contextwire.SideOutput
			h.add(3, e)
		}, nil, []string{"high entity:lessons/pay.charge | Module pay.charge gave 3 outputs that do not fit its schema, at (the whole)"}},
		{"schema_drift", "output, hardly", func(h *history) {
			e := refusedInput("shop", "")
			e.Side = contextwire.SideOutput
			h.add(2, e)
		}, nil, nil},

		{"call_graph", "a circle", func(h *history) {
			h.add(1, stopped(module.CodeCircularCall, "a.x", "b.y", "a.x")).add(1, stopped(module.CodeCircularCall, "a.x", "b.y", "a.x", "b.y", "a.x"))
		}, nil, []string{"medium host:callgraph/a.x | Calls under a.x were stopped 2 times with CIRCULAR_CALL: a.x → b.y"}},
		{"call_graph", "once", func(h *history) { h.add(1, stopped(module.CodeCircularCall, "a.x", "b.y", "a.x")) }, nil, nil},
		{"call_graph", "two different ones", func(h *history) {
			h.add(1, stopped(module.CodeCallDepthExceeded, "a.x", "b.y")).add(1, stopped(module.CodeCallDepthExceeded, "a.x", "c.z"))
		}, nil, nil},
		{"call_graph", "frequent", func(h *history) {
			e := stopped(module.CodeCallFrequencyExceeded, "a.x", "b.y")
			e.At = today.Add(-time.Minute)
			h.add(10, e)
		}, nil, []string{"medium host:callgraph/a.x | Calls under a.x were stopped 10 times within 1h0m0s for being too many"}},
		{"call_graph", "not so frequent", func(h *history) {
			e := stopped(module.CodeCallFrequencyExceeded, "a.x", "b.y")
			e.At = today.Add(-time.Minute)
			h.add(9, e)
			e.At = today.Add(-61 * time.Minute)
			h.add(9, e)
		}, nil, nil},

		{"version_fork", "old enough", func(h *history) {
			h.host("m.x", "1.0.0", "n1", today.Add(-hour)).host("m.x", "2.0.0", "n2", today.Add(-601*time.Second)).host("m.x", "1.0.0", "n3", today.Add(-time.Minute))
		}, nil, []string{"high host:module/m.x | Module m.x is hosted in 2 forms for 10m1s: 1.0.0 on n1 n3, 2.0.0 on n2"}},
		{"version_fork", "a deployment", func(h *history) {
			h.host("m.x", "1.0.0", "n1", today.Add(-hour)).host("m.x", "2.0.0", "n2", today.Add(-10*time.Minute))
		}, nil, nil},
		{"version_fork", "one form", func(h *history) {
			h.host("m.x", "1.0.0", "n1", today.Add(-hour)).host("m.x", "1.0.0", "n2", today.Add(-hour))
		}, nil, nil},

		{"node_skew", "skewed", func(h *history) { skewed(h, 15, 50, 5, 50) }, nil, nil},
		{"node_skew", "more skewed", func(h *history) { skewed(h, 20, 50, 2, 50) }, nil, []string{"medium host:node/n1 | Node n1 fails more than the others: pay.charge"}},
		{"node_skew", "at the calls", func(h *history) { skewed(h, 15, 20, 0, 20) }, nil, []string{"medium host:node/n1 | Node n1 fails more than the others: pay.charge"}},
		{"node_skew", "below the calls", func(h *history) { skewed(h, 15, 20, 0, 19) }, nil, nil},
		{"node_skew", "both fail", func(h *history) { skewed(h, 30, 100, 15, 100) }, nil, nil},
		{"node_skew", "few failures", func(h *history) { skewed(h, 4, 20, 0, 1000) }, nil, nil},

		{"stale_setting", "called after its sunset", func(h *history) { sunset(h, today.Add(-5*24*hour), today.Add(-hour)) }, nil,
			[]string{"low host:module/pay.charge | Module pay.charge was to be gone by 2026-05-15T12:00:00Z and was called since, last at 2026-05-20T11:00:00Z"}},
		{"stale_setting", "long after", func(h *history) { sunset(h, today.Add(-31*24*hour), today.Add(-hour)) }, nil,
			[]string{"medium host:module/pay.charge | Module pay.charge was to be gone by 2026-04-19T12:00:00Z and was called since, last at 2026-05-20T11:00:00Z"}},
		{"stale_setting", "called before", func(h *history) { sunset(h, today.Add(-hour), today.Add(-2*hour)) }, nil, nil},
		{"stale_setting", "sunset to come", func(h *history) { sunset(h, today.Add(hour), today.Add(-hour)) }, nil, nil},
		{"stale_setting", "a lesson past its time", func(h *history) {
			r := knowledge(loop.TypeLesson, 1, map[string]any{"subject": "pay.charge"})
			r.ValidToMS = today.Add(-40 * 24 * hour).UnixMilli()
			h.know(r)
		}, nil, []string{"medium grain:" + knowledge(loop.TypeLesson, 1, nil).Hash + " | A lesson about pay.charge was valid until 2026-04-10T12:00:00Z"}},
		{"stale_setting", "a lesson in its time", func(h *history) {
			r := knowledge(loop.TypeLesson, 1, map[string]any{"subject": "pay.charge"})
			r.ValidToMS = today.UnixMilli()
			h.know(r)
		}, nil, nil},

		{"cold_module", "cold", func(h *history) { cold(h, 30*24*hour, 30*24*hour, nil) }, nil,
			[]string{"low host:module/old.thing | Module old.thing is registered since 2026-04-20T12:00:00Z and was not called for 30 days"}},
		{"cold_module", "young", func(h *history) { cold(h, 30*24*hour-time.Second, 30*24*hour, nil) }, nil, nil},
		{"cold_module", "evidence does not go back so far", func(h *history) { cold(h, 60*24*hour, 30*24*hour-time.Second, nil) }, nil, nil},
		{"cold_module", "called", func(h *history) {
			cold(h, 60*24*hour, 30*24*hour+hour, nil)
			h.add(1, contextwire.Evidence{ModuleID: "old.thing", Outcome: contextwire.OutcomeError, Code: "X"})
		}, nil, nil},
		{"cold_module", "a gate", func(h *history) {
			cold(h, 60*24*hour, 30*24*hour+hour, func(m *loop.ModuleSnapshot) { m.ApprovalGated = true })
		}, nil, nil},
		{"cold_module", "of the system", func(h *history) {
			cold(h, 60*24*hour, 30*24*hour+hour, func(m *loop.ModuleSnapshot) { m.System = true })
		}, nil, nil},

		{"duplicate_module", "equal", func(h *history) {
			twins(h, "Add two numbers, giving their sum.", "add two numbers giving their sum", true)
		}, nil,
			[]string{"info host:module/twin.m1 | Module twin.m1 has the schemas and the description of twin.m0"}},
		{"duplicate_module", "nine of ten words", func(h *history) { twins(h, "a b c d e f g h i", "a b c d e f g h i j", true) }, nil,
			[]string{"info host:module/twin.m1 | Module twin.m1 has the schemas and the description of twin.m0"}},
		{"duplicate_module", "eight of nine words", func(h *history) { twins(h, "a b c d e f g h", "a b c d e f g h i", true) }, nil, nil},
		{"duplicate_module", "other schemas", func(h *history) { twins(h, "Add two numbers", "Add two numbers", false) }, nil, nil},

		{"lesson_pile", "above", func(h *history) { lessons(h, 9, loop.TypeLesson) }, nil, []string{"medium entity:lessons/pay.charge | 9 lessons are live about pay.charge"}},
		{"lesson_pile", "as facts", func(h *history) { lessons(h, 9, loop.TypeFact) }, nil, []string{"medium entity:lessons/pay.charge | 9 lessons are live about pay.charge"}},
		{"lesson_pile", "at the limit", func(h *history) { lessons(h, 8, loop.TypeLesson) }, nil, nil},

		{"skill_stall", "at both", func(h *history) { skill(h, 2, 3) }, nil, []string{"medium entity:skills/refund | Of 5 calls while the skill refund was in force, 40 % succeeded"}},
		{"skill_stall", "below the uses", func(h *history) { skill(h, 1, 3) }, nil, nil},
		{"skill_stall", "above the success", func(h *history) { skill(h, 3, 4) }, nil, nil},

		{"outcome_review", "regressed", func(*history) {}, outcome(loop.VerdictRegress),
			[]string{"high entity:lessons/pay.charge | After the recommendation abababababab was applied, call_error_rate went from 0.2 to 0.41 over 50 measured"}},
		{"outcome_review", "drifted", func(*history) {}, outcome(loop.VerdictDrifted),
			[]string{"high entity:lessons/pay.charge | What the applied recommendation abababababab rests on is no longer so"}},
		{"outcome_review", "costlier", func(*history) {}, outcome(loop.VerdictCostlier),
			[]string{"medium entity:lessons/pay.charge | After the recommendation abababababab was applied, call_error_rate held and the cost rose"}},
		{"outcome_review", "held", func(*history) {}, outcome(loop.VerdictHeld), nil},
	}
}

// useless makes n calls that were tried again after a failure that cannot be retried.
func useless(h *history, n int) {
	for i := range n {
		e := contextwire.Evidence{At: today.Add(-time.Minute), Call: fmt.Sprintf("call-%016d", i), Attempt: 1, Outcome: contextwire.OutcomeError, Code: "BAD", Message: "no", Retryable: module.False}
		h.add(1, e)
		e.Attempt, e.Outcome, e.Code, e.Retryable = 2, contextwire.OutcomeOK, "", module.Unset
		h.add(1, e)
	}
	// A first failure that may be retried, and a last one that may not, is as it should be.
	for i := range 9 {
		e := contextwire.Evidence{At: today.Add(-time.Minute), Call: fmt.Sprintf("fine-%016d", i), Attempt: 1, Outcome: contextwire.OutcomeError, Code: "BUSY", Message: "no", Retryable: module.True}
		h.add(1, e)
		e.Attempt, e.Code, e.Retryable = 2, "BAD", module.False
		h.add(1, e)
	}
}

func TestAnalyzers(t *testing.T) {
	tested := map[string]int{}
	for _, f := range fixtures() {
		tested[f.analyzer]++
		t.Run(f.analyzer+"/"+f.name, func(t *testing.T) {
			h := &history{}
			f.build(h)
			got, drafts := findings(t, f.analyzer, f.outcomes, h.records)
			if diff := cmp.Diff(f.want, got); diff != "" {
				t.Fatalf("findings (-want +got):\n%s", diff)
			}
			known := map[string]bool{}
			for _, r := range h.records {
				known[r.Hash] = true
			}
			for _, d := range drafts {
				if len(f.outcomes) == 0 && len(d.Evidence) == 0 || len(d.Evidence) > loop.MaxDraftEvidence {
					t.Errorf("%s cites %d records", d.Target, len(d.Evidence))
				}
				for _, hash := range d.Evidence {
					if !known[hash] {
						t.Errorf("%s cites %s, which nobody recorded", d.Target, hash)
					}
				}
				if d.Confidence <= 0 || d.Confidence > 1 || d.Importance <= 0 || d.Importance > 1 {
					t.Errorf("%s: confidence %v, importance %v", d.Target, d.Confidence, d.Importance)
				}
			}
			for seed := range uint64(3) {
				_, again := findings(t, f.analyzer, f.outcomes, shuffled(h.records, seed))
				if diff := cmp.Diff(drafts, again); diff != "" {
					t.Errorf("in another order (-first +now):\n%s", diff)
				}
			}
		})
	}
	for _, a := range loop.Builtin() {
		id, _, _ := strings.Cut(strings.TrimPrefix(a.Manifest().ID, "exec."), "/")
		if tested[id] < 3 {
			t.Errorf("analyzer %s has %d fixtures, want at least one at, one below and one above", id, tested[id])
		}
	}
}
