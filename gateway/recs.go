package gateway

import (
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/apbus/apbus/loop"
	"github.com/apbus/apbus/module"
)

const (
	// maxRecs and usualRecs bound a page of recommendations.
	maxRecs   = 1000
	usualRecs = 100
	// minPrefix is how much of a hash names a recommendation, if only one.
	minPrefix  = 12
	hashLength = 64
)

// recRoutes are the queue of the loop (durable design, section 4).
func (g *Gateway) recRoutes() []*route {
	list := []*route{
		{
			method: http.MethodGet, pattern: "/v1/recommendations", operation: "listRecommendations",
			summary: "What the loop proposes, and what became of it", scope: ScopeReview, class: control,
			query: []param{
				{"state", "Only those in these states, with commas: pending, approved, rejected, applied, rolled_back, expired, withdrawn."},
				{"severity", "Only those at least so severe: info, low, medium, high."},
				{"origin", "Only those of an analyzer (builtin) or of a model (llm)."},
				{"module", "Only those about this module."}, {"analyzer", "Only those of this analyzer; a major version may be left out."},
				{"cursor", "next_cursor of the page before."}, {"limit", "Most of a page, 100 when absent, at most 1000."},
			},
			answers: []outcome{{200, "RecommendationList", "The most severe first, of equal ones the oldest."}},
			handle:  g.ofLoop(g.listRecs),
		},
		{
			method: http.MethodGet, pattern: "/v1/recommendations/{hash}", operation: "showRecommendation",
			summary: "One recommendation: what it would change, in full, its evidence and its history", scope: ScopeReview, class: control,
			answers: []outcome{
				{200, "Recommendation", "The recommendation. The first 12 digits of its hash or more will do where they name one only."},
				{404, "ErrorBody", "No such recommendation."},
			},
			handle: g.ofLoop(g.showRec),
		},
	}
	for _, act := range []struct {
		name, summary string
		scope         Scope
		take          func(x *exchange, who loop.Actor, hash string, body recDecision) (*loop.Case, error)
	}{
		{"approve", "Approve a pending recommendation; nothing is applied by it", ScopeReview, g.approveRec},
		{"reject", "Reject a pending recommendation, and keep its like away for a while", ScopeReview, g.rejectRec},
		{"apply", "Apply an approved recommendation", ScopeApply, g.applyRec},
		{"rollback", "Take an applied recommendation back", ScopeApply, g.rollBackRec},
	} {
		list = append(list, &route{
			method: http.MethodPost, pattern: "/v1/recommendations/{hash}/" + act.name, operation: act.name + "Recommendation",
			summary: act.summary + ", with a reason, which is kept", scope: act.scope, class: control, body: "RecommendationDecision",
			answers: []outcome{
				{200, "Recommendation", "The recommendation as it is now."},
				{403, "ErrorBody", "Who asked may not: the right is missing, it is their own, or a gate is not passed."},
				{404, "ErrorBody", "No such recommendation."},
				{409, "ErrorBody", "Somebody else was faster, or its state does not allow it."},
			},
			handle: g.ofLoop(g.decideRec(act.take)),
		})
	}
	return list
}

// ofLoop is a handler that needs the loop.
func (g *Gateway) ofLoop(next handler) handler {
	return func(x *exchange) error {
		if g.loop == nil {
			return notImplemented("the loop")
		}
		return next(x)
	}
}

// actor is who asks, to the loop. Whoever holds every scope of the loop and may
// operate is its administrator.
func actor(p *Principal) loop.Actor {
	scopes := []loop.Scope{loop.ScopeRead}
	if p.May(ScopeReview) {
		scopes = append(scopes, loop.ScopeReview)
	}
	if p.May(ScopeApply) {
		scopes = append(scopes, loop.ScopeApply)
	}
	if p.May(ScopeReview) && p.May(ScopeApply) && p.May(ScopeOperate) {
		scopes = append(scopes, loop.ScopeAdmin)
	}
	return loop.ActorFrom(p.Identity, scopes)
}

// listRecs serves GET /v1/recommendations.
func (g *Gateway) listRecs(x *exchange) error {
	f, err := recFilterOf(x.r.URL.Query())
	if err != nil {
		return err
	}
	cases, bad, err := g.loop.Queue(x.r.Context(), time.Now())
	if err != nil {
		return err //nolint:wrapcheck // coded
	}
	if f.cursor != "" {
		at := slices.IndexFunc(cases, func(c *loop.Case) bool { return c.Hash == f.cursor })
		if at < 0 {
			return invalid("query parameter cursor is none that a page gave")
		}
		cases = cases[at+1:]
	}
	list, next := []any{}, ""
	for _, c := range cases {
		if !f.admits(c) {
			continue
		}
		if len(list) == f.limit {
			next, _ = list[len(list)-1].(map[string]any)["hash"].(string)
			break
		}
		list = append(list, recView(g.loop, c))
	}
	return x.json(http.StatusOK, map[string]any{"recommendations": list, "next_cursor": orNull(next), "unreadable": int64(bad)})
}

type recFilter struct {
	states                           []loop.State
	severity                         loop.Severity
	origin, module, analyzer, cursor string
	limit                            int
}

func recFilterOf(q url.Values) (f recFilter, err error) {
	f = recFilter{
		severity: loop.Severity(q.Get("severity")), origin: q.Get("origin"), module: q.Get("module"),
		analyzer: q.Get("analyzer"), cursor: q.Get("cursor"), limit: usualRecs,
	}
	if text := q.Get("state"); text != "" {
		for s := range strings.SplitSeq(text, ",") {
			if !slices.Contains(recStates(), loop.State(s)) {
				return f, invalid("query parameter state names a state that there is not")
			}
			f.states = append(f.states, loop.State(s))
		}
	}
	switch {
	case f.severity != "" && f.severity.Rank() < 0:
		return f, invalid("query parameter severity is none of info, low, medium, high")
	case f.origin != "" && f.origin != loop.OriginBuiltin && f.origin != loop.OriginLLM:
		return f, invalid("query parameter origin is neither builtin nor llm")
	}
	if text := q.Get("limit"); text != "" {
		if f.limit, err = strconv.Atoi(text); err != nil || f.limit < 1 {
			return f, invalid("query parameter limit is no positive integer")
		}
		f.limit = min(f.limit, maxRecs)
	}
	return f, nil
}

func recStates() []loop.State {
	return []loop.State{
		loop.StatePending, loop.StateApproved, loop.StateRejected, loop.StateApplied,
		loop.StateRolledBack, loop.StateExpired, loop.StateWithdrawn,
	}
}

func (f *recFilter) admits(c *loop.Case) bool {
	if len(f.states) > 0 && !slices.Contains(f.states, c.Status.State) {
		return false
	}
	if f.severity != "" && c.Rec.Severity.Rank() < f.severity.Rank() || f.origin != "" && c.Rec.Origin.Kind != f.origin {
		return false
	}
	if f.analyzer != "" && c.Rec.Analyzer != f.analyzer && !strings.HasPrefix(c.Rec.Analyzer, f.analyzer+"/") {
		return false
	}
	if f.module == "" {
		return true
	}
	t, err := loop.ParseTarget(c.Rec.Target)
	return err == nil && t.Subject() == f.module
}

// showRec serves GET /v1/recommendations/{hash}.
func (g *Gateway) showRec(x *exchange) error {
	hash, err := g.recHash(x)
	if err != nil {
		return err
	}
	c, err := g.loop.Settled(x.r.Context(), time.Now(), hash)
	if err != nil {
		return err //nolint:wrapcheck // coded
	}
	return g.answerRec(x, c)
}

// answerRec answers with a recommendation in full.
func (g *Gateway) answerRec(x *exchange, c *loop.Case) error {
	cited, err := g.loop.Cited(x.r.Context(), c)
	if err != nil {
		return err //nolint:wrapcheck // coded
	}
	view, err := recInFull(g.loop, c, cited)
	if err != nil {
		return err
	}
	return x.json(http.StatusOK, view)
}

// recHash is the hash that a path names, in full or by its beginning.
func (g *Gateway) recHash(x *exchange) (string, error) {
	name := strings.ToLower(x.r.PathValue("hash"))
	if len(name) == hashLength {
		return name, nil
	}
	unknown := module.Errorf(module.CodeLoopNotFound, "no such recommendation")
	if len(name) < minPrefix || len(name) > hashLength {
		return "", unknown
	}
	cases, _, err := g.loop.Queue(x.r.Context(), time.Now())
	if err != nil {
		return "", err //nolint:wrapcheck // coded
	}
	found := ""
	for _, c := range cases {
		if !strings.HasPrefix(c.Hash, name) {
			continue
		}
		if found != "" {
			return "", module.Errorf(module.CodeLoopNotFound, "several recommendations begin like this")
		}
		found = c.Hash
	}
	if found == "" {
		return "", unknown
	}
	return found, nil
}

// recDecision is the body of a decision.
type recDecision struct {
	because     string
	destructive bool
}

func recDecisionOf(body map[string]any) (d recDecision, err error) {
	for key, v := range body {
		var ok bool
		switch key {
		case "because":
			d.because, ok = v.(string)
		case "allow_destructive":
			d.destructive, ok = v.(bool)
		default:
			return d, invalid("the body may hold because and allow_destructive only")
		}
		if !ok {
			return d, invalid("%s is of the wrong type", key)
		}
	}
	return d, nil
}

// decideRec serves POST /v1/recommendations/{hash}/{approve,reject,apply,rollback}.
func (g *Gateway) decideRec(take func(*exchange, loop.Actor, string, recDecision) (*loop.Case, error)) handler {
	return func(x *exchange) error {
		body, err := g.object(x)
		if err != nil {
			return err
		}
		d, err := recDecisionOf(body)
		if err != nil {
			return err
		}
		hash, err := g.recHash(x)
		if err != nil {
			return err
		}
		c, err := take(x, actor(x.principal), hash, d)
		if err != nil {
			return err
		}
		return g.answerRec(x, c)
	}
}

func (g *Gateway) approveRec(x *exchange, who loop.Actor, hash string, d recDecision) (*loop.Case, error) {
	return g.loop.Approve(x.r.Context(), time.Now(), who, hash, d.because) //nolint:wrapcheck // coded
}

func (g *Gateway) rejectRec(x *exchange, who loop.Actor, hash string, d recDecision) (*loop.Case, error) {
	return g.loop.Reject(x.r.Context(), time.Now(), who, hash, d.because) //nolint:wrapcheck // coded
}

func (g *Gateway) applyRec(x *exchange, who loop.Actor, hash string, d recDecision) (*loop.Case, error) {
	o := loop.ApplyOptions{AllowDestructive: d.destructive}
	return g.loop.Apply(x.r.Context(), time.Now(), who, hash, d.because, o) //nolint:wrapcheck // coded
}

func (g *Gateway) rollBackRec(x *exchange, who loop.Actor, hash string, d recDecision) (*loop.Case, error) {
	return g.loop.Rollback(x.r.Context(), time.Now(), who, hash, d.because) //nolint:wrapcheck // coded
}
