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

// today is the time of every pass in the tests of analyzers.
var today = time.Date(2026, 5, 20, 12, 0, 0, 0, time.UTC)

// history is a made-up past.
type history struct {
	n       int
	records []*loop.Record
}

// add records a piece of evidence n times. What is not set is that of an ordinary
// call, an hour ago and a second apart.
func (h *history) add(n int, e contextwire.Evidence) *history {
	for range n {
		h.n++
		c := e
		if c.Type == "" {
			c.Type = contextwire.EvidenceCall
		}
		if c.At.IsZero() {
			c.At = today.Add(-time.Hour + time.Duration(h.n%3000)*time.Second)
		}
		if c.Outcome == "" {
			c.Outcome = contextwire.OutcomeOK
		}
		if c.ModuleID == "" {
			c.ModuleID = "pay.charge"
		}
		if c.Node == "" {
			c.Node = "n1"
		}
		if c.Duration == 0 {
			c.Duration = 20 * time.Millisecond
		}
		if c.CallChain == nil {
			c.CallChain = []string{c.ModuleID}
		}
		c.NS, c.N = "default", uint64(h.n)
		body, err := contextwire.EncodeEvidence(&c)
		if err != nil {
			panic(err)
		}
		back, hash, err := contextwire.DecodeEvidence(body)
		if err != nil {
			panic(err)
		}
		h.records = append(h.records, loop.EvidenceRecord(uint64(h.n), hash, back))
	}
	return h
}

// fail records n failures of the module pay.charge.
func (h *history) fail(n int, code module.Code, message string) *history {
	return h.add(n, contextwire.Evidence{Outcome: contextwire.OutcomeError, Code: code, Message: message})
}

// know adds records that are no evidence.
func (h *history) know(records ...*loop.Record) *history {
	h.records = append(h.records, records...)
	return h
}

func (h *history) host(id, version, node string, since time.Time) *history {
	m := loop.ModuleSnapshot{Namespace: "default", ModuleID: id, Version: version, Node: node, Since: since, Description: id}
	return h.know(m.Record())
}

// knowledge makes a live record with a hash of its own.
func knowledge(typ loop.Type, i int, fields map[string]any) *loop.Record {
	return &loop.Record{
		Hash: contextwire.EvidenceHash(fmt.Appendf(nil, "%s %d", typ, i)), Type: typ, Namespace: "lessons",
		CreatedAtMS: today.Add(-time.Duration(i) * time.Hour).UnixMilli(), Fields: fields,
	}
}

func analyzerOf(t testing.TB, id string) loop.Analyzer {
	t.Helper()
	for _, a := range loop.Builtin() {
		if name, _, _ := strings.Cut(a.Manifest().ID, "/"); name == "exec."+id {
			return a
		}
	}
	t.Fatalf("no analyzer %s", id)
	return nil
}

// findings runs one analyzer and renders what it found.
func findings(t testing.TB, id string, outcomes []loop.Outcome, records []*loop.Record) ([]string, []loop.Draft) {
	t.Helper()
	a := analyzerOf(t, id)
	m := a.Manifest()
	params, err := m.ResolveParams(nil)
	if err != nil {
		t.Fatal(err)
	}
	found, err := loop.Analyze(t.Context(), loop.NewMemReader(records...), today, loop.Query{}, outcomes, []loop.Run{{Analyzer: a, Params: params}})
	if err != nil || found[0].Err != nil {
		t.Fatalf("analyze: %v, %v", err, found)
	}
	var texts []string
	for _, d := range found[0].Drafts {
		texts = append(texts, fmt.Sprintf("%s %s | %s", d.Severity, d.Target, d.Summary.Render(m.Templates[d.Summary.TemplateID])))
	}
	return texts, found[0].Drafts
}

// shuffled is the same records in another order and with other sequences.
func shuffled(records []*loop.Record, seed uint64) []*loop.Record {
	r := rand.New(rand.NewPCG(seed, 1))
	out := make([]*loop.Record, len(records))
	for i, j := range r.Perm(len(records)) {
		c := *records[j]
		if c.Seq > 0 {
			c.Seq = uint64(i) + 1
		}
		out[i] = &c
	}
	return out
}
