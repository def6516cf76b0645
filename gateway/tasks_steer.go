package gateway

import (
	"context"
	"net/http"

	"github.com/apbus/apbus/module"
	"github.com/apbus/apbus/task"
)

// taskAct is something that is done to one task: a method of the port as a function.
type taskAct func(t Tasks, ctx context.Context, ask task.ActAsk) (task.Record, error)

func (g *Gateway) queueRoutes() []*route {
	return []*route{
		{
			method: http.MethodGet, pattern: "/v1/queues", operation: "listQueues",
			summary: "The queues of the modules: what waits, what runs, what is paused", scope: ScopeCall, class: control,
			answers: []outcome{{200, "QueueList", "The queues, sorted by module."}}, handle: g.listQueues,
		},
		{
			method: http.MethodPost, pattern: "/v1/queues/{module}/limits", operation: "limitQueue",
			summary: "Change how many tasks of a module, and how many with one concurrency key, run at once", scope: ScopeOperate, class: control,
			body: "QueueLimits", answers: []outcome{{200, "Queue", "The queue."}}, handle: g.limitQueue,
		},
		{
			method: http.MethodPost, pattern: "/v1/queues/{module}/pause", operation: "pauseQueue",
			summary: "Start no more tasks of a module; what runs, runs on", scope: ScopeOperate, class: control, body: "Reason",
			answers: []outcome{{200, "Queue", "The queue."}}, handle: g.pauseQueue,
		},
		{
			method: http.MethodPost, pattern: "/v1/queues/{module}/resume", operation: "resumeQueue",
			summary: "Go on with the tasks of a module", scope: ScopeOperate, class: control, body: "Reason",
			answers: []outcome{{200, "Queue", "The queue."}}, handle: g.resumeQueue,
		},
	}
}

// listQueues serves GET /v1/queues.
func (g *Gateway) listQueues(x *exchange) error {
	queues, err := g.tasks.Queues(x.r.Context())
	if err != nil {
		return err
	}
	if queues == nil {
		queues = []task.QueueState{}
	}
	return x.record(http.StatusOK, map[string]any{"queues": queues})
}

// limitQueue serves POST /v1/queues/{module}/limits.
func (g *Gateway) limitQueue(x *exchange) error {
	id := x.r.PathValue("module")
	if err := module.ValidateID(id); err != nil {
		return err
	}
	body, err := g.object(x)
	if err != nil {
		return err
	}
	var limits task.QueueLimits
	if err := strictly(body, &limits); err != nil {
		return err
	}
	state, err := g.tasks.LimitQueue(x.r.Context(), id, limits)
	if err != nil {
		return err
	}
	return x.record(http.StatusOK, state)
}

// pauseQueue serves POST /v1/queues/{module}/pause.
func (g *Gateway) pauseQueue(x *exchange) error {
	return g.steer(x, func(id, reason string) (task.QueueState, error) {
		return g.tasks.Pause(x.r.Context(), id, x.principal.by(g.name), reason)
	})
}

// resumeQueue serves POST /v1/queues/{module}/resume.
func (g *Gateway) resumeQueue(x *exchange) error {
	return g.steer(x, func(id, _ string) (task.QueueState, error) {
		return g.tasks.Resume(x.r.Context(), id, x.principal.by(g.name))
	})
}

func (g *Gateway) steer(x *exchange, do func(id, reason string) (task.QueueState, error)) error {
	id := x.r.PathValue("module")
	if err := module.ValidateID(id); err != nil {
		return err
	}
	reason, err := g.reasonOf(x)
	if err != nil {
		return err
	}
	state, err := do(id, reason)
	if err != nil {
		return err
	}
	return x.record(http.StatusOK, state)
}

func (g *Gateway) scheduleRoutes() []*route {
	return []*route{
		{
			method: http.MethodGet, pattern: "/v1/schedules", operation: "listSchedules",
			summary: "Recurring work", scope: ScopeCall, class: control,
			answers: []outcome{{200, "ScheduleList", "The schedules, sorted by name. Inputs are redacted."}}, handle: g.listSchedules,
		},
		{
			method: http.MethodPost, pattern: "/v1/schedules", operation: "createSchedule",
			summary: "Submit a task again and again", scope: ScopeOperate, class: control, body: "ScheduleSpec",
			answers: []outcome{{201, "Schedule", "The schedule."}, {409, "ErrorBody", "The name is taken."}}, handle: g.createSchedule,
		},
		{
			method: http.MethodGet, pattern: "/v1/schedules/{name}", operation: "showSchedule",
			summary: "One schedule", scope: ScopeCall, class: control,
			answers: []outcome{{200, "Schedule", "The schedule."}, {404, "ErrorBody", "No such schedule."}}, handle: g.showSchedule,
		},
		{
			method: http.MethodPost, pattern: "/v1/schedules/{name}", operation: "putSchedule",
			summary: "Create a schedule, or replace the one of this name", scope: ScopeOperate, class: control, body: "ScheduleSpec",
			answers: []outcome{{200, "Schedule", "The schedule."}}, handle: g.putSchedule,
		},
		{
			method: http.MethodDelete, pattern: "/v1/schedules/{name}", operation: "deleteSchedule",
			summary: "Submit no more; the tasks that were submitted stay", scope: ScopeOperate, class: control,
			answers: []outcome{{200, "Deleted", "It is gone."}, {404, "ErrorBody", "No such schedule."}}, handle: g.deleteSchedule,
		},
	}
}

// listSchedules serves GET /v1/schedules.
func (g *Gateway) listSchedules(x *exchange) error {
	list, err := g.tasks.Schedules(x.r.Context())
	if err != nil {
		return err
	}
	seen := make([]task.Schedule, len(list))
	for i, s := range list {
		seen[i] = outwardSchedule(s)
	}
	return x.record(http.StatusOK, map[string]any{"schedules": seen})
}

// showSchedule serves GET /v1/schedules/{name}.
func (g *Gateway) showSchedule(x *exchange) error {
	s, err := g.tasks.Schedule(x.r.Context(), x.r.PathValue("name"))
	if err != nil {
		return err
	}
	return x.record(http.StatusOK, outwardSchedule(s))
}

// createSchedule serves POST /v1/schedules.
func (g *Gateway) createSchedule(x *exchange) error { return g.keepSchedule(x, "", http.StatusCreated) }

// putSchedule serves POST /v1/schedules/{name}.
func (g *Gateway) putSchedule(x *exchange) error {
	return g.keepSchedule(x, x.r.PathValue("name"), http.StatusOK)
}

// keepSchedule creates a schedule, or replaces the one of a name.
func (g *Gateway) keepSchedule(x *exchange, name string, status int) error {
	body, err := g.object(x)
	if err != nil {
		return err
	}
	var spec task.ScheduleSpec
	if err := strictly(body, &spec); err != nil {
		return err
	}
	switch {
	case name != "" && spec.Name != "" && spec.Name != name:
		return invalid("the name in the body differs from the one in the path")
	case name != "":
		spec.Name = name
	}
	if spec.Task.Context != nil {
		return invalid("task.context is given by the router, not by the caller")
	}
	if spec.Task.Context, err = g.taskContext(x); err != nil {
		return err
	}
	s, err := g.tasks.PutSchedule(x.r.Context(), spec, x.principal.by(g.name), name != "")
	if err != nil {
		return err
	}
	return x.record(status, outwardSchedule(s))
}

// deleteSchedule serves DELETE /v1/schedules/{name}.
func (g *Gateway) deleteSchedule(x *exchange) error {
	name := x.r.PathValue("name")
	if err := g.tasks.DeleteSchedule(x.r.Context(), name); err != nil {
		return err
	}
	return x.json(http.StatusOK, map[string]any{"name": name, "deleted": true})
}

func outwardSchedule(s task.Schedule) task.Schedule {
	s.LastError = outwardFailure(s.LastError, "")
	return s
}
