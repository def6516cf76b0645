package loop_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/loop"
	"github.com/apbus/apbus/module"
)

// pinned is the time of the first pass of every test.
func pinned() time.Time { return time.Date(2026, 1, 15, 12, 0, 0, 0, time.UTC) }

func day(n int) time.Duration { return time.Duration(n) * 24 * time.Hour }

var errDown = errors.New("down")

// world is a loop over memory.
type world struct {
	t      *testing.T
	store  *loop.MemStore
	reader *loop.MemReader
	model  *fakeModel
	engine *loop.Engine
	seq    uint64
}

type option func(*loop.Options)

func withPolicy(change func(*loop.Policy)) option {
	return func(o *loop.Options) {
		p := loop.DefaultPolicy()
		if o.Policy != nil {
			p = *o.Policy
		}
		change(&p)
		o.Policy = &p
	}
}

// newWorld makes a world whose model answers as told; nil for no model.
func newWorld(t *testing.T, model *fakeModel, opts ...option) *world {
	t.Helper()
	w := &world{t: t, store: loop.NewMemStore(), reader: loop.NewMemReader(), model: model}
	w.engine = w.open(w.store, opts...)
	return w
}

func (w *world) open(s loop.Store, opts ...option) *loop.Engine {
	w.t.Helper()
	o := loop.Options{Store: s, Reader: w.reader, Logger: slog.New(slog.DiscardHandler)}
	if w.model != nil {
		o.Backend = w.model
	}
	for _, opt := range opts {
		opt(&o)
	}
	e, err := loop.New(o)
	if err != nil {
		w.t.Fatal(err)
	}
	return e
}

// add adds a piece of evidence and returns its hash.
func (w *world) add(e contextwire.Evidence) string {
	w.t.Helper()
	w.seq++
	e.N = w.seq
	if e.NS == "" {
		e.NS = "main"
	}
	if e.Type == "" {
		e.Type = contextwire.EvidenceCall
	}
	e.Node, e.Boot = "n1", "b1"
	body, err := contextwire.EncodeEvidence(&e)
	if err != nil {
		w.t.Fatal(err)
	}
	decoded, hash, err := contextwire.DecodeEvidence(body)
	if err != nil {
		w.t.Fatal(err)
	}
	w.reader.Add(loop.EvidenceRecord(w.seq, hash, decoded))
	return hash
}

// fail adds a failed call of a module, ok one that succeeded.
func (w *world) fail(id string, at time.Time, message string) string {
	return w.add(contextwire.Evidence{
		At: at, ModuleID: id, Version: "1.0.0", Call: "c", Attempt: 1, Outcome: contextwire.OutcomeError,
		Code: module.CodeModuleExecuteError, Message: message, Duration: 5 * time.Millisecond,
	})
}

func (w *world) ok(id string, at time.Time) string {
	return w.add(contextwire.Evidence{At: at, ModuleID: id, Version: "1.0.0", Call: "c", Attempt: 1, Outcome: contextwire.OutcomeOK, Duration: time.Millisecond})
}

// failing makes a history in which pay.refund fails in most of its calls, which
// exactly one analyzer finds, and returns the hashes of the failures.
func (w *world) failing(n int) []string {
	var hashes []string
	for i := range n {
		at := pinned().Add(-time.Duration(n-i) * time.Minute)
		hashes = append(hashes, w.fail("pay.refund", at, fmt.Sprintf("refund of order %d was refused", i)))
		if i%3 == 0 {
			w.ok("pay.refund", at)
		}
	}
	return hashes
}

func (w *world) run(now time.Time, o loop.RunOptions) *loop.Result {
	w.t.Helper()
	if o.Trigger.ID == "" {
		o.Trigger = ana()
	}
	r, err := w.engine.Run(w.t.Context(), now, o)
	if err != nil {
		w.t.Fatal(err)
	}
	return r
}

func (w *world) cases() []*loop.Case {
	w.t.Helper()
	list, bad, err := w.engine.Cases(w.t.Context())
	if err != nil || bad != 0 {
		w.t.Fatalf("cases: %d bad, %v", bad, err)
	}
	return list
}

// llm are the recommendations that the model drafted.
func (w *world) llm() []*loop.Case {
	var list []*loop.Case
	for _, c := range w.cases() {
		if c.Rec.ByLLM() {
			list = append(list, c)
		}
	}
	return list
}

func (w *world) approve(hash string) {
	w.t.Helper()
	if _, err := w.engine.Approve(w.t.Context(), pinned(), rex(), hash, "it is right"); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) apply(now time.Time, hash string) {
	w.t.Helper()
	if _, err := w.engine.Apply(w.t.Context(), now, rex(), hash, "as reviewed", loop.ApplyOptions{}); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) guidance(id string) []loop.Guidance {
	w.t.Helper()
	g, err := w.engine.Knowledge().Guidance(w.t.Context(), id)
	if err != nil {
		w.t.Fatal(err)
	}
	return g
}

// ana triggers runs and may review; rex reviews and applies.
func ana() loop.Actor {
	return loop.Actor{ID: "ana", Observer: loop.ObserverHuman, Scopes: []loop.Scope{loop.ScopeReview, loop.ScopeApply}}
}

func rex() loop.Actor {
	return loop.Actor{ID: "rex", Observer: loop.ObserverHuman, Scopes: []loop.Scope{loop.ScopeReview, loop.ScopeApply}}
}

func root() loop.Actor {
	return loop.Actor{ID: "root", Observer: loop.ObserverHuman, Scopes: []loop.Scope{loop.ScopeAdmin}}
}

// fakeModel answers each operation with a function of the request; nil answers
// approve of everything and propose nothing.
type fakeModel struct {
	discover func(req map[string]any) string
	ground   func(req map[string]any) string
	verify   func(req map[string]any) string
	enrich   func(req map[string]any) string
	fail     map[string]error

	mu       sync.Mutex
	requests []string
}

func (m *fakeModel) Model() string { return "m-small" }

func (m *fakeModel) Complete(_ context.Context, request string) (string, error) {
	m.mu.Lock()
	m.requests = append(m.requests, request)
	m.mu.Unlock()
	var req map[string]any
	if err := json.Unmarshal([]byte(request), &req); err != nil {
		return "", err
	}
	op, _ := req["op"].(string)
	if err := m.fail[op]; err != nil {
		return "", err
	}
	answer := map[string]func(map[string]any) string{
		"discover": m.discover, "ground": m.ground, "verify": m.verify, "enrich": m.enrich,
	}[op]
	if answer != nil {
		return answer(req), nil
	}
	switch op {
	case "ground":
		return verdicts(req, "claims", `"supported":true`), nil
	case "verify":
		return verdicts(req, "findings", `"keep":true,"confidence":0.9`), nil
	}
	return `{}`, nil
}

// verdicts answers every item of a list with the same fields.
func verdicts(req map[string]any, list, fields string) string {
	items, _ := req[list].([]any)
	out := `{"results":[`
	for i := range items {
		if i > 0 {
			out += ","
		}
		id, _ := items[i].(map[string]any)["id"].(float64)
		out += fmt.Sprintf(`{"id":%d,%s}`, int(id), fields)
	}
	return out + `]}`
}

// asked are the requests of one operation.
func (m *fakeModel) asked(op string) []map[string]any {
	var list []map[string]any
	for _, raw := range m.requests {
		var req map[string]any
		if json.Unmarshal([]byte(raw), &req) == nil && req["op"] == op {
			list = append(list, req)
		}
	}
	return list
}

// proposing makes a model that proposes these drafts, written as JSON.
func proposing(drafts ...string) *fakeModel {
	return &fakeModel{discover: func(map[string]any) string { return discovery(drafts...) }}
}

func discovery(drafts ...string) string {
	out := `{"recommendations":[`
	for i, d := range drafts {
		if i > 0 {
			out += ","
		}
		out += d
	}
	return out + `]}`
}

// draft is a draft on entity:lessons/pay.refund that cites e1 and e2 and has these
// further fields.
func draft(more string) string {
	return `{"summary":"Refunds are refused","target":"entity:lessons/pay.refund","evidence":["e1","e2"],"confidence":0.8` + more + `}`
}

func lesson(text string) string { return draft(`,"lesson":` + quoted(text)) }

func quoted(s string) string {
	raw, err := json.Marshal(s)
	if err != nil {
		panic(err)
	}
	return string(raw)
}

// onlyLLM switches the analyzers off, where only drafts of the model matter.
func onlyLLM(o *loop.Options) { o.Analyzers = []loop.Analyzer{} }

func wantCode(t *testing.T, err error, code module.Code) {
	t.Helper()
	if got := module.CodeOf(err); got != code {
		t.Errorf("got %v, want %s", err, code)
	}
}
