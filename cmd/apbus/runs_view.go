package main

import (
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/apbus/apbus/internal/settings"
)

// loopRunsCmd shows the journal of a plan.
type loopRunsCmd struct {
	Plan  string `arg:"" help:"The plan, plan.NAME."`
	Limit int    `default:"5" placeholder:"N" help:"Most runs, 1 to 100, the newest."`
}

// Run shows runs, the newest first.
func (c *loopRunsCmd) Run(s *session) error {
	const most = 100
	if c.Limit < 1 || c.Limit > most {
		return settings.Usagef("--limit must be from 1 to %d", most)
	}
	return s.withRouter("runs of plans", func(b *httpBackend) error {
		doc, err := b.tell(s.ctx, http.MethodGet, []string{loopIs, "runs", c.Plan}, url.Values{"limit": {strconv.Itoa(c.Limit)}}, nil)
		if err != nil {
			return err
		}
		if s.stdout.json {
			return s.stdout.document(doc)
		}
		runs, _ := doc["runs"].([]any)
		if len(runs) == 0 {
			return s.stdout.line("no run of %s is journaled", printable(c.Plan))
		}
		for i, item := range runs {
			if i > 0 {
				if err := s.stdout.line(""); err != nil {
					return err
				}
			}
			run, _ := item.(map[string]any)
			if err := showRun(s.stdout, run); err != nil {
				return err
			}
		}
		return nil
	})
}

// showRun shows one run as a timeline.
func showRun(p *printer, run map[string]any) error {
	begin := number(run["started_ms"])
	at := time.UnixMilli(int64(begin)).UTC().Format("2006-01-02T15:04:05.000Z")
	outcome := strings.TrimSpace(text(run["outcome"]) + " " + text(run["code"]))
	if node := text(run["failed_node"]); node != "" {
		outcome += " in " + node
	}
	err := p.facts([][2]string{
		{"", at + "  " + outcome}, {"run", text(run["id"])}, {"version", text(run["plan_hash"])}, {"node", text(run["node"])},
		{"call", text(run["call"])}, {"trace", text(run["trace_id"])}, {"for", text(run["identity_id"])},
		{"took", strconv.FormatFloat(number(run["ended_ms"])-begin, 'f', -1, 64) + " ms"},
	})
	if err != nil {
		return err
	}
	steps, _ := run["steps"].([]any)
	rows := make([][]string, 0, len(steps))
	for _, item := range steps {
		s, _ := item.(map[string]any)
		when, took := "", ""
		if started := number(s["started_ms"]); started > 0 {
			when = fmt.Sprintf("+%d ms", int64(started-begin))
			took = fmt.Sprintf("%d ms", int64(number(s["ended_ms"])-started))
		}
		output := "left out"
		switch {
		case text(s["outcome"]) != "ok":
			output = ""
		case s["output_left_out"] != true:
			output = shortly(s["output"])
		}
		rows = append(rows, []string{when, text(s["node"]), text(s["tool"]), roundOf(s), strings.TrimSpace(text(s["outcome"]) + " " + text(s["code"])), took, output})
	}
	if err := p.table([]string{"AT", "NODE", "MODULE", "ROUND", "OUTCOME", "TOOK", "OUTPUT"}, rows); err != nil {
		return err
	}
	decisions, _ := run["decisions"].([]any)
	for _, item := range decisions {
		d, _ := item.(map[string]any)
		held := "did not hold"
		if d["held"] == true {
			held = "held"
		}
		if err := p.line("edge %d, round %d: its condition %s", int(number(d["edge"])), int(number(d["generation"])), held); err != nil {
			return err
		}
	}
	if n := number(run["dropped"]); n > 0 {
		return p.line("%d more steps and conditions are not kept", int(n))
	}
	return nil
}

// roundOf is the round of a step in its cycle, and which attempt it was beyond the first.
func roundOf(s map[string]any) string {
	round := strconv.Itoa(int(number(s["generation"])))
	if n := int(number(s["attempt"])); n > 1 {
		round += fmt.Sprintf(", attempt %d", n)
	}
	return round
}

// shortly is a value in one line of a table.
func shortly(v any) string {
	const most = 80
	if v == nil {
		return "{}"
	}
	line := []rune(inline(v))
	if len(line) > most {
		return string(line[:most-1]) + "…"
	}
	return string(line)
}

// showReplay shows what a revision would have done in the place of journaled runs.
func showReplay(p *printer, r map[string]any) error {
	if err := p.line("\n%s", p.bold("in the place of earlier runs")); err != nil {
		return err
	}
	var counts []string
	for _, key := range []string{"same", "better", "worse", "out_of_support"} {
		if n := number(r[key]); n > 0 {
			counts = append(counts, fmt.Sprintf("%d %s", int(n), strings.ReplaceAll(key, "_", " ")))
		}
	}
	if len(counts) == 0 {
		counts = []string{"none"}
	}
	verdict := text(r["verdict"])
	if why := text(r["because"]); why != "" {
		verdict += ": " + why
	}
	var worse []string
	list, _ := r["worse_runs"].([]any)
	for _, id := range list {
		worse = append(worse, text(id)[:min(len(text(id)), shortHash)])
	}
	return p.facts([][2]string{
		{"runs", fmt.Sprintf("%d: %s", int(number(r["runs"])), strings.Join(counts, ", "))},
		{"calls", fmt.Sprintf("%d, with the revision %d", int(number(r["calls_before"])), int(number(r["calls_after"])))},
		{"worse", strings.Join(worse, " ")}, {"verdict", verdict},
	})
}
