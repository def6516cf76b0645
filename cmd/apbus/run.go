package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/internal/settings"
	"github.com/apbus/apbus/module"
)

// run executes one command line. What went wrong has been printed when it
// returns; the error decides the exit code only.
func run(ctx context.Context, spec settings.Spec, stdin io.Reader) error {
	if spec.Stdout == nil {
		spec.Stdout = io.Discard
	}
	if spec.Stderr == nil {
		spec.Stderr = io.Discard
	}
	flags := &cli{}
	res, err := settings.Parse(spec, flags)
	if err == nil && !res.Done {
		s := &session{
			ctx: ctx, flags: flags, model: res.Context.Model, spec: spec, stdin: stdin, log: res.Logger,
			stdout: &printer{w: spec.Stdout, json: flags.JSON, terminal: settings.IsTerminal(spec.Stdout)},
		}
		err = res.Context.Run(s)
		if err != nil && ctx.Err() != nil && !errors.Is(err, settings.ErrInterrupted) {
			err = fmt.Errorf("%w: %w", settings.ErrInterrupted, err)
		}
	}
	if err != nil {
		report(spec.Stdout, spec.Stderr, flags.JSON, err)
	}
	return err
}

// report prints an error for people and, with --json, for programs. Details are
// those of the coded error, whose values the owner of the module has redacted.
func report(stdout, stderr io.Writer, asJSON bool, err error) {
	var told *toldError
	if errors.As(err, &told) {
		return
	}
	coded := module.AsError(err)
	var usage *settings.UsageError
	if coded == nil || errors.As(err, &usage) || errors.Is(err, settings.ErrInterrupted) {
		fmt.Fprintln(stderr, "apbus:", err)
	} else {
		fmt.Fprintf(stderr, "%s: %s\n", coded.Code, printable(coded.Message))
		for _, line := range detailLines(coded) {
			fmt.Fprintln(stderr, "  "+printable(line))
		}
		var advised *advisedError
		if errors.As(err, &advised) {
			for _, line := range advised.advice {
				fmt.Fprintln(stderr, printable(line))
			}
		}
	}
	if asJSON {
		doc := map[string]any{"message": err.Error()}
		if coded != nil {
			doc = coded.Map()
		}
		answer := map[string]any{"error": doc}
		if traced, ok := errors.AsType[*tracedError](err); ok {
			answer["trace"] = traced.trace
		}
		if raw, err := contextwire.EncodeCanonical(contextwire.JSON, answer); err == nil {
			fmt.Fprintf(stdout, "%s\n", raw)
		}
	}
}

// tracedError is the failure of a call whose trace was asked for.
type tracedError struct {
	error
	trace map[string]any
}

func (e *tracedError) Unwrap() error { return e.error }

// advisedError is an error with what a person may do about it.
type advisedError struct {
	err    error
	advice []string
}

func (e *advisedError) Error() string { return e.err.Error() }
func (e *advisedError) Unwrap() error { return e.err }

// toldError is a failure that the command's own output has shown.
type toldError struct{ text string }

func (e *toldError) Error() string { return e.text }

func detailLines(e *module.Error) []string {
	var lines []string
	for _, key := range slices.Sorted(maps.Keys(e.Details)) {
		lines = append(lines, key+": "+inline(e.Details[key]))
	}
	add := func(key, value string) {
		if value != "" {
			lines = append(lines, key+": "+value)
		}
	}
	if cause := e.CauseText(); !strings.Contains(e.Message, cause) {
		add("cause", cause)
	}
	add("suggestion", e.Suggestion)
	if _, said := e.Details["module_id"]; !said {
		add("module", e.ModuleID)
	}
	add("trace", e.TraceID)
	if retry, known := e.Retryable.Bool(); known && retry {
		add("retryable", "yes")
	}
	return lines
}

// inline shows a value on one line: text as it is, all else as JSON.
func inline(v any) string {
	if s, ok := v.(string); ok {
		return s
	}
	raw, err := contextwire.EncodeCanonical(contextwire.JSON, v)
	if err != nil {
		return "?"
	}
	return string(raw)
}
