package main

import (
	"fmt"
	"strings"

	"github.com/apbus/apbus/module"
)

// checkCmd validates a call without making it.
type checkCmd struct{ inputFlags }

// Help says what the exit code means.
func (*checkCmd) Help() string {
	return "Exits with 0 when the call would be made and with 1 when it would be refused."
}

// Run checks the call.
func (c *checkCmd) Run(s *session) error {
	return s.with(func(b backend) error {
		r, closeInput, err := c.request(s, b)
		defer closeInput()
		if err != nil {
			return err
		}
		result, err := b.Check(s.ctx, r)
		if err != nil {
			return err
		}
		if s.stdout.json {
			err = s.stdout.document(result.Map())
		} else {
			err = showCheck(s.stdout, c.ID, result)
		}
		if err == nil && !result.Valid {
			return &toldError{text: "the call would be refused"}
		}
		return err
	})
}

func showCheck(p *printer, id string, r *module.PreflightResult) error {
	rows := make([][]string, 0, len(r.Checks))
	for _, c := range r.Checks {
		verdict, note := p.green("ok"), ""
		if !c.Passed {
			verdict = p.red("FAILED")
		}
		if c.Error != nil {
			note = c.Error.Error()
		}
		rows = append(rows, []string{c.Check, verdict, note})
	}
	if err := p.checkTable(rows); err != nil {
		return err
	}
	for _, c := range r.Checks {
		if c.Error == nil {
			continue
		}
		for _, line := range violations(c.Error) {
			if err := p.line("  %s", printable(line)); err != nil {
				return err
			}
		}
	}
	for _, w := range r.Warnings() {
		if err := p.line("warning: %s", printable(w)); err != nil {
			return err
		}
	}
	if err := showChanges(p, r.PredictedChanges); err != nil {
		return err
	}
	verdict := id + " would be called"
	switch {
	case !r.Valid:
		verdict = id + " would be refused"
	case r.RequiresApproval:
		verdict = id + " would wait for a person's approval"
	}
	return p.line("%s", p.bold(verdict))
}

// violations lists the places where the inputs do not fit the schema.
func violations(e *module.Error) []string {
	list, _ := e.Details["errors"].([]any)
	var out []string
	for _, item := range list {
		if v, ok := item.(map[string]any); ok {
			at := text(v["path"])
			if at == "" {
				at = "/"
			}
			out = append(out, fmt.Sprintf("%s: %s", at, text(v["message"])))
		}
	}
	return out
}

func showChanges(p *printer, changes []module.Change) error {
	if len(changes) == 0 {
		return p.line("no changes are predicted")
	}
	rows := make([][]string, 0, len(changes))
	for _, c := range changes {
		rows = append(rows, []string{c.Action, c.Target, known(c.Before), known(c.After), c.Summary})
	}
	if p.terminal {
		if err := p.line(""); err != nil {
			return err
		}
	}
	return p.table([]string{"ACTION", "TARGET", "BEFORE", "AFTER", "SUMMARY"}, rows)
}

func known(v module.Optional) string {
	if !v.Set {
		return "-"
	}
	return inline(v.Value)
}

// checkTable lays out check, verdict and note by hand: the verdicts are coloured,
// and colour codes have no width.
func (p *printer) checkTable(rows [][]string) error {
	if !p.terminal {
		return p.table(nil, rows)
	}
	width := 0
	for _, r := range rows {
		width = max(width, len(r[0]))
	}
	for _, r := range rows {
		line := fmt.Sprintf("%-*s  %s  %s", width, printable(r[0]), r[1], printable(r[2]))
		if err := p.line("%s", strings.TrimRight(line, " ")); err != nil {
			return err
		}
	}
	return nil
}
