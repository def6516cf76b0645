package approval_test

import (
	"context"
	"errors"
	"iter"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/apbus/apbus/executor/approval"
	"github.com/apbus/apbus/module"
)

// faulty is a store that fails as told; a nil function does not.
type faulty struct {
	*approval.MemStore
	get    func(id string) error
	update func(r approval.Record) error
	watch  func() error
}

func (f *faulty) Get(ctx context.Context, id string) (approval.Entry, error) {
	if f.get != nil {
		if err := f.get(id); err != nil {
			return approval.Entry{}, err
		}
	}
	return f.MemStore.Get(ctx, id)
}

func (f *faulty) Update(ctx context.Context, r approval.Record, revision uint64) (uint64, error) {
	if f.update != nil {
		if err := f.update(r); err != nil {
			return 0, err
		}
	}
	return f.MemStore.Update(ctx, r, revision)
}

func (f *faulty) Watch(ctx context.Context, id string, after uint64) iter.Seq2[approval.Entry, error] {
	if f.watch != nil {
		if err := f.watch(); err != nil {
			return func(yield func(approval.Entry, error) bool) { yield(approval.Entry{}, err) }
		}
	}
	return f.MemStore.Watch(ctx, id, after)
}

func away() error { return module.Errorf(module.CodeTaskStoreUnavailable, "away") }

func quietly(s approval.Store, o approval.Options) *approval.Durable {
	o.Logger = slog.New(slog.DiscardHandler)
	return approval.NewDurable(s, o)
}

// A store that fails while a call waits is asked again, and the decision still
// arrives; one that fails to the end leaves what was known.
func TestStoreFailsWhileWaiting(t *testing.T) {
	for _, tt := range []struct {
		name        string
		get, watch  bool // fail
		mends, want time.Duration
		status      approval.Status
	}{
		{"reads, mended", true, false, 10 * time.Second, 11 * time.Second, approval.Approved},
		{"watches, mended", false, true, time.Hour, 21 * time.Second, approval.Approved},
		{"reads, to the end", true, false, time.Hour, time.Minute, approval.Pending},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var broken atomic.Bool
				fail := func(does bool) error {
					if does && broken.Load() {
						return away()
					}
					return nil
				}
				s := &faulty{MemStore: approval.NewMemStore(0), get: func(string) error { return fail(tt.get) }, watch: func() error { return fail(tt.watch) }}
				d, router := quietly(s, approval.Options{Wait: time.Minute}), quietly(s.MemStore, approval.Options{})
				broken.Store(tt.watch)
				began := time.Now()
				done := make(chan *approval.Result, 1)
				go func() {
					res, err := d.RequestApproval(t.Context(), request(nil))
					if err != nil {
						t.Error(err)
					}
					done <- res
				}()
				synctest.Wait()
				broken.Store(true)
				time.Sleep(5 * time.Second)
				id := list(t, router, approval.Filter{})[0].ID
				if tt.watch {
					time.Sleep(15 * time.Second)
				}
				if tt.status == approval.Approved {
					decide(t, router, id, true)
				}
				time.AfterFunc(tt.mends-5*time.Second, func() { broken.Store(false) })
				res := <-done
				if res == nil || res.Status != tt.status || res.ApprovalID != id {
					t.Fatalf("got %+v, want %s", res, tt.status)
				}
				if took := time.Since(began); took > tt.want {
					t.Errorf("took %v, want %v at most", took, tt.want)
				}
			})
		})
	}
}

// The little time that is kept back for the answer of a call that ends waiting is not
// spent on one more look at a store that is slow.
func TestStoreIsSlowAtTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		s := &faulty{MemStore: approval.NewMemStore(0), get: func(string) error {
			if time.Since(began) > 8*time.Second {
				time.Sleep(2 * time.Second)
			}
			return nil
		}}
		d := quietly(s, approval.Options{Wait: time.Minute})
		ctx, stop := context.WithTimeout(t.Context(), 10*time.Second)
		defer stop()
		res, err := d.RequestApproval(ctx, request(nil))
		if err != nil || res.Status != approval.Pending || res.ApprovalID == "" {
			t.Fatalf("got %+v, %v, want what to come back with", res, err)
		}
		if took := time.Since(began); took != 9*time.Second {
			t.Errorf("took %v, want all but a tenth of 10 s", took)
		}
	})
}

// A token of which nothing could be read never lets a call run, waiting or not.
func TestStoreFailsAtTheToken(t *testing.T) {
	s := &faulty{MemStore: approval.NewMemStore(0)}
	d := quietly(s, approval.Options{Wait: time.Hour})
	router := quietly(s.MemStore, approval.Options{})
	id := open(t, router, request(nil))
	decide(t, router, id, true)
	s.get = func(string) error { return away() }
	if res, err := d.CheckApproval(t.Context(), id, request(nil)); module.CodeOf(err) != module.CodeTaskStoreUnavailable || res != nil {
		t.Errorf("reading fails: %+v, %v", res, err)
	}
	s.get = nil
	s.update = func(approval.Record) error { return away() }
	if res, err := d.CheckApproval(t.Context(), id, request(nil)); module.CodeOf(err) != module.CodeTaskStoreUnavailable || res != nil {
		t.Errorf("claiming fails: %+v, %v", res, err)
	}
	if _, err := d.Decide(t.Context(), open(t, router, request(nil)), approval.Decision{By: person("bob"), Reason: "r"}); module.CodeOf(err) != module.CodeTaskStoreUnavailable {
		t.Errorf("deciding fails: %v", err)
	}
	s.update = nil
	if got := check(t, d, id, request(nil)); got.Status != approval.Approved {
		t.Errorf("when it is back: %+v", got)
	}
}

// A lost compare-and-set begins again with what is there then.
func TestLostRaceBeginsAgain(t *testing.T) { synctest.Test(t, lostRace) }

func lostRace(t *testing.T) {
	s := &faulty{MemStore: approval.NewMemStore(0)}
	d := quietly(s, approval.Options{})
	id := open(t, d, request(nil))
	lost := 0
	s.update = func(approval.Record) error {
		if lost++; lost <= 3 {
			return approval.ErrConflict
		}
		return nil
	}
	decide(t, d, id, true)
	if lost != 4 {
		t.Errorf("%d attempts, want 4", lost)
	}
	if got := check(t, d, id, request(nil)); got.Status != approval.Approved {
		t.Errorf("got %+v", got)
	}
	endless := open(t, d, request(nil))
	s.update = func(approval.Record) error { return approval.ErrConflict }
	if _, err := d.Decide(t.Context(), endless, approval.Decision{By: person("bob"), Reason: "r"}); module.CodeOf(err) != module.CodeTaskStoreUnavailable || !errors.Is(err, approval.ErrConflict) {
		t.Errorf("a race without an end: %v", err)
	}
}

// A call whose own time is over first is answered in time to come back.
func TestWaitEndsBeforeTheCall(t *testing.T) {
	for limit, want := range map[time.Duration]time.Duration{
		time.Second: 900 * time.Millisecond, 30 * time.Second: 29 * time.Second, 2 * time.Hour: time.Hour,
	} {
		synctest.Test(t, func(t *testing.T) {
			d := approval.NewMemory(approval.Options{Wait: time.Hour})
			ctx, stop := context.WithTimeout(t.Context(), limit)
			defer stop()
			began := time.Now()
			res, err := d.RequestApproval(ctx, request(nil))
			if err != nil || res.Status != approval.Pending || res.ApprovalID == "" || time.Since(began) != want {
				t.Errorf("limit %v: %+v, %v after %v, want pending after %v", limit, res, err, time.Since(began), want)
			}
		})
	}
}

// Reviewers are shown the beginning of a long text, and told so; what is approved
// is all of it.
func TestLongTextsAreShownShortened(t *testing.T) {
	long := strings.Repeat("ä", 5000)
	r := request(obj{"text": long})
	shown := obj{"text": long, "list": []any{"short", obj{"deep": "x" + long}}, "n": int64(1)}
	r.Context.SetRedactedInputs(func() map[string]any { return shown })
	d := approval.NewMemory(approval.Options{})
	id := open(t, d, r)
	rec := get(t, d, id)
	text, _ := rec.Inputs["text"].(string)
	deep, _ := rec.Inputs["list"].([]any)[1].(obj)["deep"].(string)
	for _, s := range []string{text, deep} {
		if len(s) < 4000 || len(s) > 4200 || !strings.HasSuffix(s, "…") || !utf8.ValidString(s) {
			t.Errorf("%d bytes are shown", len(s))
		}
	}
	if rec.Inputs["n"] != int64(1) || rec.Inputs["list"].([]any)[0] != "short" {
		t.Errorf("what is short: %v", rec.Inputs)
	}
	if len(rec.Warnings) != 1 || !strings.Contains(rec.Warnings[0], "without their last") {
		t.Errorf("warnings %q", rec.Warnings)
	}
	if shown["text"] != long {
		t.Error("the call's own inputs were cut")
	}
	decide(t, d, id, true)
	if got := check(t, d, id, request(obj{"text": long[:len(long)-2]})); got.Status != approval.Rejected {
		t.Errorf("a text that differs where it is not shown: %+v", got)
	}
	if got := check(t, d, id, request(obj{"text": long})); got.Status != approval.Approved {
		t.Errorf("the text that was approved: %+v", got)
	}
}
