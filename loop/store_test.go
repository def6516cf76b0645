package loop_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apbus/apbus/loop"
	"github.com/apbus/apbus/loop/looptest"
)

func TestMemStore(t *testing.T) {
	looptest.TestStore(t, func(*testing.T) loop.Store { return loop.NewMemStore() })
}

func TestMemStoreLockEndsByItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := loop.NewMemStore()
		if _, err := s.Lock(t.Context(), "run", time.Minute); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute - time.Nanosecond)
		if _, err := s.Lock(t.Context(), "run", time.Minute); !errors.Is(err, loop.ErrLocked) {
			t.Errorf("before its time: %v", err)
		}
		time.Sleep(time.Nanosecond)
		if _, err := s.Lock(t.Context(), "run", time.Minute); err != nil {
			t.Errorf("after its time: %v", err)
		}
	})
}
