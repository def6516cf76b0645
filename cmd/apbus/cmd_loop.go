package main

import (
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/internal/settings"
)

// loopCmd is about the loop that learns from what happened.
type loopCmd struct {
	Status  loopStatusCmd  `cmd:"" default:"1" help:"Show the last pass, the queue and the analyzers."`
	Run     loopRunCmd     `cmd:"" help:"Make one pass. Whoever asks cannot approve what a model drafts in it."`
	Probe   loopProbeCmd   `cmd:"" help:"Ask the model for its name."`
	Evalset loopEvalsetCmd `cmd:"" help:"Set the cases that a code revision of a module must pass, or run them."`
	Runs    loopRunsCmd    `cmd:"" help:"Show what the newest runs of a plan did, step by step."`
}

const loopIs = "loop"

type loopStatusCmd struct{}

// Run shows the state.
func (c *loopStatusCmd) Run(s *session) error {
	return s.withRouter("questions about the loop", func(b *httpBackend) error {
		doc, err := b.tell(s.ctx, http.MethodGet, []string{loopIs}, nil, nil)
		if err != nil {
			return err
		}
		if s.stdout.json {
			return s.stdout.document(doc)
		}
		return showLoop(s.stdout, doc)
	})
}

func showLoop(p *printer, doc map[string]any) error {
	never := text(doc["last_run_at"])
	if never == "" {
		never = "never"
	}
	model := text(doc["model"])
	if model == "" {
		model = "none"
	}
	stale := ""
	if doc["stale"] == true {
		stale = "yes"
	}
	err := p.facts([][2]string{
		{"last pass", never}, {"model", model}, {"stale", stale},
		{"new records", fmt.Sprintf("%d, %d of them failures", int(number(doc["new_grains"])), int(number(doc["new_error_events"])))},
		{"recommendations", countsOf(doc["recommendations"])},
	})
	if err != nil {
		return err
	}
	if last, ok := doc["last_run"].(map[string]any); ok {
		if err := p.facts([][2]string{{"made by", text(last["router"])}, {"for", text(last["trigger"])}}); err != nil {
			return err
		}
		result, _ := last["result"].(map[string]any)
		if err := showPass(p, result); err != nil {
			return err
		}
	}
	if err := p.line("\n%s", p.bold("analyzers")); err != nil {
		return err
	}
	list, _ := doc["analyzers"].([]any)
	rows := make([][]string, 0, len(list))
	for _, item := range list {
		a, _ := item.(map[string]any)
		runs := "off"
		if a["runs"] == true {
			runs = "on"
		}
		rows = append(rows, []string{text(a["id"]), runs, text(a["description"])})
	}
	return p.table([]string{"ANALYZER", "RUNS", "LOOKS FOR"}, rows)
}

// countsOf shows counts by name, those above zero.
func countsOf(v any) string {
	m, _ := v.(map[string]any)
	var parts []string
	for _, key := range slices.Sorted(maps.Keys(m)) {
		if n := number(m[key]); n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", int(n), key))
		}
	}
	if len(parts) == 0 {
		return "none"
	}
	return strings.Join(parts, ", ")
}

// showPass shows what a pass did.
func showPass(p *printer, result map[string]any) error {
	if text(result["outcome"]) != "ran" {
		return p.line("skipped: %s", printable(text(result["skip_reason"])))
	}
	facts := [][2]string{
		{"proposed", fmt.Sprintf("%d, of which %d are new", int(number(result["proposed"])), int(number(result["stored"])))},
	}
	for _, key := range []string{"expired", "withdrawn", "measured", "drifted", "recovered"} {
		if n := number(result[key]); n > 0 {
			facts = append(facts, [2]string{key, fmt.Sprint(int(n))})
		}
	}
	if funnel, ok := result["llm_funnel"].(map[string]any); ok {
		var parts []string
		for _, key := range []string{"evidence", "proposed", "cited", "grounded", "kept", "stored"} {
			parts = append(parts, fmt.Sprintf("%s %d", key, int(number(funnel[key]))))
		}
		for _, key := range slices.Sorted(maps.Keys(funnel)) {
			if funnel[key] == true {
				parts = append(parts, strings.ReplaceAll(key, "_", " "))
			}
		}
		facts = append(facts, [2]string{"model", strings.Join(parts, ", ")})
	}
	if err := p.facts(facts); err != nil {
		return err
	}
	skipped, _ := result["analyzers_skipped"].([]any)
	for _, item := range skipped {
		a, _ := item.(map[string]any)
		if err := p.line("left out: %s: %s", printable(text(a["id"])), printable(text(a["reason"]))); err != nil {
			return err
		}
	}
	return nil
}

type loopRunCmd struct {
	FullSweep    bool          `local:"" help:"Show the model evidence that it has seen already."`
	MinNew       int           `local:"" placeholder:"N" help:"Only with so many new records, or what the other conditions say."`
	MinNewErrors int           `local:"" placeholder:"N" help:"Only with so many new failures."`
	IfStale      time.Duration `local:"" placeholder:"AGE" help:"Only when the last pass is so long ago, such as 6h."`
}

// Run makes a pass. One that was not due is no failure.
func (c *loopRunCmd) Run(s *session) error {
	if c.MinNew < 0 || c.MinNewErrors < 0 || c.IfStale < 0 {
		return settings.Usagef("--min-new, --min-new-errors and --if-stale must not be negative")
	}
	return s.withRouter("passes of the loop", func(b *httpBackend) error {
		body := map[string]any{}
		if c.FullSweep {
			body["full_sweep"] = true
		}
		for key, n := range map[string]int64{"min_new": int64(c.MinNew), "min_new_errors": int64(c.MinNewErrors), "if_stale_ms": c.IfStale.Milliseconds()} {
			if n > 0 {
				body[key] = n
			}
		}
		doc, err := b.tell(s.ctx, http.MethodPost, []string{loopIs, "run"}, nil, body)
		if err != nil {
			return err
		}
		if s.stdout.json {
			return s.stdout.document(doc)
		}
		return showPass(s.stdout, doc)
	})
}

type loopProbeCmd struct{}

// Run asks the model; one that does not answer is a failure.
func (c *loopProbeCmd) Run(s *session) error {
	return s.withRouter("questions about the loop", func(b *httpBackend) error {
		doc, err := b.tell(s.ctx, http.MethodGet, []string{loopIs}, url.Values{"probe": {"1"}}, nil)
		if err != nil {
			return err
		}
		probe, _ := doc["probe"].(map[string]any)
		if s.stdout.json {
			err = s.stdout.document(probe)
		} else if probe["ok"] == true {
			err = s.stdout.line("%s", printable(text(probe["model"])))
		}
		if err != nil || probe["ok"] == true {
			return err
		}
		if !s.stdout.json {
			fmt.Fprintln(s.spec.Stderr, "apbus:", printable(text(probe["message"])))
		}
		return &toldError{text(probe["message"])}
	})
}

type loopEvalsetCmd struct {
	ID    string `arg:"" help:"The module."`
	Cases string `arg:"" optional:"" help:"File of JSON with a list of {inputs, output}, - for standard input."`
	Try   bool   `local:"" help:"Call the module with its cases, and journal what they come to."`
}

// maxEvalset is the largest file of cases in bytes.
const maxEvalset = 1 << 20

// Run sets the cases.
func (c *loopEvalsetCmd) Run(s *session) error {
	if c.Try {
		return c.try(s)
	}
	if c.Cases == "" {
		return settings.Usagef("give a file of cases, or --try")
	}
	in := s.stdin
	if c.Cases != "-" {
		f, err := os.Open(c.Cases)
		if err != nil {
			return settings.Usagef("the cases: %w", err)
		}
		defer func() { _ = f.Close() }() // only read
		in = f
	}
	raw, err := io.ReadAll(io.LimitReader(in, maxEvalset+1))
	if err != nil {
		return fmt.Errorf("read the cases: %w", err)
	}
	if len(raw) > maxEvalset {
		return settings.Usagef("the cases are larger than %d bytes", maxEvalset)
	}
	body, err := contextwire.DecodeMap(contextwire.JSON, fmt.Appendf(nil, `{"cases":%s}`, raw), contextwire.Limits{})
	if err != nil {
		return settings.Usagef("the cases: %w", err)
	}
	return s.withRouter("evalsets", func(b *httpBackend) error {
		doc, err := b.tell(s.ctx, http.MethodPost, []string{loopIs, "evalsets", c.ID}, nil, body)
		if err != nil {
			return err
		}
		if s.stdout.json {
			return s.stdout.document(doc)
		}
		return s.stdout.line("%s", printable(text(doc["evalset_hash"])))
	})
}

// try runs the cases.
func (c *loopEvalsetCmd) try(s *session) error {
	if c.Cases != "" {
		return settings.Usagef("--try takes no file of cases")
	}
	return s.withRouter("evalsets", func(b *httpBackend) error {
		doc, err := b.tell(s.ctx, http.MethodPost, []string{loopIs, "evalsets", c.ID, "run"}, nil, nil)
		if err != nil {
			return err
		}
		if s.stdout.json {
			return s.stdout.document(doc)
		}
		return s.stdout.line("%d passed, %d failed, in %d ms", int(number(doc["passed"])), int(number(doc["failed"])), int(number(doc["duration_ms"])))
	})
}
