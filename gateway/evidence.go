package gateway

import (
	"context"
	"errors"
	"iter"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/apbus/apbus/contextwire"
)

// Evidence knows what happened: the records of calls, denials and decisions.
type Evidence interface {
	// Evidence answers a query: the newest matches, oldest first.
	Evidence(ctx context.Context, q contextwire.EvidenceQuery) (contextwire.EvidencePage, error)
	// Follow ranges over the matches after a sequence as they come, until ctx ends.
	Follow(ctx context.Context, q contextwire.EvidenceQuery, after uint64) iter.Seq2[contextwire.EvidenceItem, error]
}

// noEvidence is that of a gateway without a store for it.
type noEvidence struct{}

func (noEvidence) Evidence(context.Context, contextwire.EvidenceQuery) (contextwire.EvidencePage, error) {
	return contextwire.EvidencePage{}, notImplemented("evidence")
}

func (noEvidence) Follow(context.Context, contextwire.EvidenceQuery, uint64) iter.Seq2[contextwire.EvidenceItem, error] {
	return func(yield func(contextwire.EvidenceItem, error) bool) {
		yield(contextwire.EvidenceItem{}, notImplemented("evidence"))
	}
}

// evidenceRoutes show what happened. A record holds redacted inputs of everybody's
// calls, so it takes more than the right to call.
func (g *Gateway) evidenceRoutes() []*route {
	return []*route{{
		method: http.MethodGet, pattern: "/v1/evidence", operation: "listEvidence",
		summary: "What happened: finished calls, denials, decisions, redacted", scope: ScopeOperate, class: control,
		query: []param{
			{"module", "Only records of this module."},
			{"type", "Only records of these types, with commas: call, stream, task, acl, approval, note."},
			{"code", "Only failures with this code."},
			{"since", "Only what ended since: an RFC 3339 time, or an age such as 2h."},
			{"before", "Only records before this sequence, to page back."},
			{"limit", "Most records, 100 when absent, at most 1000; of more the newest."},
			{"follow", "1 answers with an event stream of what comes from now on; so does Accept: text/event-stream."},
		},
		headers: []param{{"Last-Event-ID", "Follow from after this sequence."}},
		answers: []outcome{
			{200, "EvidenceList", "The records, oldest first. When following: Server-Sent Events named evidence, whose id is the sequence."},
		},
		handle: g.listEvidence,
	}}
}

// listEvidence serves GET /v1/evidence.
func (g *Gateway) listEvidence(x *exchange) error {
	v := x.r.URL.Query()
	q, err := contextwire.ParseEvidenceQuery(v, time.Now())
	if err != nil {
		return err
	}
	follow := strings.Contains(x.r.Header.Get("Accept"), "text/event-stream")
	switch v.Get("follow") {
	case "", "0":
	case "1":
		follow = true
	default:
		return invalid("query parameter follow is neither 0 nor 1")
	}
	if follow {
		return g.followEvidence(x, q)
	}
	page, err := g.evidence.Evidence(x.r.Context(), q)
	if err != nil {
		return err
	}
	list := make([]any, 0, len(page.Items))
	for _, item := range page.Items {
		m, err := item.Map()
		if err != nil {
			return err //nolint:wrapcheck // coded
		}
		list = append(list, m)
	}
	return x.json(http.StatusOK, map[string]any{"evidence": list, "last": int64(page.Last), "more": page.More}) //nolint:gosec // a stream does not get so far
}

// followEvidence serves it as events, until the reader leaves or the router stops.
// Without a place to begin it begins now.
func (g *Gateway) followEvidence(x *exchange, q contextwire.EvidenceQuery) error {
	ctx, stop := context.WithCancelCause(x.r.Context())
	defer stop(errors.New("the reader has left"))
	defer context.AfterFunc(g.watching, func() { stop(context.Cause(g.watching)) })()
	after, err := g.followFrom(ctx, x)
	if err != nil {
		return err
	}
	events := g.openEvents(x)
	defer events.close()
	defer events.whileOpen(ctx)()
	for item, err := range g.evidence.Follow(ctx, q, after) {
		if err != nil {
			if events.plain() {
				return err
			}
			return nil // the reader comes back with the last sequence it has
		}
		m, err := item.Map()
		if err != nil {
			continue
		}
		if events.event("evidence", sequence(item.Seq), m) != nil {
			return nil // the reader takes nothing more
		}
	}
	return nil
}

// followFrom is the sequence after which a reader wants to follow.
func (g *Gateway) followFrom(ctx context.Context, x *exchange) (uint64, error) {
	if text := x.r.Header.Get("Last-Event-ID"); text != "" {
		n, err := strconv.ParseUint(text, 10, 63)
		if err != nil {
			return 0, invalid("header Last-Event-ID is no sequence")
		}
		return n, nil
	}
	page, err := g.evidence.Evidence(ctx, contextwire.EvidenceQuery{Limit: 1})
	return page.Last, err //nolint:wrapcheck // coded
}

func evidenceSchemas() map[string]any {
	text, integer, flag := typed("string"), typed("integer"), typed("boolean")
	types := make([]any, 0, len(contextwire.EvidenceTypes()))
	for _, t := range contextwire.EvidenceTypes() {
		types = append(types, string(t))
	}
	return map[string]any{
		"Evidence": record([]string{"hash", "seq", "type", "time", "v"}, map[string]any{
			"hash": text, "seq": integer, "v": integer, "type": map[string]any{"type": "string", "enum": types},
			"time": text, "ns": text, "node": text, "boot": text, "n": integer, "module_id": text, "version": text,
			"call": text, "attempt": integer, "root": text, "parent": text, "trace_id": text, "caller_id": text, "call_chain": listOf(text),
			"identity": record(nil, map[string]any{"id": text, "type": text}), "mode": text, "task_id": text, "task_attempt": integer,
			"outcome": text, "code": text, "message": text, "origin": text, "retryable": flag, "unexecuted": flag, "made_here": flag,
			"duration_ms": typed("number"), "timeout_ms": integer, "budget_ms": integer, "retries": integer, "chunks": integer,
			"inputs": typed("object"), "input_bytes": integer, "side": text, "fields": listOf(text),
			"by": text, "role": text, "text": text, "guidance": listOf(text),
		}),
		"EvidenceList": record([]string{"evidence", "last", "more"}, map[string]any{
			"evidence": listOf(ref("Evidence")), "last": integer, "more": flag,
		}),
	}
}
