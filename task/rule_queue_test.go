package task_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/apbus/apbus/module"
	"github.com/apbus/apbus/task"
)

func TestRule09_PrioritiesAreWeightedAndNoneStarves(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		for range 200 {
			f.submit(task.Submission{ModuleID: "job.safe", Priority: ptr(9)})
			f.submit(task.Submission{ModuleID: "job.safe", Priority: ptr(0)})
		}
		var got [10]int
		firstLow := -1
		for i, g := range f.claim("n1", 100, "job.safe") {
			got[g.Priority]++
			if g.Priority == 0 && firstLow < 0 {
				firstLow = i
			}
		}
		if got[9] < 90 || got[0] < 2 || got[0] > 10 || firstLow > 40 {
			t.Errorf("of 100: %v, the first low one after %d", got, firstLow)
		}
	})
}

func TestRule09_FirstInFirstOutInOnePriority(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		var ids []string
		for range 50 {
			ids = append(ids, f.submit(task.Submission{ModuleID: "job.safe"}))
		}
		f.cancel(ids[3])
		ids = append(ids[:3], ids[4:]...)
		f.crash()
		for i, g := range f.claim("n1", 100, "job.safe") {
			if g.TaskID != ids[i] {
				t.Fatalf("task %d is out of order", i)
			}
		}
	})
}

func TestRule09_ConcurrencyKeys(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		for i := range 6 {
			f.submit(task.Submission{ModuleID: "job.effect", ConcurrencyKey: []string{"a", "b"}[i%2]})
		}
		f.submit(task.Submission{ModuleID: "job.effect"})
		gs := f.claim("n1", 10, "job.effect")
		if len(gs) != 3 { // one of each key, and the one without
			t.Fatalf("%d grants", len(gs))
		}
		if more := f.claim("n1", 10, "job.effect"); len(more) != 0 {
			t.Fatalf("%d more", len(more))
		}
		f.begin(gs[0])
		f.succeed(gs[0], `{}`)
		if more := f.claim("n1", 10, "job.effect"); len(more) != 1 {
			t.Fatalf("%d more", len(more))
		}
		if _, err := f.SetQueue(context.Background(), "job.effect", task.QueueSettings{KeyConcurrency: 3}); err != nil {
			t.Fatal(err)
		}
		if more := f.claim("n1", 10, "job.effect"); len(more) != 3 {
			t.Fatalf("%d more after the limit was raised", len(more))
		}
	})
}

func TestRule09_ConcurrencyOfAModule(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		if _, err := f.LimitQueue(context.Background(), "job.safe", task.QueueLimits{Concurrency: ptr(2)}); err != nil {
			t.Fatal(err)
		}
		for range 5 {
			f.submit(task.Submission{ModuleID: "job.safe"})
		}
		f.crash()
		gs := f.claim("n1", 10, "job.safe")
		if len(gs) != 2 {
			t.Fatalf("%d grants", len(gs))
		}
		got := make(chan int, 1)
		go func() {
			a, err := f.Claim(context.Background(), task.ClaimRequest{Node: "n2", Modules: []string{"job.safe"}, Slots: 10, WaitMS: 60_000})
			if err != nil {
				t.Error(err)
			}
			got <- len(a.Grants)
		}()
		wait(time.Second)
		f.succeed(gs[0], `{}`)
		if n := <-got; n != 1 {
			t.Errorf("%d grants after one ended", n)
		}
		// The limits are set apart from each other and from a pause; 0 takes them off.
		for _, l := range []task.QueueLimits{{KeyConcurrency: ptr(7)}, {Concurrency: ptr(0)}} {
			if _, err := f.Pause(context.Background(), "job.safe", "ann", ""); err != nil {
				t.Fatal(err)
			}
			q, err := f.LimitQueue(context.Background(), "job.safe", l)
			if err != nil || !q.Paused || q.KeyConcurrency != 7 {
				t.Errorf("limits %+v: %+v, %v", l, q, err)
			}
		}
		if _, err := f.Resume(context.Background(), "job.safe", "ann"); err != nil {
			t.Fatal(err)
		}
		if more := f.claim("n1", 10, "job.safe"); len(more) != 2 {
			t.Errorf("%d grants without a limit", len(more))
		}
	})
}

func TestRule09_PauseAndResume(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		ctx := context.Background()
		id := f.submit(task.Submission{ModuleID: "job.safe"})
		q, err := f.Pause(ctx, "job.safe", "ann", "upgrade")
		if err != nil || !q.Paused || q.PausedBy != "ann" || q.Queued != 1 {
			t.Fatalf("%+v, %v", q, err)
		}
		f.crash()
		if g := f.claim("n1", 1, "job.safe"); len(g) != 0 {
			t.Fatalf("granted %+v", g)
		}
		if r := f.want(id, task.Pending, task.Blocked); r.BlockedBy != task.BlockedPaused {
			t.Errorf("%+v", r)
		}
		got := make(chan int, 1)
		go func() {
			a, _ := f.Claim(ctx, task.ClaimRequest{Node: "n1", Modules: []string{"job.safe"}, Slots: 1, WaitMS: 60_000})
			got <- len(a.Grants)
		}()
		wait(time.Second)
		if _, err := f.Resume(ctx, "job.safe", "ann"); err != nil {
			t.Fatal(err)
		}
		if n := <-got; n != 1 {
			t.Errorf("%d grants", n)
		}
	})
}

func TestRule09_Schedules(t *testing.T) {
	spec := task.ScheduleSpec{Name: "nightly", Cron: "30 2 * * *", TimeZone: "Europe/Berlin", Task: task.Submission{ModuleID: "job.safe", Inputs: []byte(`{"a":1}`)}}
	put := func(t *testing.T, f *fixture, s task.ScheduleSpec) task.Schedule {
		t.Helper()
		got, err := f.PutSchedule(context.Background(), s, "ann", false)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	count := func(t *testing.T, f *fixture) int {
		t.Helper()
		page, err := f.List(context.Background(), task.ListRequest{Filter: task.Filter{ModuleID: "job.safe"}})
		if err != nil {
			t.Fatal(err)
		}
		return len(page.Tasks)
	}
	t.Run("each time once, whoever leads", func(t *testing.T) {
		bubble(t, func(t *testing.T, f *fixture) { // it is midnight UTC, 2000-01-01
			s := put(t, f, spec)
			if got := s.NextAt.Time(); !got.Equal(time.Date(2000, 1, 1, 1, 30, 0, 0, time.UTC)) {
				t.Errorf("next at %v", got)
			}
			wait(90*time.Minute - time.Second)
			if n := count(t, f); n != 0 {
				t.Errorf("%d tasks", n)
			}
			wait(time.Second)
			if n := count(t, f); n != 1 {
				t.Errorf("%d tasks", n)
			}
			for range 3 {
				f.crash()
				wait(time.Second)
			}
			if n := count(t, f); n != 1 {
				t.Errorf("%d tasks", n)
			}
			got, err := f.Schedule(context.Background(), "nightly")
			if err != nil || got.Fired != 1 || got.LastTask == "" || got.MissedCount != 0 {
				t.Errorf("%+v, %v", got, err)
			}
			if r := f.get(got.LastTask); r.Schedule != "nightly" || string(r.Inputs) != `{"a":1}` {
				t.Errorf("%+v", r)
			}
		})
	})
	for _, missed := range []task.Missed{task.MissedSkip, task.MissedOnce} {
		t.Run("missed, "+string(missed), func(t *testing.T) {
			bubble(t, func(t *testing.T, f *fixture) {
				s := spec
				s.Missed = missed
				put(t, f, s)
				f.close()
				wait(50 * time.Hour) // three times go by
				f.lead()
				wait(time.Second)
				want := map[task.Missed]int{task.MissedSkip: 0, task.MissedOnce: 1}[missed]
				got, err := f.Schedule(context.Background(), "nightly")
				if n := count(t, f); err != nil || n != want || int(got.Fired) != want || int(got.MissedCount) != 3-want {
					t.Errorf("%d tasks, %+v, %v", n, got, err)
				}
			})
		})
	}
	t.Run("a change of writers is no miss", func(t *testing.T) {
		bubble(t, func(t *testing.T, f *fixture) {
			put(t, f, spec)
			wait(90*time.Minute - time.Second)
			f.close()
			wait(4 * time.Second)
			f.lead()
			wait(time.Second)
			if n := count(t, f); n != 1 {
				t.Errorf("%d tasks", n)
			}
		})
	})
	t.Run("replace, pause, delete", func(t *testing.T) {
		bubble(t, func(t *testing.T, f *fixture) {
			ctx := context.Background()
			put(t, f, spec)
			_, err := f.PutSchedule(ctx, spec, "ann", false)
			wantCode(t, err, module.CodeTaskScheduleExists)
			s := spec
			s.Paused = true
			if _, err := f.PutSchedule(ctx, s, "ann", true); err != nil {
				t.Fatal(err)
			}
			wait(50 * time.Hour)
			if n := count(t, f); n != 0 {
				t.Errorf("%d tasks of a paused schedule", n)
			}
			if list, err := f.Schedules(ctx); err != nil || len(list) != 1 {
				t.Errorf("%+v, %v", list, err)
			}
			if err := f.DeleteSchedule(ctx, "nightly"); err != nil {
				t.Fatal(err)
			}
			wantCode(t, f.DeleteSchedule(ctx, "nightly"), module.CodeTaskScheduleNotFound)
			if f.mem.Len() != 0 {
				t.Errorf("%d entries", f.mem.Len())
			}
		})
	})
	t.Run("refused", func(t *testing.T) {
		bubble(t, func(t *testing.T, f *fixture) {
			for i, change := range []func(*task.ScheduleSpec){
				func(s *task.ScheduleSpec) { s.Name = "" },
				func(s *task.ScheduleSpec) { s.Name = "a.b" },
				func(s *task.ScheduleSpec) { s.Cron = "nonsense" },
				func(s *task.ScheduleSpec) { s.Cron = "0 0 30 2 *" },
				func(s *task.ScheduleSpec) { s.TimeZone = "Mars/Olympus" },
				func(s *task.ScheduleSpec) { s.Missed = "twice" },
				func(s *task.ScheduleSpec) { s.Task.ModuleID = "" },
				func(s *task.ScheduleSpec) { s.Task.RunAt = "2000-01-01T00:00:00Z" },
				func(s *task.ScheduleSpec) { s.Task.Priority = ptr(11) },
			} {
				s := spec
				change(&s)
				if _, err := f.PutSchedule(context.Background(), s, "ann", false); module.AsError(err) == nil {
					t.Errorf("change %d is accepted: %v", i, err)
				}
			}
		})
	})
}

func TestRule09_ScheduledTasksStartInTime(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		at := time.Now().Add(90 * time.Minute)
		id := f.submit(task.Submission{ModuleID: "job.safe", RunAt: at.Format(time.RFC3339)})
		f.want(id, task.Pending, task.Scheduled)
		f.crash()
		wait(90*time.Minute - time.Second)
		if g := f.claim("n1", 1, "job.safe"); len(g) != 0 {
			t.Fatalf("%+v", g)
		}
		wait(time.Second)
		if g := f.claim("n1", 1, "job.safe"); len(g) != 1 {
			t.Fatalf("%+v", g)
		}
		past := f.submit(task.Submission{ModuleID: "job.safe", RunAt: "2000-01-01T00:00:01+00:00"})
		f.want(past, task.Pending, task.Queued)
	})
}

func TestClaimsAreSharedOut(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		got := make(chan string, 10)
		for i := range 5 {
			go func() {
				a, err := f.Claim(context.Background(), task.ClaimRequest{Node: fmt.Sprint("n", i), Modules: []string{"job.safe", "job.effect"}, Slots: 1, WaitMS: 3600_000})
				if err != nil {
					t.Error(err)
				}
				for _, g := range a.Grants {
					got <- g.TaskID
				}
			}()
		}
		wait(time.Second)
		seen := map[string]bool{}
		for i := range 5 {
			f.submit(task.Submission{ModuleID: []string{"job.safe", "job.effect"}[i%2]})
		}
		for range 5 {
			seen[<-got] = true
		}
		if len(seen) != 5 {
			t.Errorf("%v", seen)
		}
	})
}
