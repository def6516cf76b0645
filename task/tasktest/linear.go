package tasktest

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/apbus/apbus/module"
	"github.com/apbus/apbus/task"
)

// LinearClient is what one client of [RunLinear] uses.
type LinearClient interface {
	Submit(ctx context.Context, req task.SubmitRequest) (task.SubmitAnswer, error)
	Get(ctx context.Context, id string) (task.Record, error)
	Cancel(ctx context.Context, ask task.CancelAsk) (task.CancelAnswer, error)
	Claim(ctx context.Context, req task.ClaimRequest) (task.ClaimAnswer, error)
	Start(ctx context.Context, req task.StartRequest) (task.LeaseAnswer, error)
	Renew(ctx context.Context, req task.RenewRequest) (task.LeaseAnswer, error)
	Finish(ctx context.Context, rep task.FinishReport) (task.FinishAnswer, error)
}

// Linear describes a run of [RunLinear]. All fields but Repeats are required.
type Linear struct {
	// Seed decides what the clients do; it does not decide in which order they get to.
	Seed uint64
	// Clients act at the same time, each from a goroutine of its own.
	Clients []LinearClient
	// Steps is how much each of them does.
	Steps int
	// Module has neither the annotation idempotent nor readonly, so that no attempt
	// runs that is not durable.
	Module string
	// Repeats says that clients repeat by themselves what was not answered.
	Repeats bool
	// Pause lets a moment pass.
	Pause func(d time.Duration)
}

// RunLinear has clients submit, read, cancel, claim, start, renew and finish the
// same few tasks at the same time, with right and with stale tokens, and returns what they
// did and saw. Writers may be replaced meanwhile; leases must not end. The seed is
// logged.
func RunLinear(t *testing.T, o Linear) *History {
	t.Helper()
	t.Logf("seed %d", o.Seed)
	h := &History{o: o, t: t}
	var wg sync.WaitGroup
	for n, c := range o.Clients {
		p := &person{h: h, n: n, c: c, rng: rand.New(rand.NewPCG(o.Seed, uint64(n)))}
		wg.Go(p.run)
	}
	wg.Wait()
	// The end of every task, as everybody may see it now.
	last := &person{h: h, n: len(o.Clients), c: o.Clients[0], rng: rand.New(rand.NewPCG(o.Seed, 0))}
	for _, key := range h.keys() {
		if !t.Failed() {
			last.get(key)
		}
	}
	return h
}

// slots is how many tasks there are at a time.
const slots = 10

// History is what all clients did and saw.
type History struct {
	o     Linear
	t     *testing.T
	clock atomic.Int64
	over  [slots]atomic.Int64 // how many tasks of the slot were seen at their end

	mu  sync.Mutex
	ids map[string]string // task IDs by key
	ops map[string][]op   // by key
}

// op is one thing that a client did.
type op struct {
	client    int
	call, end int64
	kind      string // submit, get, cancel, claim, start, renew, finish
	outcome   string // of finish
	tries     int    // how often it was asked
	maybe     bool   // one of the first tries, whose answer was lost
	ref       task.LeaseRef

	id       string      // answered by submit
	again    bool        // submit: deduplicated
	lost     bool        // start, renew, finish: no longer yours
	told     bool        // renew: of a cancel
	state    string      // answered by cancel
	status   task.Status // answered by get, cancel, finish
	attempt  int         // answered by get
	cancel   bool        // answered by get
	finished int64       // answered by get: the epoch whose output it is
}

func (o op) String() string {
	return fmt.Sprintf("[%d %d] client %d %s %s attempt %d epoch %d -> id %q again %v lost %v told %v state %q status %q attempt %d cancel %v output %d",
		o.call, o.end, o.client, o.kind, o.outcome, o.ref.Attempt, o.ref.Epoch, o.id, o.again, o.lost, o.told, o.state, o.status, o.attempt, o.cancel, o.finished)
}

// add keeps what happened to the task of a key.
func (h *History) add(key string, o op) {
	o.end = h.clock.Add(1)
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ops == nil {
		h.ops, h.ids = map[string][]op{}, map[string]string{}
	}
	if o.kind == "submit" {
		if id, ok := h.ids[key]; ok && id != o.id {
			h.t.Errorf("the key %s has two tasks, %s and %s", key, id, o.id)
		}
		h.ids[key] = o.id
	}
	h.ops[key] = append(h.ops[key], o)
	if (o.tries > 1 || h.o.Repeats) && (o.kind == "start" || o.kind == "cancel" || o.kind == "finish") {
		o.maybe = true
		h.ops[key] = append(h.ops[key], o)
	}
}

func (h *History) id(key string) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.ids[key]
}

func (h *History) keys() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Sorted(maps.Keys(h.ids))
}

// ended lets the next task take the place of one that is over.
func (h *History) ended(key string) {
	var slot int
	var n int64
	if _, err := fmt.Sscanf(key, "%d-%d", &slot, &n); err == nil {
		h.over[slot].CompareAndSwap(n, n+1)
	}
}

// person is one client with its own mind.
type person struct {
	h   *History
	n   int
	c   LinearClient
	rng *rand.Rand
	has []held // attempts that it was given, also when they have passed to others
}

type held struct {
	key string
	ref task.LeaseRef
}

func (p *person) run() {
	for range p.h.o.Steps {
		if p.h.t.Failed() {
			return
		}
		p.h.o.Pause(time.Duration(p.rng.IntN(2000)) * time.Microsecond)
		slot := p.rng.IntN(slots)
		key := fmt.Sprintf("%d-%d", slot, p.h.over[slot].Load())
		switch n := p.rng.IntN(100); {
		case p.h.id(key) == "":
			p.submit(key)
		case n < 10:
			p.submit(key)
		case n < 28:
			p.get(key)
		case n < 34:
			p.cancel(key)
		case n < 60 || len(p.has) == 0:
			p.claim()
		default:
			p.act()
		}
	}
}

// asked repeats a question until somebody answers it.
func asked[A any](p *person, o *op, call func(ctx context.Context) (A, error)) (A, error) {
	ctx := p.h.t.Context()
	for {
		o.tries++
		a, err := call(ctx)
		if e := module.AsError(err); e == nil || ctx.Err() != nil ||
			e.Code != module.CodeTaskStoreUnavailable && !strings.HasPrefix(string(e.Code), "BUS_") {
			return a, err
		}
		p.h.o.Pause(20 * time.Millisecond)
	}
}

func (p *person) begin(kind string) op {
	return op{client: p.n, kind: kind, call: p.h.clock.Add(1)}
}

func (p *person) submit(key string) {
	o := p.begin("submit")
	one, quick := 1, int64(0)
	a, err := asked(p, &o, func(ctx context.Context) (task.SubmitAnswer, error) {
		return p.c.Submit(ctx, task.SubmitRequest{Tasks: []task.Submission{{
			ModuleID: p.h.o.Module, IdempotencyKey: key, Retry: &task.RetryOptions{MaxRetries: &one, RetryDelayMS: &quick},
		}}})
	})
	if err != nil || a.Receipts[0].Error != nil {
		p.h.t.Errorf("submit: %+v, %v", a, err)
		return
	}
	o.id, o.again = a.Receipts[0].TaskID, a.Receipts[0].Deduplicated
	p.h.add(key, o)
}

func (p *person) get(key string) {
	o := p.begin("get")
	r, err := asked(p, &o, func(ctx context.Context) (task.Record, error) { return p.c.Get(ctx, p.h.id(key)) })
	if err != nil {
		p.h.t.Errorf("get: %v", err)
		return
	}
	o.status, o.attempt, o.cancel = r.Status, r.Attempt, r.CancelRequested != nil
	if r.Status == task.Completed {
		var out struct{ Epoch int64 }
		if err := json.Unmarshal(r.Result, &out); err != nil {
			p.h.t.Errorf("the output is %s", r.Result)
		}
		o.finished = out.Epoch
	}
	p.h.add(key, o)
	if r.Status.Terminal() {
		p.h.ended(key)
	}
}

func (p *person) cancel(key string) {
	o := p.begin("cancel")
	a, err := asked(p, &o, func(ctx context.Context) (task.CancelAnswer, error) {
		return p.c.Cancel(ctx, task.CancelAsk{TaskID: p.h.id(key), By: "somebody"})
	})
	if err != nil {
		p.h.t.Errorf("cancel: %v", err)
		return
	}
	o.state, o.status = a.State, a.Status
	p.h.add(key, o)
}

func (p *person) claim() {
	o := p.begin("claim")
	a, err := p.c.Claim(p.h.t.Context(), task.ClaimRequest{
		Node: fmt.Sprintf("n%d", p.n), Boot: "b", Modules: []string{p.h.o.Module}, Slots: 1 + p.rng.IntN(2),
	})
	if err != nil {
		return // granted to nobody, if at all
	}
	for _, g := range a.Grants {
		if !g.Confirm {
			p.h.t.Errorf("attempt %+v need not be confirmed", g.LeaseRef)
		}
		o.ref = g.LeaseRef
		p.has = append(p.has, held{g.IdempotencyKey, g.LeaseRef})
		p.h.add(g.IdempotencyKey, o)
	}
}

// act does something with a token, mostly the last one.
func (p *person) act() {
	n := len(p.has) - 1
	if p.rng.IntN(3) == 0 {
		n = p.rng.IntN(len(p.has))
	}
	mine := p.has[n]
	refs := []task.LeaseRef{mine.ref}
	node := fmt.Sprintf("n%d", p.n)
	kind := []string{"start", "start", "renew", "finish", "finish"}[p.rng.IntN(5)]
	o := p.begin(kind)
	o.ref = mine.ref
	switch kind {
	case "start", "renew":
		a, err := asked(p, &o, func(ctx context.Context) (task.LeaseAnswer, error) {
			if kind == "start" {
				return p.c.Start(ctx, task.StartRequest{Node: node, Refs: refs})
			}
			return p.c.Renew(ctx, task.RenewRequest{Node: node, Refs: refs})
		})
		if err != nil || len(a.Verdicts) != 1 {
			p.h.t.Errorf("%s: %+v, %v", kind, a, err)
			return
		}
		o.lost, o.told = a.Verdicts[0].Lost, a.Verdicts[0].Cancel != nil
	case "finish":
		o.outcome = task.OutcomeCompleted
		rep := task.FinishReport{LeaseRef: mine.ref, Node: node, Outcome: o.outcome, Result: fmt.Appendf(nil, `{"epoch":%d}`, mine.ref.Epoch)}
		if p.rng.IntN(2) == 0 {
			o.outcome = task.OutcomeFailed
			rep.Outcome, rep.Result, rep.Error = o.outcome, nil, task.Fail(module.Errorf("TEST_FAILED", "as the test wants it"))
		}
		a, err := asked(p, &o, func(ctx context.Context) (task.FinishAnswer, error) { return p.c.Finish(ctx, rep) })
		if e := module.AsError(err); e != nil && e.Code == module.CodeTaskLeaseLost {
			o.lost = true
		} else if err != nil {
			p.h.t.Errorf("finish: %v", err)
			return
		}
		o.status = a.Status
	}
	p.h.add(mine.key, o)
}
