package tasktest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/apbus/apbus/task"
)

// LogFactory makes logs over one store for a test.
type LogFactory struct {
	// Lead returns the log of a new leader over the same store; the one before is
	// deposed. It is called at least once in each test.
	Lead func(t *testing.T) task.Log
	// Wait lets d pass, in the store too; nil leaves out retention, for which there is [TestRetention].
	Wait func(d time.Duration)
}

// TestLog checks that a log keeps the promises of [task.Log]. fresh returns a factory over
// an empty store.
func TestLog(t *testing.T, fresh func(t *testing.T) LogFactory) {
	for _, test := range []struct {
		name string
		run  func(t *testing.T, f LogFactory)
	}{
		{"an empty log", logEmpty},
		{"what was committed is there", logKeeps},
		{"the last entry of a key counts", logLast},
		{"load is in the order of the last writes", logOrder},
		{"load takes prefixes", logPrefixes},
		{"a deleted key is gone", logDelete},
		{"a large batch", logLarge},
		{"a repeated commit changes nothing", logRepeat},
		{"bodies of every size", logBodies},
		{"a new leader sees everything", logTakeover},
		{"a deposed leader stores nothing", logDeposed},
		{"retention", logRetention},
		{"a context that is over", logContext},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(t, fresh(t)) })
	}
}

func logEmpty(t *testing.T, f LogFactory) {
	log := f.Lead(t)
	wantKeys(t, log)
	if e, ok, err := log.Get(t.Context(), "task.a"); ok || err != nil {
		t.Errorf("Get of a key that never was = %+v, %v, %v", e, ok, err)
	}
	commit(t, log)
}

func logKeeps(t *testing.T, f LogFactory) {
	log := f.Lead(t)
	commit(t, log, entry("task.a", "1"), entry("queue.math.add", "2"))
	wantBody(t, log, "task.a", "1")
	wantBody(t, log, "queue.math.add", "2")
	wantKeys(t, log, "task.a", "queue.math.add")
}

func logLast(t *testing.T, f LogFactory) {
	log := f.Lead(t)
	commit(t, log, entry("task.a", "1"))
	commit(t, log, entry("task.a", "2"))
	wantBody(t, log, "task.a", "2")
	n := 0
	var seq uint64
	for e, err := range log.Load(t.Context(), task.KeyTask) {
		if err != nil {
			t.Fatal(err)
		}
		n++
		if string(e.Body) != "2" || e.Seq <= seq {
			t.Errorf("Load yields %+v", e)
		}
		seq = e.Seq
	}
	if n != 1 {
		t.Errorf("Load yields %d entries, want 1", n)
	}
}

func logOrder(t *testing.T, f LogFactory) {
	log := f.Lead(t)
	commit(t, log, entry("task.c", "1"), entry("task.a", "1"), entry("task.b", "1"))
	commit(t, log, entry("task.c", "2"))
	wantKeys(t, log, "task.a", "task.b", "task.c")
}

func logPrefixes(t *testing.T, f LogFactory) {
	log := f.Lead(t)
	commit(t, log, entry("task.a", "1"), entry("result.a", "1"), entry("schedule.s", "1"))
	wantKeysUnder(t, log, []string{task.KeyTask, task.KeySchedule}, "task.a", "schedule.s")
	wantKeysUnder(t, log, []string{task.KeyResult}, "result.a")
}

func logDelete(t *testing.T, f LogFactory) {
	log := f.Lead(t)
	commit(t, log, entry("task.a", "1"), entry("task.b", "1"))
	commit(t, log, task.Entry{Key: "task.a", Delete: true}, task.Entry{Key: "task.never", Delete: true})
	wantKeys(t, log, "task.b")
	if _, ok, err := log.Get(t.Context(), "task.a"); ok || err != nil {
		t.Errorf("Get of a deleted key = %v, %v", ok, err)
	}
	commit(t, log, entry("task.a", "3"))
	wantBody(t, log, "task.a", "3")
	wantKeys(t, log, "task.b", "task.a")
}

func logLarge(t *testing.T, f LogFactory) {
	log := f.Lead(t)
	var batch []task.Entry
	var keys []string
	for i := range 1000 {
		key := fmt.Sprintf("task.%04d", i)
		batch, keys = append(batch, entry(key, "x")), append(keys, key)
	}
	commit(t, log, batch...)
	wantKeys(t, log, keys...)
}

func logRepeat(t *testing.T, f LogFactory) {
	log := f.Lead(t)
	batch := []task.Entry{entry("task.a", "1"), {Key: "task.b", Delete: true}, entry("task.c", "1")}
	commit(t, log, entry("task.b", "0"))
	for range 3 {
		commit(t, log, batch...)
	}
	wantKeys(t, log, "task.a", "task.c")
	wantBody(t, log, "task.a", "1")
}

func logBodies(t *testing.T, f LogFactory) {
	log := f.Lead(t)
	for i, size := range []int{1, 1000, 32 << 10, 600 << 10} {
		key := fmt.Sprintf("result.%d", i)
		body := bytes.Repeat([]byte{0, 'x', 0xff}, size/3+1)
		commit(t, log, task.Entry{Key: key, Body: body})
		wantBody(t, log, key, string(body))
	}
}

func logTakeover(t *testing.T, f LogFactory) {
	first := f.Lead(t)
	commit(t, first, entry("task.a", "1"), entry("task.b", "1"))
	second := f.Lead(t)
	wantKeys(t, second, "task.a", "task.b")
	commit(t, second, entry("task.a", "2"))
	wantBody(t, second, "task.a", "2")
}

func logDeposed(t *testing.T, f LogFactory) {
	first := f.Lead(t)
	commit(t, first, entry("task.a", "1"))
	second := f.Lead(t)
	for range 2 {
		if err := first.Commit(t.Context(), []task.Entry{entry("task.a", "late"), entry("task.late", "1")}); !errors.Is(err, task.ErrDeposed) {
			t.Errorf("a deposed leader's Commit = %v, want ErrDeposed", err)
		}
		commit(t, second, entry("task.b", "1"))
	}
	wantBody(t, second, "task.a", "1")
	wantKeys(t, second, "task.a", "task.b")
}

func logRetention(t *testing.T, f LogFactory) {
	if f.Wait != nil {
		TestRetention(t, f)
	}
}

// TestRetention is the test of retention by itself, for bubbles, in which there are no
// subtests. f.Wait is required.
func TestRetention(t *testing.T, f LogFactory) {
	log := f.Lead(t)
	commit(t, log,
		task.Entry{Key: "task.short", Body: []byte("1"), TTL: 2 * time.Second},
		task.Entry{Key: "task.long", Body: []byte("1"), TTL: time.Hour},
		task.Entry{Key: "task.kept", Body: []byte("1"), TTL: 2 * time.Second},
		entry("task.ever", "1"))
	commit(t, log, entry("task.kept", "2")) // the last write has no limit
	f.Wait(time.Second)
	wantKeys(t, log, "task.short", "task.long", "task.ever", "task.kept")
	f.Wait(4 * time.Second)
	wantKeys(t, log, "task.long", "task.ever", "task.kept")
	if _, ok, err := log.Get(t.Context(), "task.short"); ok || err != nil {
		t.Errorf("Get of an expired key = %v, %v", ok, err)
	}
}

func logContext(t *testing.T, f LogFactory) {
	log := f.Lead(t)
	commit(t, log, entry("task.a", "1"))
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if _, _, err := log.Get(ctx, "task.a"); err == nil {
		t.Error("Get with a context that is over gives no error")
	}
	failed := false
	for _, err := range log.Load(ctx, task.KeyTask) {
		failed = failed || err != nil
	}
	if !failed {
		t.Error("Load with a context that is over gives no error")
	}
	wantBody(t, log, "task.a", "1")
}

func entry(key, body string) task.Entry { return task.Entry{Key: key, Body: []byte(body)} }

func commit(t *testing.T, log task.Log, entries ...task.Entry) {
	t.Helper()
	if err := log.Commit(t.Context(), entries); err != nil {
		t.Fatalf("Commit of %d entries: %v", len(entries), err)
	}
}

func wantBody(t *testing.T, log task.Log, key, want string) {
	t.Helper()
	e, ok, err := log.Get(t.Context(), key)
	if err != nil || !ok || string(e.Body) != want || e.Key != key {
		t.Errorf("Get(%q) = %d bytes under %q, %v, %v; want %d bytes", key, len(e.Body), e.Key, ok, err, len(want))
	}
}

func wantKeys(t *testing.T, log task.Log, want ...string) {
	t.Helper()
	wantKeysUnder(t, log, []string{task.KeyTask, task.KeySchedule, task.KeyQueue}, want...)
}

func wantKeysUnder(t *testing.T, log task.Log, prefixes []string, want ...string) {
	t.Helper()
	var got []string
	for e, err := range log.Load(t.Context(), prefixes...) {
		if err != nil {
			t.Fatalf("Load: %v", err)
		}
		got = append(got, e.Key)
	}
	if !slices.Equal(got, want) {
		t.Errorf("Load yields %.300q, want %.300q", got, want)
	}
}
