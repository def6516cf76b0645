package loop

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/apbus/apbus/schema"
)

// bundle is the evidence that one DISCOVER is shown.
type bundle struct {
	items   []EvidenceItem
	records []*Record
	byHash  map[string]int
	// anonymous drops who made a note.
	anonymous bool
	templates map[Type]*evidenceTemplate
}

// text is how a record is shown.
func (b *bundle) text(r *Record) string {
	if t := b.templates[r.Type]; t != nil && r.Evidence != nil {
		return t.render(r, b.anonymous)
	}
	return evidenceText(r, b.anonymous)
}

func (b *bundle) add(r *Record) bool {
	if _, there := b.byHash[r.Hash]; there || len(b.items) >= MaxEvidenceItems {
		return false
	}
	b.byHash[r.Hash] = len(b.items)
	b.items = append(b.items, EvidenceItem{
		ID: "e" + strconv.Itoa(len(b.items)+1), Hash: r.Hash, GrainType: string(r.Type),
		Text: Cap(clean(b.text(r)), MaxEvidenceText),
	})
	b.records = append(b.records, r)
	return true
}

// fill adds records until the bundle holds stop items or most were added, and
// returns how many were.
func (b *bundle) fill(records []*Record, stop, most int) int {
	added := 0
	for _, r := range records {
		if len(b.items) >= stop || added >= most {
			break
		}
		if b.add(r) {
			added++
		}
	}
	return added
}

// resolve returns the item a citation means: by full hash, by the ID in this
// bundle, or by a hexadecimal prefix of at least [MinCitationPrefix] digits that
// fits one item only. -1 for anything else.
func (b *bundle) resolve(citation string) int {
	if len(citation) > MaxCitationLen {
		return -1
	}
	citation = strings.TrimSpace(citation)
	if i, ok := b.byHash[citation]; ok {
		return i
	}
	for i := range b.items {
		if b.items[i].ID == citation {
			return i
		}
	}
	prefix := strings.ToLower(citation)
	if len(prefix) < MinCitationPrefix || !isHex(prefix) {
		return -1
	}
	found := -1
	for i := range b.items {
		if !strings.HasPrefix(b.items[i].Hash, prefix) {
			continue
		}
		if found >= 0 {
			return -1
		}
		found = i
	}
	return found
}

// newest keeps the newest records that it was given, ties by hash.
type newest struct {
	limit int
	list  []*Record
}

func (n *newest) add(r *Record) {
	if n.list = append(n.list, r); len(n.list) >= 2*n.limit {
		n.trim()
	}
}

func (n *newest) trim() []*Record {
	slices.SortFunc(n.list, func(a, b *Record) int {
		return cmp.Or(cmp.Compare(b.CreatedAtMS, a.CreatedAtMS), cmp.Compare(a.Hash, b.Hash))
	})
	clear(n.list[min(len(n.list), n.limit):])
	n.list = n.list[:min(len(n.list), n.limit)]
	return n.list
}

// queryDiscover is the saved query that selects what evidence DISCOVER is shown,
// beside what findings cite.
const queryDiscover = "discover"

// bundle collects the evidence. Each source has a share, so that none starves the
// others: what findings cite, taken in turns; recent failures; recent successes, if
// procedures may be proposed; what people said; what is known.
func (p *pass) bundle(ctx context.Context) (*bundle, error) {
	b := &bundle{byHash: make(map[string]int), anonymous: p.policy.EvidenceAttribution == AttributionAnonymous, templates: p.evidenceTemplates()}
	cited, err := p.citedRecords(ctx)
	if err != nil {
		return nil, err
	}
	b.fill(cited, bundleCited, MaxEvidenceItems)

	wanted := p.savedQuery()
	failed, fine := newest{limit: bundleErrors}, newest{limit: bundleErrors}
	said, known := newest{limit: MaxEvidenceItems}, newest{limit: MaxEvidenceItems}
	q := Query{Types: append(EvidenceTypes(), TypeFact, TypeLesson), Namespaces: p.opts.Namespaces}
	if p.policy.Plans {
		q.Types = append(q.Types, TypePlan) // one that is to be revised is named by its hash
	}
	if !p.opts.FullSweep {
		q.AfterSeq = uint64(p.state.LLMWatermark) //nolint:gosec // never negative
	}
	for r, err := range p.reader.Records(ctx, q) {
		switch {
		case err != nil:
			return nil, storeError("reading evidence for the model", err)
		case r.Evidence == nil:
			known.add(r)
		case !wanted.matches(r):
		case r.Type == TypeNote, r.Type == TypeApproval:
			said.add(r)
		case Failed(r.Evidence.Outcome):
			failed.add(r)
		case r.Evidence.Outcome == "ok":
			fine.add(r)
		}
	}
	added := b.fill(failed.trim(), bundleErrors, bundleErrorsAdded)
	if p.policy.Skills || p.policy.Plans {
		b.fill(fine.trim(), bundleErrors, bundleErrorsAdded-added)
	}
	b.fill(said.trim(), bundleObservations, MaxEvidenceItems)
	b.fill(known.trim(), MaxEvidenceItems, MaxEvidenceItems)
	b.fill(said.trim(), MaxEvidenceItems, MaxEvidenceItems)
	return b, nil
}

// citedRecords are what the findings of this pass cite: the first of each, then the
// second of each, and so on.
func (p *pass) citedRecords(ctx context.Context) ([]*Record, error) {
	var hashes []string
	for n := range MaxEvidencePerRec {
		for _, c := range p.candidates {
			if n < len(c.rec.Evidence) && len(hashes) < 4*bundleCited {
				hashes = append(hashes, c.rec.Evidence[n])
			}
		}
	}
	if len(hashes) == 0 {
		return nil, nil
	}
	found, err := p.reader.ByHash(ctx, hashes)
	if err != nil {
		return nil, storeError("reading cited evidence", err)
	}
	records := make([]*Record, 0, len(found))
	for _, h := range hashes {
		if r := found[h]; r != nil {
			records = append(records, r)
		}
	}
	return records, nil
}

// evidenceText is a record as a line of text. Inputs are left out.
func evidenceText(r *Record, anonymous bool) string {
	e := r.Evidence
	if e == nil {
		switch r.Type {
		case TypeFact, TypeLesson:
			return r.Text("subject") + " " + r.Text("relation") + " " + r.Text("object")
		case TypePlan:
			return "plan " + r.Text("name") + " " + planText(r.Fields["plan"])
		}
		return string(r.Type) + " " + r.Text("name") + ": " + r.Text("description")
	}
	by := ""
	if !anonymous {
		by = cmp.Or(e.By, e.Role)
	}
	switch r.Type {
	case TypeApproval:
		return join("approval", e.ModuleID, prefixed("by ", by), e.Outcome) + prefixed(": ", cmp.Or(e.Text, e.Message))
	case TypeTask:
		return join("task", e.ModuleID, e.Outcome, string(e.Code), "attempt="+strconv.Itoa(e.TaskAttempt), "retries="+strconv.Itoa(e.Retries)) + prefixed(": ", e.Message)
	case TypeNote:
		return join("note", prefixed("by ", by), prefixed("on ", e.ModuleID)) + prefixed(": ", e.Text)
	case TypeACL:
		return join("acl", e.ModuleID, "caller="+cmp.Or(e.CallerID, "@external"), e.Outcome)
	}
	return join(string(r.Type), e.ModuleID+prefixed("@", e.Version), "caller="+cmp.Or(e.CallerID, "@external"), e.Outcome, string(e.Code),
		fmt.Sprintf("%dms", e.Duration.Milliseconds()), "attempt="+strconv.Itoa(e.Attempt)) + prefixed(": ", e.Message)
}

// planText is the graph of a plan, whose edits name its parts.
func planText(graph any) string {
	raw, err := schema.CanonicalJSON(graph)
	if err != nil {
		return "?"
	}
	return string(raw)
}

func join(parts ...string) string {
	return strings.Join(slices.DeleteFunc(parts, func(s string) bool { return s == "" }), " ")
}

func prefixed(prefix, s string) string {
	if s == "" {
		return ""
	}
	return prefix + s
}
