package main

import (
	"errors"
	"net/http"
	"net/url"
	"time"

	"github.com/apbus/apbus/internal/settings"
)

// taskTargets are the tasks that something is done to: named, or selected.
type taskTargets struct {
	IDs []string `arg:"" optional:"" name:"id" help:"The tasks; or select them with the flags."`
	taskFilter
	DryRun bool   `local:"" help:"Say what would be done to the tasks that the flags select, and do nothing."`
	Limit  int    `local:"" placeholder:"N" help:"Do it to so many at most."`
	Reason string `local:"" placeholder:"TEXT" help:"Why; it is kept with the task."`
}

// do does one thing to each named task, or to all that are selected.
func (t *taskTargets) do(s *session, action string) error {
	filter := t.fields()
	switch {
	case len(t.IDs) == 0 && len(filter) == 0:
		return settings.Usagef("name tasks, or select them with --module, --status, --detail or --query")
	case len(t.IDs) > 0 && (len(filter) > 0 || t.DryRun || t.Limit != 0):
		return settings.Usagef("name tasks or select them, not both")
	case t.Limit < 0:
		return settings.Usagef("--limit must not be negative")
	}
	return s.withTasks(func(b *httpBackend) error {
		if len(t.IDs) == 0 {
			return t.bulk(s, b, action, filter)
		}
		var failed []error
		for _, id := range t.IDs {
			if err := t.one(s, b, action, id); err != nil {
				if len(t.IDs) == 1 || s.ctx.Err() != nil {
					return err
				}
				report(s.spec.Stdout, s.spec.Stderr, s.stdout.json, err)
				failed = append(failed, err)
			}
		}
		if err := errors.Join(failed...); err != nil {
			return &toldError{text: err.Error()}
		}
		return nil
	})
}

func (t *taskTargets) one(s *session, b *httpBackend, action, id string) error {
	var doc map[string]any
	var err error
	var state string
	if action == "cancel" {
		q := url.Values{}
		if t.Reason != "" {
			q.Set("reason", t.Reason)
		}
		doc, err = b.tell(s.ctx, http.MethodDelete, []string{"tasks", id}, q, nil)
		state = text(doc["state"])
	} else {
		body := map[string]any{}
		if t.Reason != "" {
			body["reason"] = t.Reason
		}
		doc, err = b.tell(s.ctx, http.MethodPost, []string{"tasks", id, action}, nil, body)
		state = text(doc["status"])
	}
	if err != nil {
		return err
	}
	if s.stdout.json {
		return s.stdout.document(doc)
	}
	return s.stdout.table([]string{"TASK", "STATE"}, [][]string{{id, state}})
}

func (t *taskTargets) bulk(s *session, b *httpBackend, action string, filter map[string]any) error {
	body := map[string]any{"action": action, "filter": filter, "dry_run": t.DryRun}
	if t.Reason != "" {
		body["reason"] = t.Reason
	}
	if t.Limit > 0 {
		body["limit"] = int64(t.Limit)
	}
	doc, err := b.tell(s.ctx, http.MethodPost, []string{"tasks:bulk"}, nil, body)
	if err != nil {
		return err
	}
	if s.stdout.json {
		return s.stdout.document(doc)
	}
	verb := "changed"
	count := doc["changed"]
	if t.DryRun {
		verb, count = "would change", doc["matched"]
	}
	return s.stdout.line("%s: %s %v, %v selected in another state", action, verb, count, doc["skipped"])
}

type tasksCancelCmd struct{ taskTargets }

// Run cancels tasks.
func (c *tasksCancelCmd) Run(s *session) error { return c.do(s, "cancel") }

type tasksRetryCmd struct{ taskTargets }

// Run runs tasks again.
func (c *tasksRetryCmd) Run(s *session) error { return c.do(s, "retry") }

type tasksRequeueCmd struct{ taskTargets }

// Run puts tasks back into their queues.
func (c *tasksRequeueCmd) Run(s *session) error { return c.do(s, "requeue") }

type tasksLimitCmd struct {
	Module      string `arg:"" help:"The module."`
	Concurrency *int   `local:"" placeholder:"N" help:"How many of its tasks run at once; 0 is no limit."`
	PerKey      *int   `local:"" placeholder:"N" help:"How many with one concurrency key run at once; 0 is 1."`
}

// Run changes the limits of a queue.
func (c *tasksLimitCmd) Run(s *session) error {
	body := map[string]any{}
	if c.Concurrency != nil {
		body["concurrency"] = int64(*c.Concurrency)
	}
	if c.PerKey != nil {
		body["key_concurrency"] = int64(*c.PerKey)
	}
	if len(body) == 0 {
		return settings.Usagef("say what to limit: --concurrency, --per-key")
	}
	return steerQueue(s, c.Module, "limits", body)
}

type tasksPauseCmd struct {
	Module string `arg:"" help:"The module."`
	Reason string `local:"" placeholder:"TEXT" help:"Why, for others who look."`
}

// Run pauses a queue.
func (c *tasksPauseCmd) Run(s *session) error {
	body := map[string]any{}
	if c.Reason != "" {
		body["reason"] = c.Reason
	}
	return steerQueue(s, c.Module, "pause", body)
}

type tasksResumeCmd struct {
	Module string `arg:"" help:"The module."`
}

// Run resumes a queue.
func (c *tasksResumeCmd) Run(s *session) error {
	return steerQueue(s, c.Module, "resume", map[string]any{})
}

func steerQueue(s *session, id, verb string, body map[string]any) error {
	return s.withTasks(func(b *httpBackend) error {
		doc, err := b.tell(s.ctx, http.MethodPost, []string{"queues", id, verb}, nil, body)
		if err != nil {
			return err
		}
		if s.stdout.json {
			return s.stdout.document(doc)
		}
		return showQueues(s.stdout, []map[string]any{doc})
	})
}

func listQueues(s *session) error {
	return s.withTasks(func(b *httpBackend) error {
		doc, err := b.tell(s.ctx, http.MethodGet, []string{"queues"}, nil, nil)
		if err != nil {
			return err
		}
		if s.stdout.json {
			return s.stdout.document(doc)
		}
		return showQueues(s.stdout, objects(doc["queues"]))
	})
}

func showQueues(p *printer, queues []map[string]any) error {
	rows := make([][]string, len(queues))
	for i, q := range queues {
		state := "open"
		if q["paused"] == true {
			state = "paused"
			if by := text(q["paused_by"]); by != "" {
				state += " by " + by
			}
			if why := text(q["reason"]); why != "" {
				state += ": " + why
			}
		}
		limit := "-"
		if n := q["concurrency"]; n != nil {
			limit = inline(n)
		}
		if n := q["key_concurrency"]; n != nil {
			limit += ", a key " + inline(n)
		}
		rows[i] = []string{text(q["module_id"]), state, limit, inline(q["queued"]), inline(q["running"]), inline(q["hosts"])}
	}
	return p.table([]string{"MODULE", "QUEUE", "AT ONCE", "QUEUED", "RUNNING", "HOSTS"}, rows)
}

// tasksScheduleCmd keeps recurring work.
type tasksScheduleCmd struct {
	List   scheduleListCmd   `cmd:"" default:"1" help:"List the schedules."`
	Show   scheduleShowCmd   `cmd:"" help:"Show a schedule."`
	Put    schedulePutCmd    `cmd:"" help:"Create a schedule, or replace the one of this name."`
	Delete scheduleDeleteCmd `cmd:"" help:"Submit no more; tasks that were submitted stay."`
}

type scheduleListCmd struct{}

// Run lists the schedules.
func (*scheduleListCmd) Run(s *session) error {
	return s.withTasks(func(b *httpBackend) error {
		doc, err := b.tell(s.ctx, http.MethodGet, []string{"schedules"}, nil, nil)
		if err != nil {
			return err
		}
		if s.stdout.json {
			return s.stdout.document(doc)
		}
		return showSchedules(s.stdout, objects(doc["schedules"]))
	})
}

func showSchedules(p *printer, list []map[string]any) error {
	rows := make([][]string, len(list))
	for i, sc := range list {
		task, _ := sc["task"].(map[string]any)
		next := moment(sc["next_at"])
		if sc["paused"] == true {
			next = "paused"
		}
		zone := text(sc["time_zone"])
		if zone == "" {
			zone = "UTC"
		}
		rows[i] = []string{text(sc["name"]), text(sc["cron"]) + " " + zone, text(task["module_id"]), next, moment(sc["last_at"]), inline(sc["fired"]), text(sc["last_task_id"])}
	}
	return p.table([]string{"SCHEDULE", "WHEN", "MODULE", "NEXT", "LAST", "FIRED", "LAST TASK"}, rows)
}

type scheduleShowCmd struct {
	Name string `arg:"" help:"The schedule."`
}

// Run shows a schedule.
func (c *scheduleShowCmd) Run(s *session) error {
	return s.withTasks(func(b *httpBackend) error {
		doc, err := b.tell(s.ctx, http.MethodGet, []string{"schedules", c.Name}, nil, nil)
		if err != nil {
			return err
		}
		return s.stdout.document(doc)
	})
}

type schedulePutCmd struct {
	Name string `arg:"" help:"Name of the schedule."`
	inputArgs
	taskOptions
	Cron     string `local:"" required:"" placeholder:"CRON" help:"When: five fields such as '0 3 * * *', @daily and the like, or '@every 90s'."`
	TimeZone string `local:"" placeholder:"NAME" help:"Time zone, such as Europe/Berlin; UTC when absent."`
	Missed   string `local:"" default:"skip" enum:"skip,once" help:"What becomes of times at which no router was there: skip, or run once for all of them."`
	Paused   bool   `local:"" help:"Keep it and submit nothing."`
}

// Run creates or replaces a schedule.
func (c *schedulePutCmd) Run(s *session) error {
	if c.RunAt != "" || c.Key != "" {
		return settings.Usagef("a schedule says when, and each time is a task of its own: it takes neither --run-at nor --key")
	}
	return s.withTasks(func(b *httpBackend) error {
		r, closeInput, err := c.inputs(s, b)
		defer closeInput()
		if err != nil {
			return err
		}
		inputs, err := r.read()
		if err != nil {
			return err
		}
		submission, err := c.submission(c.ID, inputs, time.Now())
		if err != nil {
			return err
		}
		spec := map[string]any{"name": c.Name, "cron": c.Cron, "missed": c.Missed, "paused": c.Paused, "task": submission}
		if c.TimeZone != "" {
			spec["time_zone"] = c.TimeZone
		}
		doc, err := b.tell(s.ctx, http.MethodPost, []string{"schedules", c.Name}, nil, spec)
		if err != nil {
			return err
		}
		if s.stdout.json {
			return s.stdout.document(doc)
		}
		return showSchedules(s.stdout, []map[string]any{doc})
	})
}

type scheduleDeleteCmd struct {
	Name string `arg:"" help:"The schedule."`
}

// Run deletes a schedule.
func (c *scheduleDeleteCmd) Run(s *session) error {
	return s.withTasks(func(b *httpBackend) error {
		doc, err := b.tell(s.ctx, http.MethodDelete, []string{"schedules", c.Name}, nil, nil)
		if err != nil {
			return err
		}
		if s.stdout.json {
			return s.stdout.document(doc)
		}
		return s.stdout.line("%s is deleted", printable(c.Name))
	})
}
