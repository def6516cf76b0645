package main

import (
	"cmp"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/apbus/apbus/internal/settings"
	"github.com/apbus/apbus/module"
)

// momentLayout shows a time to people.
const momentLayout = "2006-01-02T15:04:05.000Z"

// timeOf reads Unix seconds; ok is false when there are none.
func timeOf(v any) (t time.Time, ok bool) {
	seconds := number(v)
	if seconds == 0 || math.Abs(seconds) > 1e11 {
		return t, false
	}
	return time.UnixMicro(int64(math.Round(seconds * 1e6))).UTC(), true
}

func moment(v any) string {
	t, ok := timeOf(v)
	if !ok {
		return "-"
	}
	return t.Format(momentLayout)
}

// detailOf is the detail of a task, and why it is blocked.
func detailOf(t map[string]any) string {
	detail := text(t["detail"])
	if why := text(t["blocked_by"]); why != "" {
		detail += ": " + why
	}
	return detail
}

// nodeOf is where a task runs, or ran last.
func nodeOf(t map[string]any) string {
	lease, _ := t["lease"].(map[string]any)
	return cmp.Or(text(lease["node"]), text(t["last_owner"]))
}

// showTask shows a task to people: what it is, how far, and what happened.
func showTask(p *printer, t map[string]any) error {
	state := text(t["status"])
	switch state {
	case "completed":
		state = p.green(state)
	case "failed", "cancelled":
		state = p.red(state)
	}
	if detail := detailOf(t); detail != "" {
		state += " (" + printable(detail) + ")"
	}
	if err := p.line("%s  %s  %s", p.bold(printable(text(t["task_id"]))), printable(text(t["module_id"])), state); err != nil {
		return err
	}
	submitted, _ := timeOf(t["submitted_at"])
	facts := [][2]string{{"submitted", moment(t["submitted_at"])}}
	fact := func(name, value string) {
		if value != "" && value != "-" {
			facts = append(facts, [2]string{name, value})
		}
	}
	fact("started", moment(t["started_at"]))
	fact("ended", moment(t["completed_at"]))
	if end, ok := timeOf(t["completed_at"]); ok {
		fact("took", end.Sub(submitted).Round(time.Millisecond).String())
	}
	fact("attempts", attemptsOf(t))
	fact("node", nodeOf(t))
	fact("priority", fmt.Sprint(t["priority"]))
	fact("key", text(t["idempotency_key"]))
	fact("run at", text(t["run_at"]))
	fact("schedule", text(t["schedule"]))
	fact("submitted by task", text(t["parent_task_id"]))
	if asked, _ := t["cancel_requested"].(map[string]any); asked != nil {
		fact("cancel asked", strings.TrimSpace(moment(asked["at"])+" by "+text(asked["by"])+" "+text(asked["reason"])))
	}
	if progress, _ := t["progress"].(map[string]any); progress != nil {
		fact("progress", (&progressBar{}).text(progressOf(progress)))
	}
	if inputs := t["inputs"]; inputs != nil {
		fact("inputs", inline(inputs))
	}
	if result := t["result"]; result != nil {
		fact("result", inline(result))
	}
	if failure, _ := t["error"].(map[string]any); failure != nil {
		fact("error", text(failure["code"])+": "+text(failure["message"]))
	}
	for _, f := range facts {
		if err := p.line("  %-18s %s", f[0], printable(strings.TrimSpace(f[1]))); err != nil {
			return err
		}
	}
	return showTimeline(p, t, submitted)
}

func attemptsOf(t map[string]any) string {
	out := fmt.Sprint(t["attempt"])
	if n := number(t["retry_count"]); n > 0 {
		out += fmt.Sprintf(", %v of %v retries", t["retry_count"], t["max_retries"])
	}
	if n := number(t["deliveries"]); n > 0 {
		out += fmt.Sprintf(", %v lost with their node", t["deliveries"])
	}
	return out
}

// showTimeline shows what happened, each with its time since the submit.
func showTimeline(p *printer, t map[string]any, submitted time.Time) error {
	steps := objects(t["timeline"])
	if n := number(t["timeline_dropped"]); n > 0 {
		if err := p.line("  … %v older steps are no longer kept", t["timeline_dropped"]); err != nil {
			return err
		}
	}
	rows := make([][]string, len(steps))
	for i, step := range steps {
		rows[i] = append([]string{sinceSubmit(step, submitted)}, stepCells(step)...)
	}
	if len(rows) == 0 {
		return nil
	}
	if p.terminal {
		if err := p.line(""); err != nil {
			return err
		}
	}
	return p.table([]string{"AFTER", "STATE", "WHAT", "ATTEMPT", "NODE", "BY"}, rows)
}

func sinceSubmit(step map[string]any, submitted time.Time) string {
	at, ok := timeOf(step["at"])
	if !ok || submitted.IsZero() {
		return "-"
	}
	return "+" + at.Sub(submitted).Round(time.Millisecond).String()
}

// stepCells are state, cause, attempt, node and actor of a step.
func stepCells(step map[string]any) []string {
	state := text(step["status"])
	if detail := text(step["detail"]); detail != "" {
		state += " " + detail
	}
	attempt := ""
	if n := number(step["attempt"]); n > 0 {
		attempt = fmt.Sprint(step["attempt"])
	}
	return []string{state, text(step["cause"]), attempt, text(step["node"]), text(step["actor"])}
}

// taskWatch shows a task as it goes on.
type taskWatch struct {
	s       *session
	id      string
	bar     *progressBar
	outcome error // how it ended, for the exit code
}

func (w *taskWatch) begin() {
	if settings.IsTerminal(w.s.spec.Stderr) && !w.s.stdout.json {
		w.bar = &progressBar{w: w.s.spec.Stderr, name: w.id}
	}
}

// event shows one event: a line for each step, the bar for progress.
func (w *taskWatch) event(e *event) error {
	p := w.s.stdout
	task, _ := e.data["task"].(map[string]any)
	if e.name == "end" {
		w.outcome = outcomeOf(task)
	}
	if p.json {
		return p.document(e.data)
	}
	if w.bar != nil && task != nil {
		w.bar.name = text(task["module_id"])
	}
	if e.name == "progress" {
		progress, _ := e.data["progress"].(map[string]any)
		if w.bar != nil {
			w.bar.report(progressOf(progress))
			return nil
		}
		return p.line("%s", strings.TrimRight(strings.Join(clean([]string{moment(progress["at"]), "progress", (&progressBar{}).text(progressOf(progress))}), "\t"), "\t"))
	}
	w.bar.clear()
	step, _ := e.data["transition"].(map[string]any)
	switch {
	case step != nil:
		cells := append([]string{moment(step["at"])}, stepCells(step)...)
		return p.line("%s", strings.TrimRight(strings.Join(clean(cells), "\t"), "\t"))
	case e.name == "gap":
		return p.line("%s", "… what happened before is no longer known")
	case task != nil:
		return p.line("%s\t%s", printable(text(task["module_id"])), printable(strings.TrimSpace(text(task["status"])+" "+detailOf(task))))
	}
	return nil
}

// outcomeOf is nil for a task that completed.
func outcomeOf(task map[string]any) error {
	if text(task["status"]) == "completed" {
		return nil
	}
	failure, _ := task["error"].(map[string]any)
	if coded, ok := module.ErrorFromMap(failure); ok {
		return coded
	}
	return &toldError{text: "the task is " + text(task["status"])}
}
