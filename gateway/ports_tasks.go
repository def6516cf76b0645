package gateway

import (
	"context"
	"encoding/json"

	"github.com/apbus/apbus/task"
)

// Tasks is what the gateway asks of whoever writes the tasks. Records that it gives
// are redacted. Its errors are coded, as those of task.Service, which has these
// methods.
type Tasks interface {
	TaskReader
	TaskChanger
	TaskSteering
	TaskSchedules
}

// TaskReader shows tasks.
type TaskReader interface {
	Get(ctx context.Context, id string) (task.Record, error)
	List(ctx context.Context, req task.ListRequest) (task.Page, error)
	Result(ctx context.Context, req task.ResultRequest) (task.Result, error)
	Events(ctx context.Context, req task.EventsRequest) (task.Events, error)
	// RawInputs is for those who may see them; the reading is recorded.
	RawInputs(ctx context.Context, id, by string) (json.RawMessage, error)
}

// TaskChanger makes tasks and changes what becomes of them.
type TaskChanger interface {
	Submit(ctx context.Context, req task.SubmitRequest) (task.SubmitAnswer, error)
	Cancel(ctx context.Context, ask task.CancelAsk) (task.CancelAnswer, error)
	Retry(ctx context.Context, ask task.ActAsk) (task.Record, error)
	Requeue(ctx context.Context, ask task.ActAsk) (task.Record, error)
	Bulk(ctx context.Context, req task.BulkRequest) (task.BulkAnswer, error)
}

// TaskSteering holds back and lets go of the tasks of a module, and says how many of
// them run at once.
type TaskSteering interface {
	Queues(ctx context.Context) ([]task.QueueState, error)
	LimitQueue(ctx context.Context, moduleID string, l task.QueueLimits) (task.QueueState, error)
	Pause(ctx context.Context, moduleID, by, reason string) (task.QueueState, error)
	Resume(ctx context.Context, moduleID, by string) (task.QueueState, error)
}

// TaskSchedules keeps recurring work.
type TaskSchedules interface {
	PutSchedule(ctx context.Context, spec task.ScheduleSpec, by string, replace bool) (task.Schedule, error)
	Schedule(ctx context.Context, name string) (task.Schedule, error)
	Schedules(ctx context.Context) ([]task.Schedule, error)
	DeleteSchedule(ctx context.Context, name string) error
}
