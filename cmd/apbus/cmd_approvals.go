package main

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/apbus/apbus/internal/settings"
	"github.com/apbus/apbus/module"
)

// approvalsCmd is for those who decide about calls that wait for a person.
type approvalsCmd struct {
	List    approvalsListCmd    `cmd:"" default:"1" help:"List the requests, newest first."`
	Show    approvalsShowCmd    `cmd:"" help:"Show a request and what the call would change."`
	Approve approvalsApproveCmd `cmd:"" help:"Let a call run, once."`
	Reject  approvalsRejectCmd  `cmd:"" help:"Refuse a call."`
}

// reviews is what deciding needs of a router. Maps are those of the HTTP API.
type reviews interface {
	Approvals(ctx context.Context, f approvalFilter) (map[string]any, error)
	Approval(ctx context.Context, id string) (map[string]any, error)
	Decide(ctx context.Context, id string, approve bool, reason string) (map[string]any, error)
}

// approvalFilter selects requests; "" is everything.
type approvalFilter struct{ state, module, cursor string }

// withReviews opens the way to the router for the time of f.
func (s *session) withReviews(f func(reviews) error) error {
	if len(s.flags.NATS) > 0 {
		return settings.Usagef("approvals need a router, which knows who decides; they do not go with --nats")
	}
	b, err := newHTTPBackend(s.flags.Router, s.flags.Token, s.spec.Version)
	if err != nil {
		return err
	}
	defer b.Close()
	return f(b)
}

// anyState lists requests in every state.
const anyState = "all"

type approvalsListCmd struct {
	State  string `local:"" default:"pending" enum:"pending,approved,rejected,claimed,withdrawn,expired,all" help:"Only requests in this state: pending, approved, rejected, claimed, withdrawn, expired, or all."`
	Module string `local:"" placeholder:"ID" help:"Only requests for this module."`
	Cursor string `local:"" placeholder:"CURSOR" help:"Go on after a page that told this cursor."`
}

// Run lists a page of requests.
func (c *approvalsListCmd) Run(s *session) error {
	return s.withReviews(func(r reviews) error {
		f := approvalFilter{state: c.State, module: c.Module, cursor: c.Cursor}
		if c.State == anyState {
			f.state = ""
		}
		doc, err := r.Approvals(s.ctx, f)
		if err != nil {
			return err
		}
		if s.stdout.json {
			return s.stdout.document(doc)
		}
		var rows [][]string
		items, _ := doc["approvals"].([]any)
		for _, item := range items {
			a, _ := item.(map[string]any)
			rows = append(rows, []string{
				text(a["approval_id"]), text(a["state"]), text(a["module_id"]), askerOf(a), text(a["created_at"]), text(a["expires_at"]),
				strings.Join(summariesOf(a), "; "),
			})
		}
		if err := s.stdout.table([]string{"APPROVAL", "STATE", "MODULE", "ASKED BY", "CREATED", "EXPIRES", "WOULD"}, rows); err != nil {
			return err
		}
		if next := text(doc["next_cursor"]); next != "" {
			fmt.Fprintf(s.spec.Stderr, "there are more: --cursor %s\n", printable(next))
		}
		return nil
	})
}

type approvalsShowCmd struct {
	ID string `arg:"" help:"The request."`
}

// Run shows a request.
func (c *approvalsShowCmd) Run(s *session) error {
	return s.withReviews(func(r reviews) error {
		doc, err := r.Approval(s.ctx, c.ID)
		if err != nil {
			return err
		}
		if s.stdout.json {
			return s.stdout.document(doc)
		}
		return showApproval(s.stdout, doc)
	})
}

// because is the reason that every decision needs.
type because struct {
	ID     string `arg:"" help:"The request."`
	Reason string `local:"" required:"" aliases:"because" placeholder:"TEXT" help:"Why; it is kept with the decision and told to the caller."`
}

type approvalsApproveCmd struct{ because }

// Run approves.
func (c *approvalsApproveCmd) Run(s *session) error { return c.decide(s, true) }

type approvalsRejectCmd struct{ because }

// Run rejects.
func (c *approvalsRejectCmd) Run(s *session) error { return c.decide(s, false) }

func (c *because) decide(s *session, approve bool) error {
	if strings.TrimSpace(c.Reason) == "" {
		return settings.Usagef("--reason must not be empty")
	}
	return s.withReviews(func(r reviews) error {
		doc, err := r.Decide(s.ctx, c.ID, approve, c.Reason)
		if err != nil {
			return err
		}
		if s.stdout.json {
			return s.stdout.document(doc)
		}
		id := text(doc["module_id"])
		if !approve {
			return s.stdout.line("%s %s: %s will not run", s.stdout.red("rejected"), printable(c.ID), printable(id))
		}
		return s.stdout.line("%s %s: %s may run once, until %s", s.stdout.green("approved"), printable(c.ID), printable(id), printable(text(doc["expires_at"])))
	})
}

// askerOf is who the call acts for, or who made it.
func askerOf(a map[string]any) string {
	identity, _ := a["identity"].(map[string]any)
	who := text(identity["id"])
	if caller := text(a["caller_id"]); caller != "" {
		who += " via " + caller
	}
	if who = strings.TrimSpace(who); who == "" {
		return "-"
	}
	return who
}

func summariesOf(a map[string]any) []string {
	var list []string
	for _, c := range changesOf(a) {
		list = append(list, c.Summary)
	}
	return list
}

// changesOf reads the predicted changes; one that is malformed is left out.
func changesOf(a map[string]any) []module.Change {
	items, _ := a["predicted_changes"].([]any)
	var list []module.Change
	for _, item := range items {
		m, _ := item.(map[string]any)
		if c, err := module.ChangeFromMap(m); err == nil {
			list = append(list, c)
		}
	}
	return list
}

func showApproval(p *printer, a map[string]any) error {
	facts := [][2]string{
		{text(a["module_id"]), text(a["version"])},
		{"", text(a["description"])},
		{"approval", text(a["approval_id"])},
		{"state", text(a["state"])},
		{"asked by", askerOf(a)},
		{"behaviour", behaviour(a)},
		{"needed because", text(a["required_because"])},
		{"created", text(a["created_at"])},
		{"expires", text(a["expires_at"])},
		{"used", text(a["claimed_at"])},
		{"trace", text(a["trace_id"])},
		{"may be added to by", strings.Join(texts(a["enrichers"]), ", ")},
	}
	if d, decided := a["decision"].(map[string]any); decided {
		facts = append(facts,
			[2]string{"decision", fmt.Sprintf("%s by %s at %s", text(d["decision"]), text(d["by"]), text(d["at"]))},
			[2]string{"reason", text(d["reason"])})
	}
	if err := p.facts(facts); err != nil {
		return err
	}
	if err := p.line("\n%s", p.bold("inputs")); err != nil {
		return err
	}
	inputs, _ := a["inputs"].(map[string]any)
	rows := make([][]string, 0, len(inputs))
	for _, key := range slices.Sorted(maps.Keys(inputs)) {
		rows = append(rows, []string{key, inline(inputs[key])})
	}
	if err := p.table([]string{"NAME", "VALUE"}, rows); err != nil {
		return err
	}
	if err := p.line("\n%s", p.bold("what would change")); err != nil {
		return err
	}
	if err := showEffects(p, changesOf(a)); err != nil {
		return err
	}
	for _, w := range texts(a["warnings"]) {
		if err := p.line("warning: %s", printable(w)); err != nil {
			return err
		}
	}
	return nil
}

// showEffects shows changes as a table of before and after, a line for each field
// that changes.
func showEffects(p *printer, changes []module.Change) error {
	if len(changes) == 0 {
		return p.line("no changes are predicted")
	}
	var rows [][]string
	for _, c := range changes {
		if err := p.line("%s", printable(c.Summary)); err != nil {
			return err
		}
		for _, field := range fieldsOf(c) {
			rows = append(rows, append([]string{c.Action, c.Target}, field...))
		}
	}
	return p.table([]string{"ACTION", "TARGET", "FIELD", "BEFORE", "AFTER"}, rows)
}

// fieldsOf lists field, before and after of what changes; a value that is no
// object has the field "-".
func fieldsOf(c module.Change) [][]string {
	before, beforeIs := c.Before.Value.(map[string]any)
	after, afterIs := c.After.Value.(map[string]any)
	if (!beforeIs && c.Before.Set) || (!afterIs && c.After.Set) || (!beforeIs && !afterIs) {
		return [][]string{{"-", known(c.Before), known(c.After)}}
	}
	all := maps.Clone(before)
	if all == nil {
		all = map[string]any{}
	}
	maps.Copy(all, after)
	var rows [][]string
	for _, key := range slices.Sorted(maps.Keys(all)) {
		b, hadIt := before[key]
		a, hasIt := after[key]
		if hadIt && hasIt && reflect.DeepEqual(a, b) {
			continue
		}
		rows = append(rows, []string{key, known(module.Optional{Set: hadIt, Value: b}), known(module.Optional{Set: hasIt, Value: a})})
	}
	if len(rows) == 0 {
		return [][]string{{"-", "as before", "as before"}}
	}
	return rows
}
