package main

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/apbus/apbus/internal/settings"
)

// recsCmd is for those who decide about what the loop proposes.
type recsCmd struct {
	List     recsListCmd     `cmd:"" default:"1" help:"List what the loop proposes, the most severe first."`
	Show     recsShowCmd     `cmd:"" help:"Show one: what it would change in full, its evidence, its history."`
	Approve  recsApproveCmd  `cmd:"" help:"Approve one; nothing is applied by it."`
	Reject   recsRejectCmd   `cmd:"" help:"Reject one, and keep its like away for a while."`
	Apply    recsApplyCmd    `cmd:"" help:"Apply one that is approved."`
	Rollback recsRollbackCmd `cmd:"" help:"Take one back that was applied."`
}

// withRouter opens the way to the router for the time of f; what needs one does not
// go without.
func (s *session) withRouter(what string, f func(*httpBackend) error) error {
	if len(s.flags.NATS) > 0 {
		return settings.Usagef("%s need a router, which knows who asks; they do not go with --nats", what)
	}
	b, err := newHTTPBackend(s.flags.Router, s.flags.Token, s.spec.Version)
	if err != nil {
		return err
	}
	defer b.Close()
	return f(b)
}

const recsAre = "recommendations"

type recsListCmd struct {
	State    string `local:"" default:"pending" placeholder:"STATE,…" help:"Only those in these states: pending, approved, rejected, applied, rolled_back, expired, withdrawn, or all."`
	Severity string `local:"" placeholder:"LEVEL" help:"Only those at least so severe: info, low, medium, high."`
	Module   string `local:"" placeholder:"ID" help:"Only those about this module."`
	Origin   string `local:"" placeholder:"KIND" help:"Only those of an analyzer (builtin) or of a model (llm)."`
	Cursor   string `local:"" placeholder:"CURSOR" help:"Go on after a page that told this cursor."`
}

// shortHash is how much of a hash lists show; the router takes it for the whole.
const shortHash = 12

// Run lists a page.
func (c *recsListCmd) Run(s *session) error {
	return s.withRouter(recsAre, func(b *httpBackend) error {
		state := c.State
		if state == anyState {
			state = ""
		}
		q := url.Values{}
		for key, value := range map[string]string{
			"state": state, "severity": c.Severity, "module": c.Module, "origin": c.Origin, "cursor": c.Cursor,
		} {
			if value != "" {
				q.Set(key, value)
			}
		}
		doc, err := b.tell(s.ctx, http.MethodGet, []string{recsAre}, q, nil)
		if err != nil {
			return err
		}
		if s.stdout.json {
			return s.stdout.document(doc)
		}
		var rows [][]string
		items, _ := doc[recsAre].([]any)
		for _, item := range items {
			r, _ := item.(map[string]any)
			hash := text(r["hash"])
			rows = append(rows, []string{
				hash[:min(len(hash), shortHash)], text(r["severity"]), text(r["state"]), proposalOf(r), text(r["target"]), text(r["summary"]),
			})
		}
		if err := s.stdout.table([]string{"RECOMMENDATION", "SEVERITY", "STATE", "KIND", "TARGET", "SUMMARY"}, rows); err != nil {
			return err
		}
		if next := text(doc["next_cursor"]); next != "" {
			fmt.Fprintf(s.spec.Stderr, "there are more: --cursor %s\n", printable(next))
		}
		if n := number(doc["unreadable"]); n > 0 {
			fmt.Fprintf(s.spec.Stderr, "%d recommendations cannot be read and are left out\n", int(n))
		}
		return nil
	})
}

// proposalOf is what a model proposed, or what an analyzer would have done.
func proposalOf(r map[string]any) string {
	kind := text(r["kind"])
	if kind == "" {
		kind = text(r["action"])
	}
	if r["executable"] != true {
		kind += " (advice)"
	}
	return kind
}

type recsShowCmd struct {
	Hash string `arg:"" help:"Its hash, or the first 12 digits of it or more."`
}

// Run shows one.
func (c *recsShowCmd) Run(s *session) error {
	return s.withRouter(recsAre, func(b *httpBackend) error {
		doc, err := b.tell(s.ctx, http.MethodGet, []string{recsAre, c.Hash}, nil, nil)
		if err != nil {
			return err
		}
		if s.stdout.json {
			return s.stdout.document(doc)
		}
		return showRec(s.stdout, doc)
	})
}

// recDecision is a decision and the reason that each needs.
type recDecision struct {
	Hash    string `arg:"" help:"Its hash, or the first 12 digits of it or more."`
	Because string `local:"" required:"" aliases:"reason" placeholder:"TEXT" help:"Why, in at most 500 characters; it is kept with the decision."`
}

type recsApproveCmd struct{ recDecision }

// Run approves.
func (c *recsApproveCmd) Run(s *session) error { return c.take(s, "approve", nil) }

type recsRejectCmd struct{ recDecision }

// Run rejects.
func (c *recsRejectCmd) Run(s *session) error { return c.take(s, "reject", nil) }

type recsApplyCmd struct {
	recDecision
	AllowDestructive bool `local:"" help:"Apply what cannot be undone, which takes an administrator."`
}

// Run applies.
func (c *recsApplyCmd) Run(s *session) error {
	var more map[string]any
	if c.AllowDestructive {
		more = map[string]any{"allow_destructive": true}
	}
	return c.take(s, "apply", more)
}

type recsRollbackCmd struct{ recDecision }

// Run rolls back.
func (c *recsRollbackCmd) Run(s *session) error { return c.take(s, "rollback", nil) }

func (c *recDecision) take(s *session, act string, more map[string]any) error {
	if strings.TrimSpace(c.Because) == "" {
		return settings.Usagef("--because must not be empty")
	}
	return s.withRouter(recsAre, func(b *httpBackend) error {
		body := map[string]any{"because": c.Because}
		for key, value := range more {
			body[key] = value
		}
		doc, err := b.tell(s.ctx, http.MethodPost, []string{recsAre, c.Hash, act}, nil, body)
		if err != nil {
			return err
		}
		if s.stdout.json {
			return s.stdout.document(doc)
		}
		hash := text(doc["hash"])
		state := text(doc["state"])
		shown := s.stdout.green(state)
		if act == "reject" || act == "rollback" {
			shown = s.stdout.red(state)
		}
		return s.stdout.line("%s %s: %s", shown, printable(hash[:min(len(hash), shortHash)]), printable(text(doc["summary"])))
	})
}
