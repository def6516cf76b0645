package main

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/internal/settings"
	"github.com/apbus/apbus/module"
)

// tasksCmd is about calls that outlive who made them.
type tasksCmd struct {
	List     tasksListCmd     `cmd:"" default:"withargs" help:"List tasks."`
	Show     tasksShowCmd     `cmd:"" help:"Show a task and what happened to it."`
	Submit   tasksSubmitCmd   `cmd:"" help:"Submit a task and print its ID."`
	Wait     tasksWaitCmd     `cmd:"" help:"Wait for the end of a task and print its output."`
	Watch    tasksWatchCmd    `cmd:"" help:"Follow what happens to a task until it is over."`
	Cancel   tasksCancelCmd   `cmd:"" help:"Cancel tasks, with their calls and the tasks they submitted."`
	Retry    tasksRetryCmd    `cmd:"" help:"Run failed or cancelled tasks again."`
	Requeue  tasksRequeueCmd  `cmd:"" help:"Take tasks from the dead letter, or make waiting ones due now."`
	Limit    tasksLimitCmd    `cmd:"" help:"Change how many tasks of a module run at once."`
	Pause    tasksPauseCmd    `cmd:"" help:"Start no more tasks of a module."`
	Resume   tasksResumeCmd   `cmd:"" help:"Go on with the tasks of a module."`
	Schedule tasksScheduleCmd `cmd:"" help:"Keep recurring work."`
}

// withTasks opens the way to the router for the time of f.
func (s *session) withTasks(f func(*httpBackend) error) error {
	if len(s.flags.NATS) > 0 {
		return settings.Usagef("tasks need a router, which knows who submits them; they do not go with --nats")
	}
	b, err := newHTTPBackend(s.flags.Router, s.flags.Token, s.spec.Version)
	if err != nil {
		return err
	}
	defer b.Close()
	return f(b)
}

// taskFilter selects tasks.
type taskFilter struct {
	Module string `local:"" placeholder:"ID" help:"Only tasks of this module."`
	Status string `local:"" placeholder:"STATUS" help:"Only tasks in this state: pending, running, completed, failed, cancelled."`
	Detail string `local:"" placeholder:"DETAIL" help:"Only tasks with this detail: queued, scheduled, claimed, backing_off, awaiting_approval, blocked, dead."`
	Query  string `short:"q" local:"" placeholder:"TEXT" help:"Only tasks with this text in ID, module, idempotency key or schedule."`
}

func (f *taskFilter) fields() map[string]any {
	m := map[string]any{}
	for key, value := range map[string]string{"module": f.Module, "status": f.Status, "detail": f.Detail, "q": f.Query} {
		if value != "" {
			m[key] = value
		}
	}
	return m
}

type tasksListCmd struct {
	taskFilter
	Newest bool   `local:"" help:"Show the newest first."`
	Limit  int    `local:"" default:"100" help:"Most tasks of a page."`
	Cursor string `local:"" placeholder:"CURSOR" help:"Go on after a page that told this cursor."`
	Queues bool   `local:"" help:"List the queues of the modules instead."`
}

// Run lists a page of tasks.
func (c *tasksListCmd) Run(s *session) error {
	if c.Queues {
		return listQueues(s)
	}
	if c.Limit < 1 {
		return settings.Usagef("--limit must be positive")
	}
	q := url.Values{"limit": {strconv.Itoa(c.Limit)}}
	for key, value := range c.fields() {
		q.Set(key, text(value))
	}
	if c.Newest {
		q.Set("order", "newest")
	}
	if c.Cursor != "" {
		q.Set("cursor", c.Cursor)
	}
	return s.withTasks(func(b *httpBackend) error {
		doc, err := b.tell(s.ctx, http.MethodGet, []string{"tasks"}, q, nil)
		if err != nil {
			return err
		}
		if s.stdout.json {
			return s.stdout.document(doc)
		}
		var rows [][]string
		for _, t := range objects(doc["tasks"]) {
			rows = append(rows, []string{
				text(t["task_id"]), text(t["module_id"]), text(t["status"]), detailOf(t), fmt.Sprint(t["attempt"]), nodeOf(t), moment(t["submitted_at"]),
			})
		}
		if err := s.stdout.table([]string{"TASK", "MODULE", "STATUS", "DETAIL", "ATTEMPT", "NODE", "SUBMITTED"}, rows); err != nil {
			return err
		}
		if next := text(doc["next_cursor"]); next != "" {
			fmt.Fprintf(s.spec.Stderr, "there are more: --cursor %s\n", printable(next))
		}
		return nil
	})
}

type tasksShowCmd struct {
	ID     string `arg:"" help:"The task."`
	Inputs bool   `local:"" help:"Print the inputs as they were submitted instead; that is recorded."`
}

// Run shows a task.
func (c *tasksShowCmd) Run(s *session) error {
	return s.withTasks(func(b *httpBackend) error {
		path := []string{"tasks", c.ID}
		if c.Inputs {
			path = append(path, "inputs")
		}
		doc, err := b.tell(s.ctx, http.MethodGet, path, nil, nil)
		if err != nil {
			return err
		}
		if s.stdout.json || c.Inputs {
			return s.stdout.document(doc)
		}
		return showTask(s.stdout, doc)
	})
}

// taskOptions are what a submission says besides module and inputs.
type taskOptions struct {
	Key            string        `local:"" placeholder:"TEXT" help:"Idempotency key: submitting again with it and the same inputs gives the first task."`
	Priority       int           `local:"" default:"5" help:"0 to 9, 9 the most urgent."`
	RunAt          string        `local:"" placeholder:"TIME" help:"Earliest start, such as 2026-01-02T15:04:05Z, or a time from now such as 10m."`
	Retries        int           `local:"" placeholder:"N" help:"How often a failure is tried again."`
	AttemptTimeout time.Duration `local:"" placeholder:"1m" help:"Time of one attempt, besides the module's own."`
	TotalTimeout   time.Duration `local:"" placeholder:"1h" help:"Time from submit to end, all attempts and waits included."`
	QueueTimeout   time.Duration `local:"" placeholder:"24h" help:"Time it may wait for a node."`
	OnCrash        string        `local:"" default:"fail" enum:"fail,retry" help:"What becomes of an attempt whose node is lost, unless its module may safely run twice: fail or retry."`
	ConcurrencyKey string        `local:"" placeholder:"TEXT" help:"Tasks with the same one run one at a time."`
}

// submission is the JSON form.
func (o *taskOptions) submission(id string, inputs map[string]any, now time.Time) (map[string]any, error) {
	if o.Priority < 0 || o.Priority > 9 {
		return nil, settings.Usagef("--priority must be within 0 and 9")
	}
	m := map[string]any{"module_id": id, "inputs": inputs}
	if o.Priority != 5 {
		m["priority"] = int64(o.Priority)
	}
	if o.RunAt != "" {
		at := o.RunAt
		if d, err := time.ParseDuration(at); err == nil {
			at = now.Add(d).UTC().Format(time.RFC3339Nano)
		}
		m["run_at"] = at
	}
	if o.Retries != 0 {
		m["retry"] = map[string]any{"max_retries": int64(o.Retries)}
	}
	timeouts := map[string]any{}
	for key, d := range map[string]time.Duration{"attempt_ms": o.AttemptTimeout, "total_ms": o.TotalTimeout, "queue_wait_ms": o.QueueTimeout} {
		if d != 0 {
			timeouts[key] = d.Milliseconds()
		}
	}
	if len(timeouts) > 0 {
		m["timeouts"] = timeouts
	}
	if o.OnCrash != "fail" {
		m["on_crash"] = o.OnCrash
	}
	if o.ConcurrencyKey != "" {
		m["concurrency_key"] = o.ConcurrencyKey
	}
	return m, nil
}

type tasksSubmitCmd struct {
	inputArgs
	taskOptions
	Wait bool `local:"" help:"Wait for the end and print the output instead of the ID."`
}

// Help shows tasks that work with the built-in examples.
func (*tasksSubmitCmd) Help() string {
	return `Examples:
  apbus tasks submit math.add a=1 b=2 --wait
  apbus tasks submit demo.sleep ms=20000 steps=20 --key nightly
  apbus tasks submit demo.fail times=2 key=k --retries 3`
}

// Run submits a task.
func (c *tasksSubmitCmd) Run(s *session) error {
	return s.withTasks(func(b *httpBackend) error {
		body, err := c.body(s, b)
		if err != nil {
			return err
		}
		receipt, err := b.tell(s.ctx, http.MethodPost, []string{"tasks"}, nil, body, "Idempotency-Key", c.Key)
		if err != nil {
			return err
		}
		id := text(receipt["task_id"])
		switch {
		case c.Wait:
			return waitForTask(s, b, id, 0)
		case s.stdout.json:
			return s.stdout.document(receipt)
		}
		if s.stdout.terminal {
			defer fmt.Fprintf(s.spec.Stderr, "follow it with: apbus tasks watch %s\n", printable(id))
		}
		return s.stdout.line("%s", printable(id))
	})
}

func (c *tasksSubmitCmd) body(s *session, b *httpBackend) (map[string]any, error) {
	r, closeInput, err := c.inputs(s, b)
	defer closeInput()
	if err != nil {
		return nil, err
	}
	inputs, err := r.read()
	if err != nil {
		return nil, err
	}
	return c.submission(c.ID, inputs, time.Now())
}

// read returns the inputs, wherever they are.
func (r *callRequest) read() (map[string]any, error) {
	if r.raw == nil {
		return r.inputs, nil
	}
	limits := contextwire.DefaultLimits()
	raw, err := io.ReadAll(io.LimitReader(r.raw, int64(limits.MaxBody)+1))
	if err != nil {
		return nil, err
	}
	return contextwire.DecodeMap(contextwire.JSON, raw, limits)
}

type tasksWaitCmd struct {
	ID      string        `arg:"" help:"The task."`
	Timeout time.Duration `local:"" placeholder:"1m" help:"How long to wait; none waits for the end."`
}

// Run waits for a task.
func (c *tasksWaitCmd) Run(s *session) error {
	if c.Timeout < 0 {
		return settings.Usagef("--timeout must not be negative")
	}
	return s.withTasks(func(b *httpBackend) error { return waitForTask(s, b, c.ID, c.Timeout) })
}

func waitForTask(s *session, b *httpBackend, id string, limit time.Duration) error {
	doc, over, err := b.TaskResult(s.ctx, id, limit)
	if err != nil {
		return s.leftTask(id, err)
	}
	if !over {
		return module.Errorf(module.CodeModuleTimeout, "the task is not over after %s: it is %s", limit, text(doc["status"])).
			WithDetails(map[string]any{"task_id": id})
	}
	return s.stdout.document(doc)
}

// leftTask tells who was interrupted while looking on that the task goes on.
func (s *session) leftTask(id string, err error) error {
	if s.ctx.Err() == nil || errors.Is(err, settings.ErrInterrupted) {
		return err
	}
	return fmt.Errorf("%w: the task goes on; stop it with: apbus tasks cancel %s", settings.ErrInterrupted, printable(id))
}

type tasksWatchCmd struct {
	ID string `arg:"" help:"The task."`
}

// Run follows a task.
func (c *tasksWatchCmd) Run(s *session) error {
	return s.withTasks(func(b *httpBackend) error {
		w := &taskWatch{s: s, id: c.ID}
		w.begin()
		err := b.FollowTask(s.ctx, c.ID, w.event)
		w.bar.clear()
		if err != nil {
			return s.leftTask(c.ID, err)
		}
		return w.outcome
	})
}
