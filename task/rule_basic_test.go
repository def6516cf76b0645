package task_test

import (
	"context"
	"testing"

	"github.com/apbus/apbus/task"
)

func TestLifeOfATask(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		id := f.submit(task.Submission{ModuleID: "job.effect", Inputs: []byte(`{"a":1}`)})
		f.want(id, task.Pending, task.Queued)
		g := f.claim("n1", 4, "job.effect")
		if len(g) != 1 || g[0].TaskID != id || !g[0].Confirm || string(g[0].Inputs) != `{"a":1}` || g[0].Attempt != 1 {
			t.Fatalf("grants %+v", g)
		}
		f.want(id, task.Pending, task.Claimed)
		f.begin(g[0])
		f.want(id, task.Running, "")
		f.succeed(g[0], `{"ok":true}`)
		r := f.want(id, task.Completed, "")
		if string(r.Result) != `{"ok":true}` || r.Attempt != 1 || r.StartedAt == 0 || r.CompletedAt == 0 {
			t.Errorf("record %+v", r)
		}
		res, err := f.Result(context.Background(), task.ResultRequest{TaskID: id})
		if err != nil || string(res.Output) != `{"ok":true}` {
			t.Errorf("result %+v, %v", res, err)
		}
	})
}
