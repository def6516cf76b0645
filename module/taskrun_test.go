package module_test

import (
	"context"
	"errors"
	"testing"

	"github.com/apbus/apbus/module"
)

func TestTaskRun(t *testing.T) {
	root := module.NewContext(module.ContextOptions{})
	attempt := root.Enter("job.long", module.CallScope{})
	nested := attempt.Enter("job.part", module.CallScope{})
	var saved []any
	refused := errors.New("refused")
	ctx := module.WithTaskRun(t.Context(), module.TaskRun{TaskID: "t1", Attempt: 2, Checkpoint: []byte(`3`)}, 1,
		func(_ context.Context, v any) error {
			if v == "bad" {
				return refused
			}
			saved = append(saved, v)
			return nil
		})
	tests := []struct {
		name string
		ctx  context.Context
		ok   bool
	}{
		{"the attempt itself", module.WithContext(ctx, attempt), true},
		{"a call it makes", module.WithContext(ctx, nested), false},
		{"no call", ctx, false},
		{"no task", module.WithContext(t.Context(), attempt), false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			saved = nil
			run, ok := module.TaskOf(tt.ctx)
			if ok != tt.ok || ok && (run.TaskID != "t1" || run.Attempt != 2 || string(run.Checkpoint) != "3") {
				t.Errorf("TaskOf = %+v, %v", run, ok)
			}
			if err := module.Checkpoint(tt.ctx, 7); err != nil || (len(saved) == 1) != tt.ok {
				t.Errorf("Checkpoint saved %v, %v", saved, err)
			}
			if err := module.Checkpoint(tt.ctx, "bad"); errors.Is(err, refused) != tt.ok {
				t.Errorf("Checkpoint = %v", err)
			}
		})
	}
}
