package tasktest

import (
	"context"
	"encoding/json"
	"fmt"
	"testing/synctest"
	"time"

	"github.com/apbus/apbus/module"
	"github.com/apbus/apbus/task"
)

// grant is one as a node sees it.
type grant struct {
	task.Grant
	until time.Time // of its lease, by its own clock
	begun bool
	over  bool // it has reported, or was told that it is lost
	ended task.Status
}

// known is what the trace knows of one task.
type known struct {
	id, module string
	grants     []*grant
	effects    int
	child      bool        // another task submitted it
	cancelled  bool        // a cancel was accepted
	terminal   task.Status // as it was observed
	at         task.Stamp
}

// model judges what it sees.
type model struct {
	TraceClient
	stage TraceStage
	tasks []*known
	old   []Deposed
	wrong string
}

func (m *model) complain(format string, args ...any) {
	if m.wrong == "" {
		m.wrong = fmt.Sprintf(format, args...)
	}
}

// pick returns one of the tasks.
func (m *model) pick(n int) *known {
	if len(m.tasks) == 0 {
		return nil
	}
	return m.tasks[n%len(m.tasks)]
}

// live returns one of the grants that a node believes in.
func (m *model) live(n int) (*known, *grant) {
	var ks []*known
	var hs []*grant
	for _, k := range m.tasks {
		for _, h := range k.grants {
			if !h.over && time.Now().Before(h.until) {
				ks, hs = append(ks, k), append(hs, h)
			}
		}
	}
	if len(hs) == 0 {
		return nil, nil
	}
	return ks[n%len(ks)], hs[n%len(hs)]
}

// lost judges a refusal: the only good one is that the lease is lost, and a node that
// believes in its lease may only lose it to time, a cancel or another grant.
func (m *model) lost(k *known, h *grant, err error) {
	h.over = true
	if e := module.AsError(err); e == nil || e.Code != module.CodeTaskLeaseLost {
		m.complain("%s of %s: %v", k.id, h.ModuleID, err)
	}
}

// begin is the moment in which a module has its effect.
func (m *model) begin(k *known, h *grant) {
	if h.begun {
		return
	}
	if k.terminal != "" {
		m.complain("an attempt of %s begins after it was seen %s", k.id, k.terminal)
	}
	for _, o := range k.grants {
		if o != h && !o.over && o.begun && time.Now().Before(o.until) && k.module == traceEffect {
			m.complain("attempt %d of %s begins while attempt %d still owns it", h.Attempt, k.id, o.Attempt)
		}
		if o != h && o.Epoch == h.Epoch {
			m.complain("epoch %d was given twice", h.Epoch)
		}
	}
	h.begun = true
	k.effects++
}

func (m *model) do(s Step) {
	ctx := context.Background()
	switch s.Kind {
	case "submit":
		m.doSubmit(s)
	case "claim":
		node := fmt.Sprintf("n%d", s.A%3)
		sent := time.Now()
		a, err := m.Claim(ctx, task.ClaimRequest{Node: node, Boot: "1", Modules: []string{traceSafe, traceEffect}, Slots: 1 + s.B%3})
		if err != nil {
			m.complain("claim: %v", err)
		}
		for _, g := range a.Grants {
			k := m.byID(g.TaskID)
			if k == nil {
				m.complain("a grant of a task nobody submitted: %+v", g)
				return
			}
			h := &grant{Grant: g, until: sent.Add(time.Duration(g.LeaseMS) * time.Millisecond)}
			k.grants = append(k.grants, h)
			if k.terminal != "" {
				m.complain("%s is granted after it was seen %s", k.id, k.terminal)
			}
			if !g.Confirm {
				m.begin(k, h)
			}
		}
	case "ghost": // a claim whose answer is lost
		_, err := m.Claim(ctx, task.ClaimRequest{Node: "ghost", Modules: []string{traceSafe, traceEffect}, Slots: 1})
		if err != nil {
			m.complain("claim: %v", err)
		}
	case "start", "renew":
		k, h := m.live(s.A)
		if h == nil {
			return
		}
		sent := time.Now()
		ask := func() (task.LeaseAnswer, error) {
			if s.Kind == "start" {
				return m.Start(ctx, task.StartRequest{Node: "n", Refs: []task.LeaseRef{h.LeaseRef}})
			}
			return m.Renew(ctx, task.RenewRequest{Node: "n", Refs: []task.LeaseRef{h.LeaseRef}})
		}
		a, err := ask()
		if err != nil {
			m.complain("%s: %v", s.Kind, err)
			return
		}
		v := a.Verdicts[0]
		if v.Lost {
			h.over = true
			return
		}
		h.until = sent.Add(time.Duration(v.LeaseMS) * time.Millisecond)
		if s.Kind == "start" {
			m.begin(k, h)
		}
	case "progress":
		if k, h := m.live(s.A); h != nil && h.begun {
			if err := m.Progress(ctx, task.ProgressReport{LeaseRef: h.LeaseRef, Done: float64(s.B), Total: 7}); err != nil {
				m.lost(k, h, err)
			}
		}
	case "checkpoint":
		if k, h := m.live(s.A); h != nil && h.begun {
			if err := m.Checkpoint(ctx, task.CheckpointReport{LeaseRef: h.LeaseRef, Checkpoint: json.RawMessage(`1`)}); err != nil {
				m.lost(k, h, err)
			}
		}
	case "succeed", "fail", "refuse", "pend", "abort", "release":
		m.doFinish(s)
	case "stale":
		m.doStale(s)
	case "cancel":
		if k := m.pick(s.A); k != nil {
			a, err := m.Cancel(ctx, task.CancelAsk{TaskID: k.id, By: "ann"})
			switch {
			case err != nil:
				m.complain("cancel: %v", err)
			case a.State == task.CancelUnknown && m.gone(k):
			case a.State == task.CancelUnknown:
				m.complain("cancel does not know %s", k.id)
			case a.State == task.CancelAccepted:
				if k.terminal != "" {
					m.complain("cancel of %s is accepted after it was seen %s", k.id, k.terminal)
				}
				k.cancelled = true
			}
		}
	case "bulk":
		if _, err := m.Bulk(ctx, task.BulkRequest{Action: task.ActionRequeue, Filter: task.Filter{ModuleID: traceSafe}}); err != nil {
			m.complain("bulk: %v", err)
		}
	case "retry", "requeue":
		if k := m.pick(s.A); k != nil {
			act := m.Retry
			if s.Kind == "requeue" {
				act = m.Requeue
			}
			r, err := act(ctx, task.ActAsk{TaskID: k.id, By: "ann"})
			if err == nil {
				if k.terminal == task.Completed {
					m.complain("%s is run again after it was completed", k.id)
				}
				k.terminal, k.cancelled = "", false
				if r.Status != task.Pending {
					m.complain("%s is %s after %s", k.id, r.Status, s.Kind)
				}
			}
		}
	case "short":
		pass(time.Duration(s.A) * time.Millisecond)
	case "long":
		pass(time.Duration(s.A%20) * time.Minute)
	case "lease":
		pass(4900 * time.Millisecond)
	case "crash":
		m.stage.Crash(s.A)
		m.TraceClient = m.stage.Client()
	case "depose": // it does not know yet
		m.old = append(m.old, m.stage.Depose())
		m.TraceClient = m.stage.Client()
	case "pause":
		_, err := m.Pause(ctx, []string{traceSafe, traceEffect}[s.A%2], "ann", "")
		if err != nil {
			m.complain("pause: %v", err)
		}
	case "resume":
		_, err := m.Resume(ctx, []string{traceSafe, traceEffect}[s.A%2], "ann")
		if err != nil {
			m.complain("resume: %v", err)
		}
	case "wake", "deny":
		d := task.DecisionApproved
		if s.Kind == "deny" {
			d = task.DecisionRejected
		}
		if _, err := m.Wake(ctx, task.WakeAsk{ApprovalID: fmt.Sprintf("ap-%d", s.A%3), Decision: d}); err != nil {
			m.complain("wake: %v", err)
		}
	}
	m.observe()
}

func (m *model) byID(id string) *known {
	for _, k := range m.tasks {
		if k.id == id {
			return k
		}
	}
	return nil
}

func (m *model) doSubmit(s Step) {
	sub := task.Submission{
		ModuleID: []string{traceSafe, traceEffect}[s.A%2], Priority: new(s.A % 10),
		Retry: &task.RetryOptions{MaxRetries: new(s.B % 3)},
	}
	if s.A%5 == 0 {
		sub.ConcurrencyKey = "k"
	}
	if s.A%7 == 0 {
		sub.RunAt = time.Now().Add(10 * time.Second).Format(time.RFC3339)
	}
	if s.A%11 == 0 {
		sub.OnCrash = task.CrashRetry
	}
	if s.A%13 == 0 {
		sub.IdempotencyKey = "key"
	}
	if p := m.pick(s.A); p != nil && s.B == 7 {
		sub.ParentTaskID = p.id
	}
	r, err := m.submit(sub)
	switch e := module.AsError(err); {
	case e != nil && e.Code == module.CodeExecutionCancelled && sub.ParentTaskID != "":
	case err != nil:
		m.complain("submit: %v", err)
	case r.Deduplicated:
		if sub.IdempotencyKey == "" || m.byID(r.TaskID) == nil {
			m.complain("deduplicated to %s", r.TaskID)
		}
	default:
		m.tasks = append(m.tasks, &known{id: r.TaskID, module: sub.ModuleID, child: sub.ParentTaskID != ""})
	}
}

// report makes the report that a step is about.
func report(s Step, ref task.LeaseRef) task.FinishReport {
	rep := task.FinishReport{LeaseRef: ref, Node: "n", Outcome: task.OutcomeFailed}
	switch s.Kind {
	case "succeed", "stale":
		rep.Outcome, rep.Result = task.OutcomeCompleted, json.RawMessage(`{"ok":1}`)
	case "fail":
		rep.Error = task.Fail(module.Errorf(module.CodeModuleExecuteError, "no"))
	case "refuse":
		rep.Error = task.Fail(module.Errorf(module.CodeACLDenied, "no"))
	case "pend":
		rep.Error = task.Fail(module.Errorf(module.CodeApprovalPending, "wait").WithDetail("approval_id", fmt.Sprintf("ap-%d", s.B%3)))
	case "abort":
		rep.Outcome, rep.Cause = task.OutcomeAborted, "shutdown"
	case "release":
		rep.Outcome = task.OutcomeReleased
	}
	return rep
}

func (m *model) doFinish(s Step) {
	k, h := m.live(s.A)
	if h == nil || (s.Kind == "release") == h.begun && h.Confirm || s.Kind == "release" && h.begun {
		return
	}
	if s.Kind == "pend" && h.begun { // the gate stands before the effect
		k.effects--
	}
	a, err := m.Finish(context.Background(), report(s, h.LeaseRef))
	if err != nil {
		m.lost(k, h, err)
		return
	}
	h.over, h.ended = true, a.Status
	switch s.Kind {
	case "succeed":
		if a.Status != task.Completed {
			m.complain("%s is %s after it succeeded", k.id, a.Status)
		}
	case "refuse":
		if a.Status != task.Failed && a.Status != task.Cancelled {
			m.complain("%s is %s after it was denied", k.id, a.Status)
		}
	}
	if k.cancelled && s.Kind != "succeed" && a.Status != task.Cancelled {
		m.complain("%s is %s after a cancel and %s", k.id, a.Status, s.Kind)
	}
	// A repeated report gets the answer of the first one.
	b, err := m.Finish(context.Background(), report(s, h.LeaseRef))
	if err != nil || b.Status != a.Status && s.Kind != "pend" { // a decision may have been there first
		m.complain("a repeated report of %s: %+v, %v; the first one: %+v", k.id, b, err, a)
	}
}

// doStale has a former owner speak, or one of a former writer.
func (m *model) doStale(s Step) {
	ctx := context.Background()
	if len(m.old) > 0 && s.B%2 == 0 {
		old := m.old[s.A%len(m.old)]
		if k := m.pick(s.A); k != nil {
			if _, err := old.Get(ctx, k.id); err == nil {
				m.complain("a deposed writer answers")
			}
			if _, err := old.Cancel(ctx, task.CancelAsk{TaskID: k.id}); err == nil {
				m.complain("a deposed writer cancels")
			}
		}
		return
	}
	for _, k := range m.tasks {
		for i, h := range k.grants {
			if i == len(k.grants)-1 || h.ended != "" {
				continue
			}
			before := m.read(k.id)
			if k.keeps(before, h) {
				continue
			}
			_, err := m.Finish(ctx, report(s, h.LeaseRef))
			if err == nil {
				m.complain("attempt %d of %s, which is not the last one, is heard", h.Attempt, k.id)
				return
			}
			m.lost(k, h, err)
			if after := m.read(k.id); after.Number != before.Number {
				m.complain("a stale report changes %s", k.id)
			}
			if v, err := m.Renew(ctx, task.RenewRequest{Node: "n", Refs: []task.LeaseRef{h.LeaseRef}}); err != nil || !v.Verdicts[0].Lost {
				m.complain("a stale renewal of %s: %+v, %v", k.id, v, err)
			}
		}
	}
}

// keeps reports whether a node may keep an attempt though another one was given it
// since: both were granted by writers that are gone and wrote nothing of it, the
// module may run twice, and whoever speaks first has it.
func (k *known) keeps(r task.Record, h *grant) bool {
	if k.module != traceSafe {
		return false
	}
	queued := r.Detail == task.Queued || r.Detail == task.Blocked
	return r.Lease != nil && r.Lease.Epoch == h.Epoch || queued && r.Attempt+1 == h.Attempt
}

func (m *model) submit(sub task.Submission) (*task.Receipt, error) {
	a, err := m.Submit(context.Background(), task.SubmitRequest{Tasks: []task.Submission{sub}})
	if err != nil {
		return nil, err
	}
	return a.Receipts[0].Receipt, a.Receipts[0].Error.Err()
}

func (m *model) read(id string) task.Record {
	r, err := m.Get(context.Background(), id)
	if err != nil {
		m.complain("%s cannot be read: %v", id, err)
	}
	return r
}

func (m *model) gone(k *known) bool {
	_, err := m.Get(context.Background(), k.id)
	e := module.AsError(err)
	return e != nil && e.Code == module.CodeTaskExpired && k.terminal != ""
}

// observe reads every task and judges what there is to see.
func (m *model) observe() {
	synctest.Wait() // decisions that came early are looked up in the background
	queued := map[string]int{}
	running := map[string]int{}
	for _, k := range m.tasks {
		r, err := m.Get(context.Background(), k.id)
		if err != nil {
			if !m.gone(k) {
				m.complain("%s, which was acknowledged, cannot be read: %v", k.id, err)
			}
			continue
		}
		if k.terminal != "" && (r.Status != k.terminal || r.CompletedAt != k.at) {
			m.complain("%s was %s and is %s", k.id, k.terminal, r.Status)
		}
		if r.Status.Terminal() {
			k.terminal, k.at = r.Status, r.CompletedAt
		}
		m.coherent(k, r)
		switch {
		case r.Detail == task.Queued || r.Detail == task.Blocked:
			queued[k.module]++
		case r.Status == task.Running:
			running[k.module]++
		}
	}
	qs, err := m.Queues(context.Background())
	if err != nil {
		m.complain("queues: %v", err)
	}
	for _, q := range qs {
		if q.Queued != queued[q.ModuleID] || q.Running != running[q.ModuleID] {
			m.complain("the queue of %s says %d queued, %d running; there are %d, %d", q.ModuleID, q.Queued, q.Running, queued[q.ModuleID], running[q.ModuleID])
		}
	}
}

// coherent judges one record by itself: rule 7 says where a task may be.
func (m *model) coherent(k *known, r task.Record) {
	// What is due at this very instant may happen before or after it is looked at.
	now := task.At(time.Now())
	ok := false
	switch {
	case r.Status.Terminal():
		ok = r.CompletedAt != 0 && r.Lease == nil && (r.Status != task.Failed || r.Error != nil)
	case r.Status == task.Running || r.Detail == task.Claimed:
		ok = r.Lease != nil && r.Lease.Until >= now && r.Attempt > 0
	case r.Detail == task.Scheduled || r.Detail == task.BackingOff:
		ok = r.ReadyAt >= now && r.Lease == nil
	case r.Detail == task.Queued || r.Detail == task.Blocked:
		ok = r.ReadyAt <= now && r.Lease == nil && (r.CancelRequested == nil)
	case r.Detail == task.AwaitingApproval:
		ok = r.ApprovalID != "" && r.Lease == nil
	}
	if !ok {
		m.complain("%s is in no place where it may be at %d: %s %s, lease %+v, ready %d, ends %d, approval %q, %+v", k.id, now,
			r.Status, r.Detail, r.Lease, r.ReadyAt, r.CompletedAt, r.ApprovalID, r.Timeline)
	}
	if r.CancelRequested != nil && !k.cancelled && !k.child {
		m.complain("%s has a request to cancel that nobody was told of: %+v", k.id, r)
	}
	if k.effects > r.Attempt+m.unwritten(k) {
		m.complain("%s had %d effects in %d attempts", k.id, k.effects, r.Attempt)
	}
	for i := 1; i < len(r.Timeline); i++ {
		if r.Timeline[i].Number <= r.Timeline[i-1].Number {
			m.complain("numbers of %s do not rise: %+v", k.id, r.Timeline)
		}
	}
}

// unwritten counts the attempts that a record need not know: those of a module that
// may run twice, which a writer gave and did not write before it was gone, or that
// nobody was heard of.
func (m *model) unwritten(k *known) int {
	if k.module == traceSafe {
		return len(k.grants)
	}
	return 0
}

// converge heals everything and lets good nodes work: every task must end, and soon.
func (m *model) converge() {
	ctx := context.Background()
	for _, id := range []string{traceSafe, traceEffect} {
		_, _ = m.Resume(ctx, id, "ann")
	}
	for range 400 {
		open := 0
		for _, k := range m.tasks {
			if r, err := m.Get(ctx, k.id); err == nil && !r.Status.Terminal() {
				open++
				if r.Detail == task.AwaitingApproval {
					_, _ = m.Wake(ctx, task.WakeAsk{ApprovalID: r.ApprovalID, Decision: task.DecisionApproved})
				}
			}
		}
		if open == 0 {
			return
		}
		a, err := m.Claim(ctx, task.ClaimRequest{Node: "good", Boot: "1", Modules: []string{traceSafe, traceEffect}, Slots: 10})
		if err != nil {
			m.complain("claim: %v", err)
		}
		for _, g := range a.Grants {
			m.serve(g)
		}
		pass(time.Second)
		if m.observe(); m.wrong != "" {
			return
		}
	}
	for _, k := range m.tasks {
		if r, err := m.Get(ctx, k.id); err == nil && !r.Status.Terminal() {
			m.complain("%s does not end: %+v", k.id, r)
		}
	}
}

func (m *model) serve(g task.Grant) {
	v, err := m.Start(context.Background(), task.StartRequest{Refs: []task.LeaseRef{g.LeaseRef}})
	if err != nil || v.Verdicts[0].Lost {
		m.complain("start of a fresh grant: %+v, %v", v, err)
		return
	}
	k := m.byID(g.TaskID)
	h := &grant{Grant: g, until: time.Now().Add(time.Second)}
	k.grants = append(k.grants, h)
	m.begin(k, h)
	if _, err := m.Finish(context.Background(), report(Step{Kind: "succeed"}, g.LeaseRef)); err != nil {
		m.complain("finish of a fresh grant: %v", err)
	}
	h.over = true
}
