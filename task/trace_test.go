package task_test

import (
	"testing"
	"testing/synctest"

	"pgregory.net/rapid"

	"github.com/apbus/apbus/task/tasktest"
)

// TestModel runs random traces against writers over a log in memory, on fake time. A
// failure prints the shortest trace that rapid finds.
func TestModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		steps := tasktest.Steps(rt, 60)
		var complaint string
		synctest.Test(t, func(t *testing.T) {
			s := &stage{fixture: newFixture(t, tasktest.TraceOptions)}
			defer s.close()
			complaint = tasktest.Play(s, steps)
		})
		if complaint != "" {
			rt.Fatal(complaint)
		}
	})
}

// stage has writers of this process.
type stage struct {
	*fixture
	stops []func()
}

var _ tasktest.TraceStage = (*stage)(nil)

func (s *stage) Client() tasktest.TraceClient { return s.Writer }
func (s *stage) Crash(int)                    { s.crash() }

// Depose leaves the old one running: it does not know yet.
func (s *stage) Depose() tasktest.Deposed {
	old, stop, ended := s.Writer, s.stop, s.ended
	s.lead()
	s.stops = append(s.stops, func() {
		stop(nil)
		<-ended
	})
	return old
}

func (s *stage) close() {
	s.fixture.close()
	for _, stop := range s.stops {
		stop()
	}
}
