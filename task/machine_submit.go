package task

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/module"
	"github.com/apbus/apbus/schema"
)

const (
	maxKey  = 256 // bytes of an idempotency or concurrency key
	maxSpan = 366 * 24 * time.Hour
	// maxRunAt is how far in the future a start may lie.
	maxRunAt   = 10 * maxSpan
	maxRetries = 1000
)

// approvalKey is the input that carries an approval token (protocol §7).
const approvalKey = "_approval_token"

// draft is a submission that was found good, before it has an ID.
type draft struct {
	rec   *Record
	runAt Stamp
	fresh bool // its context has no identity
}

// limits of a submission.
type submitLimits struct {
	maxInput  int
	queueWait time.Duration
}

// prepare checks a submission and makes a record of it (rule 1). Nothing is stored
// yet, and nothing about other tasks is known here.
func prepare(s Submission, sh *shape, lim submitLimits) (*draft, error) {
	if err := module.ValidateID(s.ModuleID); err != nil {
		return nil, err
	}
	r := &Record{
		V: RecordVersion, ModuleID: s.ModuleID, Status: Pending,
		Priority: defaultPriority, OnCrash: CrashFail, Detached: s.Detached, Timeline: []Transition{},
	}
	d := &draft{rec: r}
	for _, step := range []func() error{
		func() error { return d.inputs(s, sh, lim) },
		func() error { return d.context(s) },
		func() error { return d.keys(s) },
		func() error { return d.times(s, lim) },
		func() error { return d.retry(s.Retry) },
		func() error { return d.choices(s) },
	} {
		if err := step(); err != nil {
			return nil, err
		}
	}
	return d, nil
}

func (d *draft) inputs(s Submission, sh *shape, lim submitLimits) error {
	raw := s.Inputs
	if len(raw) == 0 || string(raw) == "null" {
		raw = json.RawMessage("{}")
	}
	if len(raw) > lim.maxInput {
		return contextwire.TooLarge(int64(len(raw)), int64(lim.maxInput))
	}
	in, err := contextwire.DecodeMap(contextwire.JSON, raw, contextwire.Limits{})
	if err != nil {
		return bad("inputs", "must be a JSON object that can be read").WithCause(err)
	}
	if sh.input != nil {
		judged := in
		if _, ok := in[approvalKey]; ok { // the gate takes it out before the schema sees it
			judged = make(map[string]any, len(in))
			for k, v := range in {
				if k != approvalKey {
					judged[k] = v
				}
			}
		}
		if err := sh.input.Validate(judged); err != nil {
			return misfit(s.ModuleID, err)
		}
	}
	d.rec.Inputs = raw
	if s.IdempotencyKey != "" {
		canonical, err := contextwire.EncodeCanonical(contextwire.JSON, in)
		if err != nil {
			return bad("inputs", "must be a JSON object that can be read").WithCause(err)
		}
		sum := sha256.Sum256(canonical)
		d.rec.InputDigest = hex.EncodeToString(sum[:])
	}
	return nil
}

// misfit turns the verdict of the schema into the coded error. It quotes no value.
func misfit(moduleID string, err error) error {
	verdict, ok := errors.AsType[*schema.ValidationError](err)
	if !ok {
		return module.Errorf(module.CodeInternal, "module %s: inputs cannot be validated: %w", moduleID, err)
	}
	list := make([]any, len(verdict.Violations))
	for i, v := range verdict.Violations {
		list[i] = map[string]any{"path": v.Path, "keyword": v.Keyword, "message": v.Message}
	}
	code := module.Code(verdict.Code)
	if !code.Known() {
		code = module.CodeSchemaValidation
	}
	return module.Errorf(code, "%s", "module "+moduleID+": inputs do not fit the schema").
		WithCause(verdict).WithDetails(map[string]any{"errors": list})
}

// context takes the submitter's Context without its deadline: a task outlives the
// call that submits it.
func (d *draft) context(s Submission) error {
	if len(s.Context) == 0 || string(s.Context) == "null" {
		raw, err := contextwire.EncodeContext(module.NewContext(module.ContextOptions{}), contextwire.JSON)
		if err != nil {
			return module.Errorf(module.CodeInternal, "encode a fresh context: %w", err)
		}
		d.rec.Context, d.fresh = raw, true
		return nil
	}
	c, err := contextwire.DecodeContext(s.Context, contextwire.JSON, contextwire.Limits{})
	if err != nil {
		return bad("context", "cannot be read").WithCause(err)
	}
	d.rec.Parent = ParentOf(c)
	_, deadline := c.Data().Get(module.DataDeadline)
	if !deadline && d.rec.Parent == "" {
		d.rec.Context = s.Context
		return nil
	}
	c.Data().Delete(module.DataDeadline)
	c.Data().Delete(DataTask)
	if d.rec.Context, err = contextwire.EncodeContext(c, contextwire.JSON); err != nil {
		return bad("context", "cannot be stored").WithCause(err)
	}
	return nil
}

func (d *draft) keys(s Submission) error {
	for _, k := range []struct{ name, value string }{
		{"idempotency_key", s.IdempotencyKey}, {"concurrency_key", s.ConcurrencyKey},
	} {
		if len(k.value) > maxKey || !utf8.ValidString(k.value) {
			return bad(k.name, fmt.Sprintf("must be at most %d bytes of text", maxKey))
		}
		if k.value != "" && strings.TrimSpace(k.value) == "" {
			return bad(k.name, "must not be blank")
		}
	}
	if s.ParentTaskID != "" {
		if _, ok := parseTaskID(s.ParentTaskID); !ok {
			return bad("parent_task_id", "is not the ID of a task")
		}
		d.rec.Parent = s.ParentTaskID
	}
	d.rec.IdempotencyKey, d.rec.ConcurrencyKey = s.IdempotencyKey, s.ConcurrencyKey
	return nil
}

func (d *draft) times(s Submission, lim submitLimits) error {
	t := Timeouts{QueueWaitMS: lim.queueWait.Milliseconds()}
	if o := s.Timeouts; o != nil {
		for _, v := range []struct {
			name  string
			given *int64
			to    *int64
			least int64
		}{
			{"timeouts.queue_wait_ms", o.QueueWaitMS, &t.QueueWaitMS, 1},
			{"timeouts.attempt_ms", o.AttemptMS, &t.AttemptMS, 0},
			{"timeouts.total_ms", o.TotalMS, &t.TotalMS, 0},
		} {
			if v.given == nil {
				continue
			}
			if *v.given < v.least || *v.given > maxSpan.Milliseconds() {
				return bad(v.name, fmt.Sprintf("must be between %d and a year of milliseconds", v.least))
			}
			*v.to = *v.given
		}
	}
	d.rec.Timeouts = t
	if s.RunAt == "" {
		return nil
	}
	at, err := time.Parse(time.RFC3339, s.RunAt)
	if err != nil {
		return bad("run_at", "must be a time in RFC 3339")
	}
	if at.Year() < 1970 || time.Until(at) > maxRunAt {
		return bad("run_at", "must be a time between 1970 and ten years from now")
	}
	d.rec.RunAt, d.runAt = s.RunAt, At(at)
	return nil
}

func (d *draft) retry(o *RetryOptions) error {
	c := DefaultRetry()
	if o != nil {
		if v := o.MaxRetries; v != nil {
			if *v < 0 || *v > maxRetries {
				return bad("retry.max_retries", fmt.Sprintf("must be between 0 and %d", maxRetries))
			}
			c.MaxRetries = *v
		}
		for _, v := range []struct {
			name  string
			given *int64
			to    *int64
		}{
			{"retry.retry_delay_ms", o.RetryDelayMS, &c.RetryDelayMS},
			{"retry.max_retry_delay_ms", o.MaxRetryDelayMS, &c.MaxRetryDelayMS},
		} {
			if v.given == nil {
				continue
			}
			if *v.given < 0 || *v.given > maxSpan.Milliseconds() {
				return bad(v.name, "must be between 0 and a year of milliseconds")
			}
			*v.to = *v.given
		}
		if v := o.BackoffMultiplier; v != nil {
			if !(*v > 0 && *v <= 1000) || math.IsInf(*v, 0) {
				return bad("retry.backoff_multiplier", "must be above 0 and at most 1000")
			}
			c.BackoffMultiplier = *v
		}
	}
	d.rec.Retry, d.rec.MaxRetries = c, c.MaxRetries
	return nil
}

func (d *draft) choices(s Submission) error {
	if s.Priority != nil {
		if *s.Priority < 0 || *s.Priority >= priorities {
			return bad("priority", "must be between 0 and 9")
		}
		d.rec.Priority = *s.Priority
	}
	switch s.OnCrash {
	case "":
	case CrashFail, CrashRetry:
		d.rec.OnCrash = s.OnCrash
	default:
		return bad("on_crash", "must be fail or retry")
	}
	return nil
}

func bad(field, what string) *module.Error {
	return module.Errorf(module.CodeInvalidInput, "%s %s", field, what).WithDetail("field", field)
}

// born makes the draft a pending record.
func (ru rules) born(d *draft, m moment, id taskID, schedule string) *Record {
	r := d.rec
	r.TaskID, r.Order, r.SubmittedAt, r.Schedule = id.String(), m.number, m.now, schedule
	r.Detail, r.ReadyAt = Queued, m.now
	if d.runAt > m.now {
		r.Detail, r.ReadyAt = Scheduled, d.runAt
	}
	actor := ""
	if !d.fresh {
		actor = actorOf(r.Context)
	}
	if schedule != "" {
		actor = "schedule " + schedule
	}
	r.mark(m, actor, "", "submitted")
	return r
}

// actorOf is the identity of a stored context, "" when it has none.
func actorOf(raw json.RawMessage) string {
	var c struct {
		Identity *struct {
			ID string `json:"id"`
		} `json:"identity"`
	}
	if json.Unmarshal(raw, &c) != nil || c.Identity == nil {
		return ""
	}
	return c.Identity.ID
}
