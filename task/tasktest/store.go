package tasktest

import (
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/apbus/apbus/task"
)

// TestStore checks that a store keeps the promises of [task.Store]. fresh returns an
// empty one.
func TestStore(t *testing.T, fresh func(t *testing.T) task.Store) {
	for _, test := range []struct {
		name string
		run  func(t *testing.T, s task.Store)
	}{
		{"an unknown ID", storeUnknown},
		{"what was saved is there", storeKeeps},
		{"an upsert keeps its place", storeOrder},
		{"list by status", storeStatus},
		{"delete", storeDelete},
		{"list expired", storeExpired},
		{"records are copies", storeCopies},
		{"many at once", storeConcurrent},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(t, fresh(t)) })
	}
}

func info(id string, s task.Status, completed task.Stamp) task.Info {
	return task.Info{TaskID: id, ModuleID: "job.one", Status: s, SubmittedAt: 1e6, CompletedAt: completed}
}

func save(t *testing.T, s task.Store, list ...task.Info) {
	t.Helper()
	for _, i := range list {
		if err := s.Save(t.Context(), i); err != nil {
			t.Fatalf("Save: %v", err)
		}
	}
}

func wantIDs(t *testing.T, what string, list []task.Info, err error, want ...string) {
	t.Helper()
	var got []string
	for _, i := range list {
		got = append(got, i.TaskID)
	}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%s = %q, %v; want %q", what, got, err, want)
	}
}

func storeUnknown(t *testing.T, s task.Store) {
	if got, err := s.Get(t.Context(), "none"); got != nil || err != nil {
		t.Errorf("Get = %+v, %v", got, err)
	}
	if err := s.Delete(t.Context(), "none"); err != nil {
		t.Errorf("Delete = %v", err)
	}
	list, err := s.List(t.Context(), "")
	wantIDs(t, "List", list, err)
}

func storeKeeps(t *testing.T, s task.Store) {
	text := "timeout"
	want := task.Info{
		TaskID: "a", ModuleID: "job.one", Status: task.Failed, SubmittedAt: 1700000000123456, StartedAt: 1700000001000000,
		CompletedAt: 1700000005500000, Result: []byte(`{"n":1.0}`), Error: &text, RetryCount: 2, MaxRetries: 3,
	}
	save(t, s, want)
	got, err := s.Get(t.Context(), "a")
	if err != nil || got == nil {
		t.Fatalf("Get = %v, %v", got, err)
	}
	if d := cmp.Diff(want, *got); d != "" {
		t.Errorf("Get (-want +got):\n%s", d)
	}
}

func storeOrder(t *testing.T, s task.Store) {
	save(t, s, info("c", task.Pending, 0), info("a", task.Pending, 0), info("b", task.Pending, 0), info("c", task.Running, 0), info("c", task.Running, 0))
	list, err := s.List(t.Context(), "")
	wantIDs(t, "List", list, err, "c", "a", "b")
}

func storeStatus(t *testing.T, s task.Store) {
	save(t, s, info("c", task.Completed, 1), info("x", task.Running, 0), info("a", task.Completed, 2), info("y", task.Failed, 2), info("b", task.Completed, 1))
	list, err := s.List(t.Context(), task.Completed)
	wantIDs(t, "List(completed)", list, err, "c", "a", "b")
	list, err = s.List(t.Context(), task.Cancelled)
	wantIDs(t, "List(cancelled)", list, err)
}

func storeDelete(t *testing.T, s task.Store) {
	save(t, s, info("a", task.Completed, 1), info("b", task.Completed, 1))
	if err := s.Delete(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	save(t, s, info("a", task.Pending, 0)) // a new one, behind the other
	list, err := s.List(t.Context(), "")
	wantIDs(t, "List", list, err, "b", "a")
}

func storeExpired(t *testing.T, s task.Store) {
	save(t, s, info("old", task.Completed, 10), info("at", task.Failed, 20), info("new", task.Cancelled, 30),
		info("runs", task.Running, 5), info("waits", task.Pending, 5), info("undated", task.Completed, 0))
	list, err := s.ListExpired(t.Context(), 20)
	wantIDs(t, "ListExpired", list, err, "old")
	list, err = s.ListExpired(t.Context(), 21)
	wantIDs(t, "ListExpired", list, err, "old", "at")
}

func storeCopies(t *testing.T, s task.Store) {
	in := info("a", task.Completed, 1)
	in.Result = []byte(`{"n":1}`)
	save(t, s, in)
	in.Result[5] = '9'
	got, err := s.Get(t.Context(), "a")
	if err != nil || string(got.Result) != `{"n":1}` {
		t.Fatalf("a change after Save is seen: %s, %v", got.Result, err)
	}
	got.Result[5], got.Status = '9', task.Failed
	if again, err := s.Get(t.Context(), "a"); err != nil || string(again.Result) != `{"n":1}` || again.Status != task.Completed {
		t.Errorf("a change of what Get returned is seen: %+v, %v", again, err)
	}
}

func storeConcurrent(t *testing.T, s task.Store) {
	var owned sync.WaitGroup
	for n := range 8 {
		owned.Go(func() {
			for i := range 20 {
				id := fmt.Sprintf("t-%d-%d", n, i)
				if err := s.Save(t.Context(), info(id, task.Pending, 0)); err != nil {
					t.Error(err)
				}
				if _, err := s.List(t.Context(), task.Pending); err != nil {
					t.Error(err)
				}
			}
		})
	}
	owned.Wait()
	if list, err := s.List(t.Context(), task.Pending); len(list) != 160 || err != nil {
		t.Errorf("%d records, %v", len(list), err)
	}
}
