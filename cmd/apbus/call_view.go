package main

import (
	"maps"
	"slices"
	"strings"

	"github.com/apbus/apbus/internal/settings"
)

// callView shows one call while it runs and when it has ended.
type callView struct {
	s      *session
	stream bool
	bar    *progressBar
}

// listen has the request tell what the view shows.
func (v *callView) listen(r *callRequest) {
	if settings.IsTerminal(v.s.spec.Stderr) {
		v.bar = &progressBar{w: v.s.spec.Stderr, name: r.id}
		r.progress = v.bar.report
	}
	if v.stream {
		r.chunk = v.chunk
	}
}

// chunk prints one part: a JSON line with --json and for programs, and for people
// the text that is in it, when there is one.
func (v *callView) chunk(seq uint64, chunk map[string]any) error {
	v.bar.clear()
	p := v.s.stdout
	if p.json {
		return p.document(map[string]any{"seq": seq, "data": chunk})
	}
	if text, ok := textOf(chunk); ok && p.terminal {
		return p.line("%s", printable(text))
	}
	return p.line("%s", inline(chunk))
}

// textOf finds the text of a chunk that carries one text and besides it nothing but
// numbers and flags.
func textOf(chunk map[string]any) (text string, ok bool) {
	for _, key := range slices.Sorted(maps.Keys(chunk)) {
		switch v := chunk[key].(type) {
		case string:
			if ok {
				return "", false
			}
			text, ok = v, true
		case nil, bool, int64, uint64, float64:
		default:
			return "", false
		}
	}
	return text, ok
}

// finished prints what is left to print of a call that succeeded.
func (v *callView) finished(r *callResult, withTrace bool) error {
	p := v.s.stdout
	if p.json {
		doc := r.output
		switch {
		case v.stream:
			doc = map[string]any{"end": r.output, "count": r.chunks}
		case withTrace:
			doc = map[string]any{"output": r.output}
		}
		if withTrace {
			doc["trace"] = r.trace
		}
		return p.document(doc)
	}
	if !v.stream {
		if err := p.document(r.output); err != nil {
			return err
		}
	}
	return v.showTrace(r)
}

// failed is err, with the trace shown or taken along.
func (v *callView) failed(r *callResult, err error) error {
	if r == nil || r.trace == nil {
		return err
	}
	if v.s.stdout.json {
		return &tracedError{error: err, trace: r.trace}
	}
	if printing := v.showTrace(r); printing != nil {
		return printing
	}
	return err
}

func (v *callView) showTrace(r *callResult) error {
	if r.trace == nil {
		return nil
	}
	for _, line := range traceTree(v.s.stdout, r.trace) {
		if err := v.s.stdout.line("%s", strings.TrimRight(line, " ")); err != nil {
			return err
		}
	}
	return nil
}
