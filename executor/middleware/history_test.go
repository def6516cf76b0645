package middleware_test

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/apbus/apbus/executor/middleware"
	"github.com/apbus/apbus/module"
)

func TestErrorHistoryCollapses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := middleware.NewErrorHistory(middleware.HistoryConfig{})
		began := time.Now().UTC()
		for _, id := range []string{"a1b2c3d4-e5f6-7890-abcd-ef1234567890", "11111111-2222-3333-4444-555555555555"} {
			h.Record("db.query", module.Errorf("DB_TIMEOUT", "request %s timed out", id).WithGuidance("wait"))
			time.Sleep(time.Second)
		}
		h.Record("db.query", module.Errorf("DB_AUTH", "request 11111111-2222-3333-4444-555555555555 timed out"))
		time.Sleep(time.Second)
		h.Record("db.other", fmt.Errorf("outer: %w", module.Errorf("DB_TIMEOUT", "request x timed out")))
		h.Record("db.query", errors.New("without a code"))
		h.Record("db.query", nil)

		var got []string
		for _, e := range h.All(0) {
			got = append(got, fmt.Sprint(e.ModuleID, " ", e.Code, " ", e.Count))
		}
		if diff := cmp.Diff([]string{"db.other DB_TIMEOUT 1", "db.query DB_AUTH 1", "db.query DB_TIMEOUT 2"}, got); diff != "" {
			t.Errorf("all (-want +got):\n%s", diff)
		}
		entries := h.Get("db.query", 0)
		if len(entries) != 2 {
			t.Fatalf("%d entries", len(entries))
		}
		first := entries[1]
		if first.Message != "request a1b2c3d4-e5f6-7890-abcd-ef1234567890 timed out" || first.AIGuidance != "wait" ||
			!first.FirstOccurred.Equal(began) || first.LastOccurred.Sub(began) != time.Second {
			t.Errorf("%+v", first)
		}
		if len(h.Get("db.query", 1)) != 1 || len(h.All(2)) != 2 || h.Get("db.none", 0) != nil {
			t.Error("limits")
		}
		h.Record("db.query", module.Errorf("DB_TIMEOUT", "request 22222222-2222-3333-4444-555555555555 timed out"))
		if e := h.Get("db.query", 1)[0]; e.Code != "DB_TIMEOUT" || e.Count != 3 {
			t.Errorf("latest first: %+v", e)
		}
	})
}

func TestErrorEntryMap(t *testing.T) {
	h := middleware.NewErrorHistory(middleware.HistoryConfig{})
	h.Record("executor.orders.submit", module.Errorf(module.CodeModuleExecuteError, "Order 48213 failed at 2026-09-16T10:30:00Z (request a1b2c3d4-e5f6-7890-abcd-ef1234567890)"))
	m := h.All(0)[0].Map()
	form := regexp.MustCompile(`^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$`)
	for _, k := range []string{"timestamp", "first_occurred", "last_occurred"} {
		if s, _ := m[k].(string); !form.MatchString(s) {
			t.Errorf("%s is %q", k, s)
		}
		delete(m, k)
	}
	want := obj{
		"module_id": "executor.orders.submit", "code": "MODULE_EXECUTE_ERROR", "ai_guidance": nil, "count": int64(1),
		"message":     "Order 48213 failed at 2026-09-16T10:30:00Z (request a1b2c3d4-e5f6-7890-abcd-ef1234567890)",
		"fingerprint": "dba777e10f3022e9eeb69b9b9943b4f76eedecd489bfa57d9bd1eaa00c5f3742",
	}
	if diff := cmp.Diff(want, m); diff != "" {
		t.Errorf("map (-want +got):\n%s", diff)
	}
}

func TestErrorHistoryLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := middleware.NewErrorHistory(middleware.HistoryConfig{MaxPerModule: 3, MaxTotal: 5})
		add := func(moduleID, code string) {
			h.Record(moduleID, module.Errorf(module.Code(code), "no"))
			time.Sleep(time.Second)
		}
		codes := func(es []middleware.ErrorEntry) string {
			var out []string
			for _, e := range es {
				out = append(out, string(e.Code))
			}
			return strings.Join(out, " ")
		}
		for _, c := range []string{"A", "B", "C", "A", "D"} { // B happened longest ago
			add("m.one", c)
		}
		if got := codes(h.Get("m.one", 0)); got != "D A C" {
			t.Errorf("of one module: %s", got)
		}
		for _, c := range []string{"X", "Y", "Z"} {
			add("m.two", c)
		}
		if got := codes(h.All(0)); got != "Z Y X D A" {
			t.Errorf("of all: %s", got)
		}
		h.Clear("m.one")
		if got := codes(h.All(0)); got != "Z Y X" {
			t.Errorf("after clearing one: %s", got)
		}
		h.Clear("")
		if len(h.All(0)) != 0 {
			t.Error("clearing all left some")
		}
		h.Record("m.long", module.Errorf("LONG", "%s", strings.Repeat("é", 5000)))
		if got := h.All(0)[0].Message; len(got) > 4100 || !strings.HasSuffix(got, "é…") {
			t.Errorf("message of %d bytes", len(got))
		}
	})
	h := middleware.NewErrorHistory(middleware.HistoryConfig{})
	for i := range 3000 {
		h.Record(fmt.Sprintf("m.n%d", i%30), module.Errorf("X", "no %s", strings.Repeat("x", i)))
	}
	if len(h.All(0)) != 1000 || len(h.Get("m.n29", 0)) > 50 {
		t.Errorf("%d in all, %d of one", len(h.All(0)), len(h.Get("m.n29", 0)))
	}
}

func TestRecordErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := middleware.NewErrorHistory(middleware.HistoryConfig{})
		rescue := &middleware.Funcs{Label: "rescue", OnFailure: func(_ context.Context, _ *middleware.Call, e *module.Error) (middleware.Recovery, error) {
			if e.Code == module.CodeModuleExecuteError {
				return middleware.Recovery{Output: obj{}}, nil
			}
			return middleware.Recovery{}, nil
		}}
		c := chain(t, middleware.NewRecordErrors(h), made(middleware.NewRetry(middleware.RetryConfig{MaxRetries: 1})), rescue)
		for _, run := range []func(context.Context, int) *module.Error{
			working, failing(module.CodeModuleExecuteError), failing(module.CodeModuleTimeout), failing(module.CodeExecutionCancelled),
		} {
			drive(t.Context(), c, callOf("a.b", ""), run)
		}
		var got []string
		for _, e := range h.Get("a.b", 0) {
			got = append(got, fmt.Sprint(e.Code, " ", e.Count))
		}
		if diff := cmp.Diff([]string{"MODULE_TIMEOUT 2", "MODULE_EXECUTE_ERROR 1"}, got); diff != "" {
			t.Errorf("recorded (-want +got):\n%s", diff)
		}
	})
}

// faultyStorage fails while it is told to.
type faultyStorage struct {
	*middleware.MemoryStorage
	broken bool
	saves  int
}

var errStorage = errors.New("disk is full")

func (s *faultyStorage) Save(ctx context.Context, namespace, key string, value map[string]any) error {
	s.saves++
	if s.broken {
		return errStorage
	}
	return s.MemoryStorage.Save(ctx, namespace, key, value)
}

func (s *faultyStorage) Delete(ctx context.Context, namespace, key string) error {
	if s.broken {
		return errStorage
	}
	return s.MemoryStorage.Delete(ctx, namespace, key)
}

func TestErrorHistoryStorage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &faultyStorage{MemoryStorage: middleware.NewMemoryStorage(), broken: true}
		h := middleware.NewErrorHistory(middleware.HistoryConfig{MaxPerModule: 2})
		for _, c := range []module.Code{"A", "B"} {
			h.Record("m.one", module.Errorf(c, "no").WithGuidance("try"))
			time.Sleep(time.Second)
		}
		if err := h.Save(t.Context(), s); !errors.Is(err, errStorage) {
			t.Fatalf("save: %v", err)
		}
		s.broken = false
		save := func(want int) {
			t.Helper()
			s.saves = 0
			if err := h.Save(t.Context(), s); err != nil || s.saves != want {
				t.Errorf("save: %v, wrote %d, want %d", err, s.saves, want)
			}
		}
		save(2)
		save(0)
		h.Record("m.one", module.Errorf("C", "no")) // A goes
		s.broken = true
		_ = h.Save(t.Context(), s)
		s.broken = false
		save(1)
		stored, _ := s.List(t.Context(), middleware.StorageErrorHistory, "")
		if len(stored) != 2 {
			t.Errorf("%d stored", len(stored))
		}
		_ = s.MemoryStorage.Save(t.Context(), middleware.StorageErrorHistory, "bad", obj{"count": "many"})
		again := middleware.NewErrorHistory(middleware.HistoryConfig{})
		for range 2 {
			if err := again.Load(t.Context(), s); err != nil {
				t.Fatal(err)
			}
		}
		if diff := cmp.Diff(h.All(0), again.All(0), cmpopts.IgnoreUnexported(middleware.ErrorEntry{})); diff != "" {
			t.Errorf("loaded (-want +got):\n%s", diff)
		}
	})
}

func TestErrorHistoryConcurrent(t *testing.T) {
	h := middleware.NewErrorHistory(middleware.HistoryConfig{MaxPerModule: 5, MaxTotal: 20})
	s := middleware.NewMemoryStorage()
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() {
			for i := range 300 {
				h.Record(fmt.Sprintf("m.n%d", w), module.Errorf(module.Code(fmt.Sprintf("C_%d", i%10)), "no"))
				if i%50 == 0 {
					h.All(3)
					if w == 0 {
						_ = h.Save(t.Context(), s)
					}
				}
			}
		})
	}
	wg.Wait()
	if n := len(h.All(0)); n != 20 {
		t.Errorf("%d entries", n)
	}
	if err := h.Save(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	if stored, _ := s.List(t.Context(), middleware.StorageErrorHistory, ""); len(stored) != 20 {
		t.Errorf("%d stored", len(stored))
	}
}

// recordingStorage records an error while an entry is being saved.
type recordingStorage struct {
	*middleware.MemoryStorage
	onSave func()
}

func (s *recordingStorage) Save(ctx context.Context, namespace, key string, value map[string]any) error {
	if f := s.onSave; f != nil {
		s.onSave = nil
		f()
	}
	return s.MemoryStorage.Save(ctx, namespace, key, value)
}

// An entry that comes back while its former self is about to be deleted owns what
// is stored of it, and takes it along when it goes again.
func TestErrorHistoryEntryThatComesBackDuringASave(t *testing.T) {
	h := middleware.NewErrorHistory(middleware.HistoryConfig{MaxPerModule: 1, MaxTotal: 10})
	s := &recordingStorage{MemoryStorage: middleware.NewMemoryStorage()}
	record := func(code module.Code) { h.Record("m.n", module.Errorf(code, "no")) }
	save := func() {
		t.Helper()
		if err := h.Save(t.Context(), s); err != nil {
			t.Fatal(err)
		}
	}
	record("FIRST")
	save()
	record("SECOND") // FIRST goes
	s.onSave = func() { record("FIRST") }
	save()
	record("SECOND") // and goes again, before it was saved
	save()
	stored, err := s.List(t.Context(), middleware.StorageErrorHistory, "")
	if err != nil || len(stored) != 1 || stored[0].Value["code"] != "SECOND" {
		t.Errorf("stored %v, %v, want SECOND alone", stored, err)
	}
}

func BenchmarkErrorHistory(b *testing.B) {
	h := middleware.NewErrorHistory(middleware.HistoryConfig{})
	e := module.Errorf(module.CodeModuleTimeout, "module a.b exceeded its time of 30000 ms")
	b.ReportAllocs()
	for b.Loop() {
		h.Record("a.b", e)
	}
}
