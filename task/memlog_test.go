package task_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/apbus/apbus/task"
	"github.com/apbus/apbus/task/tasktest"
)

func TestMemLog(t *testing.T) {
	tasktest.TestLog(t, func(*testing.T) tasktest.LogFactory {
		mem := task.NewMemLog()
		return tasktest.LogFactory{Lead: func(*testing.T) task.Log { return mem.Lead() }}
	})
}

func TestMemLogRetention(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := task.NewMemLog()
		tasktest.TestRetention(t, tasktest.LogFactory{Lead: func(*testing.T) task.Log { return mem.Lead() }, Wait: func(d time.Duration) { time.Sleep(d) }})
	})
}
