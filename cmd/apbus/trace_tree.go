package main

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// traceLine is one line of a trace: what, how long, and what is to be said of it.
type traceLine struct {
	label string
	took  string
	note  string
}

// traceTree lays a pipeline trace out as a tree: the steps below the module, the
// hooks below their step, and the calls that the module made, and what another
// process did, below the step that ran or called it.
func traceTree(p *printer, trace map[string]any) []string {
	t := &treeWriter{p: p}
	t.pipeline("", "", trace, maxTraceDepth)
	width, digits := 0, 0
	for _, l := range t.lines {
		width = max(width, utf8.RuneCountInString(l.label))
		digits = max(digits, len(l.took))
	}
	out := make([]string, len(t.lines))
	for i, l := range t.lines {
		gap := strings.Repeat(" ", width-utf8.RuneCountInString(l.label))
		out[i] = fmt.Sprintf("%s%s  %*s  %s", l.label, gap, digits, l.took, l.note)
	}
	return out
}

// maxTraceDepth bounds how many traces may lie in each other: they come from
// other processes.
const maxTraceDepth = 32

type treeWriter struct {
	p     *printer
	lines []traceLine
}

// pipeline writes one trace. lead stands before its own line, indent before what is
// below it.
func (t *treeWriter) pipeline(lead, indent string, trace map[string]any, depth int) {
	note := []string{text(trace["strategy_name"])}
	if node := t.label(trace["node"]); node != "" {
		note = append(note, "on "+node)
	}
	switch failure, _ := trace["error"].(map[string]any); {
	case failure != nil:
		note = append(note, t.p.red(printable(text(failure["code"]))))
	case trace["success"] == true:
		note = append(note, t.p.green("ok"))
	}
	t.line(lead+t.label(trace["module_id"]), trace["total_duration_ms"], note...)
	remote, _ := trace["remote"].(map[string]any)
	hooks, calls := objects(trace["hooks"]), t.calls(trace, depth-1)
	var children []branchWriter
	for _, step := range objects(trace["steps"]) {
		var inner []branchWriter
		for len(hooks) > 0 && ranIn(hooks[0], step) {
			inner, hooks = append(inner, t.hook(hooks[0])), hooks[1:]
		}
		if text(step["name"]) == "execute" {
			if remote != nil && depth > 1 {
				inner = append(inner, t.remote(remote, depth-1))
				remote = nil
			}
			inner, calls = append(inner, calls...), nil
		}
		children = append(children, func(branch, below string) {
			t.line(branch+t.label(step["name"]), step["duration_ms"], t.stepNote(step)...)
			t.all(below, inner)
		})
	}
	for _, h := range hooks { // what ran after a failure belongs to no step
		children = append(children, t.hook(h))
	}
	if remote != nil && depth > 1 {
		children = append(children, t.remote(remote, depth-1))
	}
	t.all(indent, append(children, calls...))
}

// calls are the calls that were made inside one.
func (t *treeWriter) calls(trace map[string]any, depth int) []branchWriter {
	var children []branchWriter
	for _, call := range objects(trace["calls"]) {
		if depth > 0 {
			children = append(children, t.remote(call, depth))
		}
	}
	if dropped := number(trace["calls_dropped"]); dropped > 0 {
		children = append(children, func(branch, _ string) {
			t.line(fmt.Sprintf("%s… %.0f more calls, not traced", branch, dropped), nil)
		})
	}
	return children
}

// branchWriter writes one child of a tree and what is below it.
type branchWriter func(branch, below string)

func (t *treeWriter) all(indent string, children []branchWriter) {
	for i, write := range children {
		if i == len(children)-1 {
			write(indent+"└─ ", indent+"   ")
		} else {
			write(indent+"├─ ", indent+"│  ")
		}
	}
}

func (t *treeWriter) hook(h map[string]any) branchWriter {
	return func(branch, _ string) {
		t.line(branch+t.label(h["middleware"])+" "+t.label(h["hook"]), h["duration_ms"], t.hookNote(h)...)
	}
}

func (t *treeWriter) remote(trace map[string]any, depth int) branchWriter {
	return func(branch, below string) { t.pipeline(branch, below, trace, depth) }
}

func (t *treeWriter) line(label string, took any, note ...string) {
	shown := ""
	if took != nil {
		shown = fmt.Sprintf("%.3f ms", number(took))
	}
	t.lines = append(t.lines, traceLine{label, shown, strings.TrimSpace(strings.Join(note, "  "))})
}

// label is text of another process on one line.
func (*treeWriter) label(v any) string { return printable(text(v)) }

func (t *treeWriter) stepNote(step map[string]any) []string {
	var note []string
	if step["skipped"] == true {
		reason := t.label(step["skip_reason"])
		note = append(note, strings.TrimSuffix("skipped: "+reason, ": "))
	}
	if code := t.label(step["error_code"]); code != "" {
		note = append(note, t.p.red(code))
	}
	result, _ := step["result"].(map[string]any)
	if action := t.label(result["action"]); action != "" && action != "continue" {
		note = append(note, strings.TrimSpace(action+" "+t.label(result["skip_to"])))
	}
	return append(note, t.label(result["explanation"]))
}

func (t *treeWriter) hookNote(hook map[string]any) []string {
	var note []string
	if hook["replaced"] == true {
		note = append(note, "changed it")
	}
	if recovery := t.label(hook["recovery"]); recovery != "" {
		note = append(note, recovery)
	}
	if code := t.label(hook["error_code"]); code != "" {
		note = append(note, t.p.red(code))
	}
	return note
}

// ranIn reports whether a hook ran in a step: one that names it, or one of the call's
// middlewares in the step that runs hooks of their kind.
func ranIn(hook, step map[string]any) bool {
	in := text(hook["step"])
	if in == "" {
		in = "middleware_" + text(hook["hook"])
	}
	return in == text(step["name"])
}

// objects reads a list of objects.
func objects(v any) []map[string]any {
	list, _ := v.([]any)
	out := make([]map[string]any, 0, len(list))
	for _, item := range list {
		if m, ok := item.(map[string]any); ok {
			out = append(out, m)
		}
	}
	return out
}
