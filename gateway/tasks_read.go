package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/module"
	"github.com/apbus/apbus/task"
)

// headerLastEvent is where a reader of events resumes.
const headerLastEvent = "Last-Event-ID"

// maxTaskWait is the longest wait of one request.
const maxTaskWait = 10 * time.Minute

// listTasks serves GET /v1/tasks.
func (g *Gateway) listTasks(x *exchange) error {
	req, err := taskListRequest(x.r.URL.Query())
	if err != nil {
		return err
	}
	page, err := g.tasks.List(x.r.Context(), req)
	if err != nil {
		return err
	}
	answer := struct {
		Tasks      []task.Record `json:"tasks"`
		Next       *string       `json:"next_cursor"`
		Unreadable int           `json:"unreadable,omitempty"`
	}{Tasks: make([]task.Record, len(page.Tasks)), Unreadable: page.Unreadable}
	for i, r := range page.Tasks {
		answer.Tasks[i] = outwardRecord(r)
	}
	if page.Cursor != "" {
		answer.Next = &page.Cursor
	}
	return x.record(http.StatusOK, answer)
}

func taskListRequest(q url.Values) (req task.ListRequest, err error) {
	req.Filter = task.Filter{
		ModuleID: q.Get("module"), Status: task.Status(q.Get("status")), Detail: task.Detail(q.Get("detail")),
		Query: q.Get("q"), Parent: q.Get("parent"),
	}
	req.Cursor = q.Get("cursor")
	switch {
	case req.Status != "" && !req.Status.Valid():
		return req, invalid("query parameter status is none of pending, running, completed, failed, cancelled")
	case !req.Detail.Valid():
		return req, invalid("query parameter detail is none of queued, scheduled, claimed, backing_off, awaiting_approval, blocked, dead")
	}
	switch q.Get("order") {
	case "", "oldest":
	case "newest":
		req.NewestFirst = true
	default:
		return req, invalid("query parameter order is neither oldest nor newest")
	}
	if text := q.Get("limit"); text != "" {
		if req.Limit, err = strconv.Atoi(text); err != nil || req.Limit < 1 {
			return req, invalid("query parameter limit is no positive integer")
		}
	}
	return req, nil
}

// showTask serves GET /v1/tasks/{id}.
func (g *Gateway) showTask(x *exchange) error {
	r, err := g.tasks.Get(x.r.Context(), x.r.PathValue("id"))
	if err != nil {
		return err
	}
	return x.record(http.StatusOK, outwardRecord(r))
}

// showTaskInputs serves GET /v1/tasks/{id}/inputs.
func (g *Gateway) showTaskInputs(x *exchange) error {
	raw, err := g.tasks.RawInputs(x.r.Context(), x.r.PathValue("id"), x.principal.by(g.name))
	if err != nil {
		return err
	}
	if len(raw) == 0 {
		raw = json.RawMessage("{}")
	}
	return x.raw(http.StatusOK, raw)
}

// showTaskResult serves GET /v1/tasks/{id}/result. The output is not redacted, so it
// is for who submitted the task, and for operators.
func (g *Gateway) showTaskResult(x *exchange) error {
	req := task.ResultRequest{TaskID: x.r.PathValue("id")}
	if text := x.r.URL.Query().Get("wait"); text != "" {
		d, err := time.ParseDuration(text)
		if err != nil || d < 0 {
			return invalid("query parameter wait is no duration such as 30s")
		}
		req.WaitMS = min(d, maxTaskWait).Milliseconds()
	}
	ctx, stop := context.WithCancelCause(x.r.Context())
	defer stop(errors.New("answered"))
	defer context.AfterFunc(g.watching, func() { stop(context.Cause(g.watching)) })()
	res, err := g.tasks.Result(ctx, req)
	switch {
	case err != nil:
		return endOf(ctx, err)
	case !res.Status.Terminal():
		return x.record(http.StatusAccepted, outwardRecord(res.Task))
	case !x.principal.May(ScopeOperate) && !x.principal.Identity.Equal(submitterOf(&res.Task)):
		return denied("identity", "the result is for who submitted the task, and for operators")
	case res.Error != nil:
		return res.Error.Err()
	case len(res.Output) == 0:
		return module.Errorf(module.CodeTaskResultInvalid, "the output lies where this router does not read").WithDetail("task_id", req.TaskID)
	}
	return x.raw(http.StatusOK, res.Output)
}

// submitterOf is who a task acts for, nil when nobody said.
func submitterOf(r *task.Record) *module.Identity {
	c, err := contextwire.DecodeContext(r.Context, contextwire.JSON, contextwire.Limits{})
	if err != nil {
		return nil
	}
	return c.Identity()
}

// followTask serves GET /v1/tasks/{id}/events, until the task is over, the reader
// leaves or the router stops.
func (g *Gateway) followTask(x *exchange) error {
	after := int64(0)
	if text := x.r.Header.Get(headerLastEvent); text != "" {
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil || n < 0 {
			return invalid("header %s is no number of an event", headerLastEvent)
		}
		after = n
	}
	ctx, stop := context.WithCancelCause(x.r.Context())
	defer stop(errors.New("the reader has left"))
	defer context.AfterFunc(g.watching, func() { stop(context.Cause(g.watching)) })()
	events := g.openEvents(x)
	defer events.close()
	defer events.whileOpen(ctx)()
	for e, err := range task.Follow(ctx, g.tasks, x.r.PathValue("id"), after) {
		if err != nil {
			if events.plain() {
				return endOf(ctx, err)
			}
			return nil // the reader comes back with the last number it has
		}
		if e.Task != nil {
			r := outwardRecord(*e.Task)
			e.Task = &r
		}
		raw, err := json.Marshal(e)
		if err != nil {
			return module.Errorf(module.CodeInternal, "encode an event: %w", err)
		}
		if events.event(e.Kind, strconv.FormatInt(e.Number, 10), raw) != nil {
			return nil // the reader takes nothing more
		}
	}
	return nil
}
