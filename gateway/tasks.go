package gateway

import (
	"encoding/json"
	"net/http"

	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/module"
	"github.com/apbus/apbus/task"
)

// taskRoutes are submitting, watching and steering tasks (durable design, section 1).
func (g *Gateway) taskRoutes() []*route {
	reason := param{"reason", "Why; kept in the task's timeline."}
	unknown := outcome{404, "ErrorBody", "No such task."}
	list := []*route{
		{
			method: http.MethodPost, pattern: "/v1/tasks", operation: "submitTasks",
			summary: "Submit one task, or many as {tasks:[…]}", scope: ScopeCall, class: work,
			headers: []param{
				{headerIdempotency, "The task's idempotency key, for one task: a second submit with it and the same inputs gives the first task."},
				{"traceparent", "W3C trace context; the task's calls join the trace."},
			},
			body: "TaskSubmission",
			answers: []outcome{
				{202, "TaskReceipts", "Durable. For many, receipts in order, each a receipt or an error."},
				{409, "ErrorBody", "The key belongs to a task with other inputs, which details name."},
			},
			handle: g.submitTasks,
		},
		{
			method: http.MethodGet, pattern: "/v1/tasks", operation: "listTasks",
			summary: "Tasks in the order of submission, a page at a time", scope: ScopeCall, class: control,
			query: []param{
				{"module", "Only tasks of this module."}, {"status", "Only in this state: pending, running, completed, failed, cancelled."},
				{"detail", "Only with this detail: queued, scheduled, claimed, backing_off, awaiting_approval, blocked, dead."},
				{"q", "Text in task ID, module, idempotency key or schedule."}, {"parent", "Only tasks that this one submitted."},
				{"order", "newest turns the order around."},
				{"cursor", "next_cursor of the page before."}, {"limit", "Most tasks of a page, 100 when absent, at most 1000."},
			},
			answers: []outcome{{200, "TaskList", "The tasks. Inputs and results are redacted."}}, handle: g.listTasks,
		},
		{
			method: http.MethodPost, pattern: "/v1/tasks:bulk", operation: "bulkTasks",
			summary: "Cancel, retry or requeue all tasks that a filter selects", scope: ScopeOperate, class: control,
			body: "TaskBulk", answers: []outcome{{200, "TaskBulkResult", "What was done, or would be with dry_run."}}, handle: g.bulkTasks,
		},
		{
			method: http.MethodGet, pattern: "/v1/tasks/{id}", operation: "showTask",
			summary: "One task with its timeline", scope: ScopeCall, class: control,
			answers: []outcome{{200, "Task", "The task. Inputs and result are redacted."}, unknown, {410, "ErrorBody", "It was kept as long as it should be."}},
			handle:  g.showTask,
		},
		{
			method: http.MethodGet, pattern: "/v1/tasks/{id}/inputs", operation: "showTaskInputs",
			summary: "The inputs as they were submitted; the reading is recorded in the timeline", scope: ScopeOperate, class: control,
			answers: []outcome{{200, "Inputs", "The inputs."}, unknown}, handle: g.showTaskInputs,
		},
		{
			method: http.MethodGet, pattern: "/v1/tasks/{id}/result", operation: "showTaskResult",
			summary: "The outcome of a task, for who submitted it and for operators", scope: ScopeCall, class: control,
			query:   []param{{"wait", "How long to wait for the end, a Go duration such as 30s, at most 10m."}},
			answers: []outcome{{200, "Output", "The bare output."}, {202, "Task", "It is not over; the task as it is."}, unknown},
			handle:  g.showTaskResult,
		},
		{
			method: http.MethodGet, pattern: "/v1/tasks/{id}/events", operation: "followTask",
			summary: "What happens to a task, as it happens", scope: ScopeCall, class: control,
			headers: []param{{headerLastEvent, "Number of the last event that the reader has; it goes on after that."}},
			answers: []outcome{{200, eventsSchema, "Server-Sent Events: snapshot, transition, progress, gap and end (id is the event's number); the answer ends with the task."}, unknown},
			handle:  g.followTask,
		},
		{
			method: http.MethodDelete, pattern: "/v1/tasks/{id}", operation: "cancelTask",
			summary: "Cancel a task, its calls, and the tasks it submitted", scope: ScopeCancel, class: control,
			query:   []param{reason},
			answers: []outcome{{202, "TaskCancel", "accepted, or already_terminal."}, unknown}, handle: g.cancelTask,
		},
		{
			method: http.MethodPost, pattern: "/v1/tasks/{id}/retry", operation: "retryTask",
			summary: "Run a failed or cancelled task again", scope: ScopeCall, class: control, body: "Reason",
			answers: []outcome{{202, "Task", "It is queued."}, unknown, {409, "ErrorBody", "It is in another state."}}, handle: g.retryTask,
		},
		{
			method: http.MethodPost, pattern: "/v1/tasks/{id}/requeue", operation: "requeueTask",
			summary: "Take a task from the dead letter, or make a waiting one due now", scope: ScopeOperate, class: control, body: "Reason",
			answers: []outcome{{202, "Task", "It is queued."}, unknown, {409, "ErrorBody", "It is in another state."}}, handle: g.requeueTask,
		},
	}
	list = append(list, g.scheduleRoutes()...)
	list = append(list, g.queueRoutes()...)
	for _, rt := range list {
		rt.handle = g.withTasks(rt.handle)
	}
	return list
}

// withTasks refuses where there are no tasks.
func (g *Gateway) withTasks(next handler) handler {
	return func(x *exchange) error {
		if g.tasks == nil {
			return notImplemented("tasks")
		}
		return next(x)
	}
}

// submitTasks serves POST /v1/tasks.
func (g *Gateway) submitTasks(x *exchange) error {
	key, err := textHeader(x.r.Header, headerIdempotency, maxIdempotencyKey)
	if err != nil {
		return err
	}
	body, err := g.object(x)
	if err != nil {
		return err
	}
	var req task.SubmitRequest
	_, many := body["tasks"]
	if many {
		if key != "" {
			return invalid("header %s goes with one task; give each of many its idempotency_key", headerIdempotency)
		}
		err = strictly(body, &req)
	} else {
		req.Tasks = make([]task.Submission, 1)
		err = strictly(body, &req.Tasks[0])
	}
	if err != nil {
		return err
	}
	about, err := g.taskContext(x)
	if err != nil {
		return err
	}
	for i := range req.Tasks {
		s := &req.Tasks[i]
		if s.Context != nil {
			return invalid("context is given by the router, not by the caller")
		}
		s.Context = about
		if key != "" && s.IdempotencyKey != "" && s.IdempotencyKey != key {
			return invalid("the idempotency key in the body differs from the one in the header %s", headerIdempotency)
		}
		if key != "" {
			s.IdempotencyKey = key
		}
	}
	answer, err := g.tasks.Submit(x.r.Context(), req)
	if err != nil {
		return err
	}
	for i := range answer.Receipts {
		answer.Receipts[i].Error = outwardFailure(answer.Receipts[i].Error, x.traceID)
	}
	if many {
		return x.record(http.StatusAccepted, answer)
	}
	if len(answer.Receipts) != 1 {
		return module.Errorf(module.CodeInternal, "%d receipts for one task", len(answer.Receipts))
	}
	if e := answer.Receipts[0].Error; e != nil {
		return e.Err()
	}
	x.w.Header().Set("Location", "/v1/tasks/"+answer.Receipts[0].TaskID)
	return x.record(http.StatusAccepted, answer.Receipts[0].Receipt)
}

// taskContext is the Context that the calls of a submitted task have as their parent.
func (g *Gateway) taskContext(x *exchange) (json.RawMessage, error) {
	h, err := readCallHeaders(http.Header{
		headerTraceParent: x.r.Header.Values(headerTraceParent), headerTraceState: x.r.Header.Values(headerTraceState),
	})
	if err != nil {
		return nil, err
	}
	c := module.NewContext(module.ContextOptions{Identity: x.principal.Identity, TraceParent: h.traceParent})
	x.traceID = c.TraceID()
	raw, err := contextwire.EncodeContext(c, contextwire.JSON)
	if err != nil {
		return nil, module.Errorf(module.CodeInternal, "encode the context of a task: %w", err)
	}
	return raw, nil
}

// record answers with a value of package task, whose JSON is a contract of its own.
func (x *exchange) record(status int, v any) error {
	raw, err := json.Marshal(v)
	if err != nil {
		return module.Errorf(module.CodeInternal, "encode the answer: %w", err)
	}
	return x.raw(status, raw)
}

// outwardFailure is a stored failure as the outside may see it.
func outwardFailure(f *task.Failure, traceID string) *task.Failure {
	if f == nil || f.Error == nil {
		return f
	}
	return &task.Failure{Error: outward(f.Error, traceID)}
}

// outwardRecord is a record as the outside may see it.
func outwardRecord(r task.Record) task.Record {
	r.Error = outwardFailure(r.Error, "")
	if r.Timeline == nil {
		r.Timeline = []task.Transition{}
	}
	return r
}

// reasonOf reads a body that may hold a reason.
func (g *Gateway) reasonOf(x *exchange) (string, error) {
	body, err := g.object(x)
	if err != nil {
		return "", err
	}
	var in struct {
		Reason string `json:"reason"`
	}
	if err := strictly(body, &in); err != nil {
		return "", err
	}
	if len(in.Reason) > maxReason {
		return "", invalid("reason is longer than %d bytes", maxReason)
	}
	return in.Reason, nil
}

// bulkTasks serves POST /v1/tasks:bulk.
func (g *Gateway) bulkTasks(x *exchange) error {
	body, err := g.object(x)
	if err != nil {
		return err
	}
	if _, given := body["by"]; given {
		return invalid("by is who asks, which the router knows")
	}
	var req task.BulkRequest
	if err := strictly(body, &req); err != nil {
		return err
	}
	req.By = x.principal.by(g.name)
	answer, err := g.tasks.Bulk(x.r.Context(), req)
	if err != nil {
		return err
	}
	if answer.TaskIDs == nil {
		answer.TaskIDs = []string{}
	}
	return x.record(http.StatusOK, answer)
}

// cancelTask serves DELETE /v1/tasks/{id}.
func (g *Gateway) cancelTask(x *exchange) error {
	reason := x.r.URL.Query().Get("reason")
	if len(reason) > maxReason {
		return invalid("query parameter reason is longer than %d bytes", maxReason)
	}
	id := x.r.PathValue("id")
	answer, err := g.tasks.Cancel(x.r.Context(), task.CancelAsk{TaskID: id, By: x.principal.by(g.name), Reason: reason})
	if err != nil {
		return err
	}
	if answer.State == task.CancelUnknown {
		return module.Errorf(module.CodeTaskNotFound, "no such task").WithDetail("task_id", id)
	}
	return x.record(http.StatusAccepted, answer)
}

// retryTask serves POST /v1/tasks/{id}/retry.
func (g *Gateway) retryTask(x *exchange) error { return g.act(x, Tasks.Retry) }

// requeueTask serves POST /v1/tasks/{id}/requeue.
func (g *Gateway) requeueTask(x *exchange) error { return g.act(x, Tasks.Requeue) }

func (g *Gateway) act(x *exchange, do taskAct) error {
	reason, err := g.reasonOf(x)
	if err != nil {
		return err
	}
	r, err := do(g.tasks, x.r.Context(), task.ActAsk{TaskID: x.r.PathValue("id"), By: x.principal.by(g.name), Reason: reason})
	if err != nil {
		return err
	}
	return x.record(http.StatusAccepted, outwardRecord(r))
}
