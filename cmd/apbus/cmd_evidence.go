package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/apbus/apbus/internal/settings"
)

// evidenceCmd shows what happened, and what happens.
type evidenceCmd struct {
	Module string   `local:"" placeholder:"ID" help:"Only records of this module."`
	Type   []string `local:"" placeholder:"TYPE" help:"Only records of these types: call, stream, task, acl, approval, note."`
	Code   string   `local:"" placeholder:"CODE" help:"Only failures with this code."`
	Since  string   `local:"" placeholder:"TIME" help:"Only what ended since: a time such as 2026-01-02T15:04:05Z, or an age such as 2h."`
	Limit  int      `local:"" default:"100" help:"Most records; of more the newest."`
	Follow bool     `local:"" help:"Go on with what happens from now on."`
}

// evidenceFilter selects records; "" is everything.
type evidenceFilter struct {
	module, types, code, since string
	limit                      int
}

// happenings is what looking at evidence needs of a router.
type happenings interface {
	Evidence(ctx context.Context, f evidenceFilter) (map[string]any, error)
	// FollowEvidence hands over each record after a sequence as it comes, until ctx
	// ends, show fails or the router leaves for good.
	FollowEvidence(ctx context.Context, f evidenceFilter, after string, show func(map[string]any) error) error
}

// Run lists records and follows them when asked to.
func (c *evidenceCmd) Run(s *session) error {
	if len(s.flags.NATS) > 0 {
		return settings.Usagef("evidence needs a router; it does not go with --nats")
	}
	if c.Limit < 1 || c.Limit > 1000 {
		return settings.Usagef("--limit must be within 1 and 1000")
	}
	b, err := newHTTPBackend(s.flags.Router, s.flags.Token, s.spec.Version)
	if err != nil {
		return err
	}
	defer b.Close()
	return c.show(s, b)
}

func (c *evidenceCmd) show(s *session, h happenings) error {
	f := evidenceFilter{module: c.Module, types: strings.Join(c.Type, ","), code: c.Code, since: c.Since, limit: c.Limit}
	doc, err := h.Evidence(s.ctx, f)
	if err != nil {
		return err
	}
	list, _ := doc["evidence"].([]any)
	if !c.Follow {
		if s.stdout.json {
			return s.stdout.document(doc)
		}
		if err := s.stdout.table(evidenceHeader, evidenceRows(list)); err != nil {
			return err
		}
		if doc["more"] == true && len(list) > 0 {
			fmt.Fprintln(s.spec.Stderr, "there are more: --limit and --since choose others")
		}
		return nil
	}
	show := func(e map[string]any) error {
		if s.stdout.json {
			return s.stdout.document(e)
		}
		return s.stdout.line("%s", strings.Join(clean(evidenceRow(e)), "\t"))
	}
	for _, item := range list {
		if e, ok := item.(map[string]any); ok {
			if err := show(e); err != nil {
				return err
			}
		}
	}
	return h.FollowEvidence(s.ctx, f, fmt.Sprint(doc["last"]), show)
}

var evidenceHeader = []string{"TIME", "TYPE", "MODULE", "OUTCOME", "CODE", "TOOK", "CALLER", "NODE", "WHAT"}

func evidenceRows(list []any) [][]string {
	rows := make([][]string, 0, len(list))
	for _, item := range list {
		if e, ok := item.(map[string]any); ok {
			rows = append(rows, evidenceRow(e))
		}
	}
	return rows
}

func evidenceRow(e map[string]any) []string {
	caller := text(e["caller_id"])
	if identity, _ := e["identity"].(map[string]any); caller == "" {
		caller = text(identity["id"])
	}
	what := text(e["message"])
	if what == "" {
		what = text(e["text"])
	}
	took := ""
	if ms := number(e["duration_ms"]); ms > 0 {
		took = (time.Duration(ms * float64(time.Millisecond))).Round(10 * time.Microsecond).String()
	}
	return []string{
		text(e["time"]), text(e["type"]), text(e["module_id"]), text(e["outcome"]), text(e["code"]), took, caller, text(e["node"]), what,
	}
}
