package module

import (
	"context"
	"encoding/json"
)

// TaskRun is what a module may know of the durable task whose attempt it runs. Most
// modules need none of it.
type TaskRun struct {
	TaskID string
	// Attempt counts the starts of the task from 1.
	Attempt int
	// Checkpoint is what an earlier attempt stored with [Checkpoint], as JSON; nil when
	// none did.
	Checkpoint json.RawMessage
}

type taskRun struct {
	TaskRun
	depth int
	save  func(ctx context.Context, v any) error
}

type taskRunKey struct{}

// WithTaskRun returns a context for the attempt of a task. depth is the length of
// the call chain inside the attempt's own module: modules that it calls in turn are
// no part of the task's bookkeeping. save stores a checkpoint. It is for the worker
// that runs tasks.
func WithTaskRun(ctx context.Context, run TaskRun, depth int, save func(ctx context.Context, v any) error) context.Context {
	return context.WithValue(ctx, taskRunKey{}, &taskRun{run, depth, save})
}

func taskRunOf(ctx context.Context) *taskRun {
	run, _ := ctx.Value(taskRunKey{}).(*taskRun)
	if c := FromContext(ctx); run == nil || c == nil || len(c.chain) != run.depth {
		return nil
	}
	return run
}

// TaskOf returns what is known of the task that the present call is an attempt of;
// false when it is none, as in every ordinary and every nested call.
func TaskOf(ctx context.Context) (TaskRun, bool) {
	if run := taskRunOf(ctx); run != nil {
		return run.TaskRun, true
	}
	return TaskRun{}, false
}

// Checkpoint stores how far an attempt of a task has come, for the next attempt to
// go on from; see [TaskOf]. v is any value with a JSON form, and small: 64 KiB unless
// the writer is set otherwise. It returns once v is durable. Outside an attempt of a
// task it does nothing. TASK_LEASE_LOST means that the task is no longer this
// attempt's, which should end.
func Checkpoint(ctx context.Context, v any) error {
	run := taskRunOf(ctx)
	if run == nil {
		return nil
	}
	return run.save(ctx, v)
}
