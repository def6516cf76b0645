package main

import (
	"fmt"
	"strings"

	"github.com/apbus/apbus/cancel"
	"github.com/apbus/apbus/internal/settings"
)

// cancelCmd stops calls.
type cancelCmd struct {
	Call   string `arg:"" optional:"" help:"The call to stop."`
	Root   string `local:"" placeholder:"CALL" help:"Stop everything that began with this call."`
	Task   string `local:"" placeholder:"TASK" help:"Cancel this task, with its calls and the tasks it submitted."`
	Trace  string `local:"" placeholder:"TRACE" help:"Stop everything of this trace."`
	Reason string `local:"" placeholder:"TEXT" help:"Why, for the logs and for the callers."`
}

// Run cancels.
func (c *cancelCmd) Run(s *session) error {
	if c.Task != "" {
		if c.Call != "" || c.Root != "" || c.Trace != "" {
			return settings.Usagef("give one of CALL, --root, --task and --trace")
		}
		return (&taskTargets{IDs: []string{c.Task}, Reason: c.Reason}).do(s, "cancel")
	}
	sel := cancel.Selector{Call: c.Call, Root: c.Root, Trace: c.Trace}
	if sel.Valid() != nil {
		return settings.Usagef("give one of CALL, --root, --task and --trace")
	}
	return s.with(func(b backend) error {
		res, err := b.Cancel(s.ctx, sel, c.Reason)
		if err != nil {
			return err
		}
		if s.stdout.json {
			err = s.stdout.document(res.document())
		} else if res.state != stateUnknown {
			err = showCancelled(s.stdout, res)
		}
		if err == nil && res.state == stateUnknown {
			const unknown = "nobody knows such a call: it is over, or it never began"
			fmt.Fprintln(s.spec.Stderr, "apbus:", unknown)
			return &toldError{text: unknown}
		}
		return err
	})
}

func showCancelled(p *printer, c *cancelled) error {
	if !p.terminal {
		rows := [][]string{}
		for _, call := range c.calls {
			rows = append(rows, []string{call, c.state, strings.Join(c.nodes, ",")})
		}
		return p.table(nil, rows)
	}
	calls := fmt.Sprintf("%d calls", len(c.calls))
	if len(c.calls) == 1 {
		calls = "1 call"
	}
	where := ""
	if len(c.nodes) > 0 {
		where = " on " + strings.Join(c.nodes, ", ")
	}
	if err := p.line("%s: %s%s", c.state, calls, where); err != nil {
		return err
	}
	for _, call := range c.calls {
		if err := p.line("  %s", printable(call)); err != nil {
			return err
		}
	}
	return nil
}
