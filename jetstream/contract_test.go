package jetstream_test

import (
	"testing"
	"time"

	"github.com/apbus/apbus/internal/natstest"
	durable "github.com/apbus/apbus/jetstream"
	"github.com/apbus/apbus/task"
	"github.com/apbus/apbus/task/tasktest"
)

// leaders is a factory of logs over one stream: each new leader follows one that has
// just left and may still try to write.
func leaders(t *testing.T, s *natstest.Server, o durable.Options) (f tasktest.LogFactory, end func()) {
	store, disconnect := open(t, s, o)
	var last *reign
	f.Lead = func(t *testing.T) task.Log {
		t.Helper()
		if last != nil {
			_ = last.leave()
		}
		last = lead(t, store)
		return last.log
	}
	return f, func() {
		if last != nil {
			_ = last.leave()
		}
		disconnect()
	}
}

func TestLogContract(t *testing.T) {
	for _, mode := range modes {
		t.Run(string(mode), func(t *testing.T) {
			tasktest.TestLog(t, func(t *testing.T) tasktest.LogFactory {
				s := natstest.New(t, natstest.Options{SyncAlways: mode == durable.PowerSafe})
				t.Cleanup(s.Close)
				f, end := leaders(t, s, durable.Options{Durability: mode, Logger: quiet()})
				t.Cleanup(end)
				return f
			})
		})
	}
}

func TestLogRetention(t *testing.T) {
	inModes(t, func(t *testing.T, s *natstest.Server, o durable.Options) {
		f, end := leaders(t, s, o)
		defer end()
		f.Wait = func(d time.Duration) { pass(d) }
		tasktest.TestRetention(t, f)
	})
}
