package main

import (
	"context"
	"fmt"
	"net/http"

	"github.com/apbus/apbus/bus"
	"github.com/apbus/apbus/internal/settings"
)

// doctorCmd looks for misconfigurations of the bus.
type doctorCmd struct {
	Role string `local:"" default:"router" enum:"router,node" help:"Whose permissions are looked at, with --nats: ${enum}."`
}

// Help says what the exit code means.
func (*doctorCmd) Help() string {
	return `The router looks with its own credentials and, where the NATS server is inside it,
into that server; with --nats this program looks with its own, from outside.
Exits with 0 when there is nothing worse than a warning, else with 1.`
}

// Run looks and shows what was found.
func (c *doctorCmd) Run(s *session) error {
	checks, err := c.examine(s)
	if err != nil {
		return err
	}
	bad := 0
	for _, check := range checks {
		for _, f := range objects(check["findings"]) {
			if f["severity"] == string(bus.SeverityError) {
				bad++
			}
		}
	}
	if s.stdout.json {
		err = s.stdout.document(map[string]any{"checks": anyMaps(checks)})
	} else {
		err = showDiagnosis(s.stdout, checks)
	}
	if err == nil && bad > 0 {
		return &toldError{text: fmt.Sprintf("%d things are wrong", bad)}
	}
	return err
}

// examine asks the router, or looks itself.
func (c *doctorCmd) examine(s *session) ([]map[string]any, error) {
	if len(s.flags.NATS) > 0 {
		return c.look(s.ctx, s)
	}
	if c.Role != string(bus.RoleRouter) {
		return nil, settings.Usagef("--role %s is for --nats; the router looks with its own permissions", c.Role)
	}
	b, err := newHTTPBackend(s.flags.Router, s.flags.Token, s.spec.Version)
	if err != nil {
		return nil, err
	}
	defer b.Close()
	doc, _, err := b.send(s.ctx, ask{method: http.MethodGet, path: []string{"v1", "doctor"}})
	if err != nil {
		return nil, err
	}
	return objects(doc["checks"]), nil
}

func (c *doctorCmd) look(ctx context.Context, s *session) ([]map[string]any, error) {
	checks, err := bus.Diagnose(ctx, bus.Options{Servers: s.flags.NATS, Name: clientName, Creds: s.flags.Creds, Logger: s.log},
		bus.DoctorOptions{Namespace: s.flags.NS, Role: bus.Role(c.Role)})
	if err != nil {
		return nil, err
	}
	out := make([]map[string]any, len(checks))
	for i, check := range checks {
		findings := make([]any, len(check.Findings))
		for j, f := range check.Findings {
			findings[j] = map[string]any{"severity": string(f.Severity), "what": f.What, "problem": f.Problem, "mend": f.Mend}
		}
		out[i] = map[string]any{"check": check.Name, "state": string(check.State), "note": nil, "findings": findings}
		if check.Note != "" {
			out[i]["note"] = check.Note
		}
	}
	return out, nil
}

// showDiagnosis prints a line for each check and below it what was found.
func showDiagnosis(p *printer, checks []map[string]any) error {
	for _, check := range checks {
		findings := objects(check["findings"])
		state, note := text(check["state"]), printable(text(check["note"]))
		switch {
		case state == string(bus.CheckOK):
			state = p.green("ok")
		case state == string(bus.CheckSkipped):
			state = "not looked at"
		default:
			state = fmt.Sprintf("%d found", len(findings))
		}
		line := fmt.Sprintf("%-18s %s", printable(text(check["check"])), state)
		if note != "" {
			line += " (" + note + ")"
		}
		if err := p.line("%s", line); err != nil {
			return err
		}
		for _, f := range findings {
			severity := printable(text(f["severity"]))
			if severity == string(bus.SeverityError) {
				severity = p.red(severity)
			}
			if err := p.line("  %s  %s\n    %s\n    mend: %s", severity, printable(text(f["what"])), printable(text(f["problem"])), printable(text(f["mend"]))); err != nil {
				return err
			}
		}
	}
	return nil
}
