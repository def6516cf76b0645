// Package approvaltest holds the contract of approval stores as tests. It owns
// what every implementation of approval.Store must do; how one is made and
// reached belongs to the implementation's own tests.
package approvaltest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/apbus/apbus/executor/approval"
	"github.com/apbus/apbus/module"
)

// Open makes an empty store inside a bubble. Opened twice in one test with again,
// it gives a second way to the same store, as another process would have; nil
// for a store that only this process can reach.
type Open func(t *testing.T) (store approval.Store, again func(t *testing.T) approval.Store)

// Bubble runs f in a testing/synctest bubble in which the store works; nil is
// synctest.Test.
type Bubble func(t *testing.T, f func(t *testing.T))

// TestStore checks the contract of approval.Store, and that a handler over the
// store keeps the rules of approvals (durable design, section 2).
func TestStore(t *testing.T, bubble Bubble, open Open) {
	if bubble == nil {
		bubble = synctest.Test
	}
	for _, tt := range []struct {
		name string
		f    func(t *testing.T, open Open)
	}{
		{"records come back as they were", comesBack},
		{"an ID is used once", usedOnce},
		{"an unknown ID is not found", unknown},
		{"an update needs the revision", compareAndSet},
		{"of racing updates one wins", race},
		{"lists are newest first, filtered and paged", lists},
		{"a list shows records as they stand now", listsExpired},
		{"a cursor is checked", badCursor},
		{"a watch starts after a revision and misses nothing", watches},
		{"a watch of one record sees no other", watchesOne},
		{"a watch ends with its context", watchEnds},
		{"handler: pending, decided elsewhere, used once", handlerLife},
		{"handler: the decision wakes the waiting call", handlerWakes},
		{"handler: of racing decisions one wins", handlerDecisionsRace},
		{"handler: of racing claims one wins", handlerClaimsRace},
		{"handler: nothing is decided after expiry", handlerExpiry},
		{"handler: a caller that leaves withdraws", handlerWithdraws},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) { tt.f(t, open) })
		})
	}
}

// sample is a record with every field set.
func sample(id string) approval.Record {
	now := time.Now().UTC()
	return approval.Record{
		ID: id, State: approval.StatePending,
		Binding: approval.Binding{
			ModuleID: "payments.refund", Version: "1.2.3", CallerID: "orders.place",
			HasIdentity: true, IdentityID: "ann", IdentityType: "user", Digest: "d1",
		},
		Inputs: map[string]any{
			"amount": int64(9007199254740993), "big": uint64(18446744073709551615), "rate": 0.25, "none": nil,
			"card": "***REDACTED***", "list": []any{int64(1), "two", true}, "nested": map[string]any{"ä": "ö"},
		},
		Changes: []module.Change{
			{Action: "refund", Target: "charge:1", Summary: "Give back 1", Before: module.Known(nil), After: module.Known(map[string]any{"n": int64(1)})},
			{Action: "notify", Target: "ann", Summary: "Send a mail", Extra: map[string]any{"x-cost": int64(2)}},
		},
		Warnings: []string{"slow today"}, Description: "Give a charge back", Tags: []string{"shop"}, Enrichers: []string{"tenant"},
		Annotations: module.Annotations{Destructive: true, RequiresApproval: true, PaginationStyle: "cursor"}, Reason: "money",
		TraceID: "0af7651916cd43dd8448eb211c80319c", CallChain: []string{"orders.place", "payments.refund"},
		CreatedAt: now, ExpiresAt: now.Add(time.Hour), TokenExpires: time.Minute,
	}
}

func mustCreate(t *testing.T, s approval.Store, r approval.Record) uint64 {
	t.Helper()
	rev, err := s.Create(t.Context(), r)
	if err != nil || rev == 0 {
		t.Fatalf("create %s: revision %d, %v", r.ID, rev, err)
	}
	return rev
}

func mustGet(t *testing.T, s approval.Store, id string) approval.Entry {
	t.Helper()
	e, err := s.Get(t.Context(), id)
	if err != nil {
		t.Fatalf("get %s: %v", id, err)
	}
	return e
}

func mustUpdate(t *testing.T, s approval.Store, r approval.Record, revision uint64) uint64 {
	t.Helper()
	next, err := s.Update(t.Context(), r, revision)
	if err != nil || next <= revision {
		t.Fatalf("update %s: revision %d after %d, %v", r.ID, next, revision, err)
	}
	return next
}

func comesBack(t *testing.T, open Open) {
	s, _ := open(t)
	want := sample("a1")
	rev := mustCreate(t, s, want)
	got := mustGet(t, s, "a1")
	if d := cmp.Diff(approval.Entry{Record: want, Revision: rev}, got); d != "" {
		t.Errorf("after Create (-want +got):\n%s", d)
	}
	now := time.Now().UTC()
	want.State, want.ClaimedAt, want.DecidedAt = approval.StateClaimed, now.Add(time.Second), now
	want.DecidedBy, want.DecidedType, want.BecauseOf, want.ExpiresAt = "bob", "user", "it came back", time.Time{}
	rev = mustUpdate(t, s, want, rev)
	if d := cmp.Diff(approval.Entry{Record: want, Revision: rev}, mustGet(t, s, "a1")); d != "" {
		t.Errorf("after Update (-want +got):\n%s", d)
	}
	least := approval.Record{
		ID: "a2", State: approval.StatePending, CreatedAt: now, ExpiresAt: now.Add(time.Hour),
		Binding: approval.Binding{ModuleID: "m", Digest: "d"},
	}
	mustCreate(t, s, least)
	back := mustGet(t, s, "a2").Record
	if len(back.Inputs)+len(back.Changes)+len(back.Warnings)+len(back.Tags)+len(back.CallChain) != 0 ||
		back.Binding != least.Binding || !back.ExpiresAt.Equal(least.ExpiresAt) || !back.DecidedAt.IsZero() {
		t.Errorf("the least record came back as %+v", back)
	}
}

func usedOnce(t *testing.T, open Open) {
	s, _ := open(t)
	mustCreate(t, s, sample("a1"))
	other := sample("a1")
	other.Description = "another"
	if _, err := s.Create(t.Context(), other); !errors.Is(err, approval.ErrExists) {
		t.Errorf("a second Create: %v", err)
	}
	if got := mustGet(t, s, "a1"); got.Record.Description == "another" {
		t.Error("the second Create replaced the first")
	}
}

func unknown(t *testing.T, open Open) {
	s, _ := open(t)
	for _, id := range []string{"a1", "", "no such", "*", ">", "a.b", "../x", strings.Repeat("x", 5000), "ä"} {
		if _, err := s.Get(t.Context(), id); !errors.Is(err, approval.ErrNotFound) {
			t.Errorf("get %.20q: %v", id, err)
		}
	}
	if _, err := s.Update(t.Context(), sample("a1"), 1); !errors.Is(err, approval.ErrNotFound) && !errors.Is(err, approval.ErrConflict) {
		t.Errorf("update: %v", err)
	}
	if _, err := s.Get(t.Context(), "a1"); !errors.Is(err, approval.ErrNotFound) {
		t.Errorf("the refused update made a record: %v", err)
	}
}

func compareAndSet(t *testing.T, open Open) {
	s, _ := open(t)
	r := sample("a1")
	first := mustCreate(t, s, r)
	mustCreate(t, s, sample("a2")) // revisions are of the store; another record's does not matter
	r.State = approval.StateRejected
	second := mustUpdate(t, s, r, first)
	r.State = approval.StateApproved
	for _, stale := range []uint64{first, 0, second + 1} {
		if _, err := s.Update(t.Context(), r, stale); !errors.Is(err, approval.ErrConflict) {
			t.Errorf("update at %d, now %d: %v", stale, second, err)
		}
	}
	if got := mustGet(t, s, "a1"); got.Record.State != approval.StateRejected || got.Revision != second {
		t.Errorf("a refused update changed the record: %s at %d", got.Record.State, got.Revision)
	}
}

func race(t *testing.T, open Open) {
	s, again := open(t)
	rev := mustCreate(t, s, sample("a1"))
	stores := []approval.Store{s}
	if again != nil {
		stores = append(stores, again(t))
	}
	var mu sync.Mutex
	var wg sync.WaitGroup
	won := 0
	for i := range 12 {
		wg.Go(func() {
			r := sample("a1")
			r.DecidedBy = fmt.Sprint(i)
			_, err := stores[i%len(stores)].Update(t.Context(), r, rev)
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				won++
			} else if !errors.Is(err, approval.ErrConflict) {
				t.Errorf("a loser got %v", err)
			}
		})
	}
	wg.Wait()
	if won != 1 {
		t.Errorf("%d updates of one revision won", won)
	}
}

func ids(records []approval.Record) string {
	list := make([]string, len(records))
	for i, r := range records {
		list[i] = r.ID
	}
	return strings.Join(list, " ")
}

func lists(t *testing.T, open Open) {
	s, _ := open(t)
	ctx := t.Context()
	if page, err := s.List(ctx, approval.Filter{}); err != nil || len(page.Records) != 0 || page.Next != "" {
		t.Errorf("an empty store lists %+v, %v", page, err)
	}
	for i := range 7 {
		r := sample(fmt.Sprintf("a%d", i))
		if i%2 == 1 {
			r.Binding.ModuleID = "other.module"
		}
		if i == 3 {
			r.State = approval.StateRejected
		}
		mustCreate(t, s, r)
		time.Sleep(time.Millisecond)
	}
	for _, tt := range []struct {
		name string
		f    approval.Filter
		want string
	}{
		{"all", approval.Filter{}, "a6 a5 a4 a3 a2 a1 a0"},
		{"state", approval.Filter{State: approval.StateRejected}, "a3"},
		{"module", approval.Filter{ModuleID: "other.module"}, "a5 a3 a1"},
		{"both", approval.Filter{ModuleID: "other.module", State: approval.StatePending}, "a5 a1"},
		{"neither", approval.Filter{ModuleID: "payments.refund", State: approval.StateRejected}, ""},
	} {
		page, err := s.List(ctx, tt.f)
		if err != nil || ids(page.Records) != tt.want || page.Next != "" {
			t.Errorf("%s: %q, next %q, %v; want %q", tt.name, ids(page.Records), page.Next, err, tt.want)
		}
	}
	// A record made between two pages shifts nothing.
	f := approval.Filter{Limit: 3}
	var pages []string
	for {
		page, err := s.List(ctx, f)
		if err != nil {
			t.Fatal(err)
		}
		pages = append(pages, ids(page.Records))
		if f.Cursor = page.Next; f.Cursor == "" {
			break
		}
		mustCreate(t, s, sample(fmt.Sprintf("b%d", len(pages))))
		time.Sleep(time.Millisecond)
	}
	if d := cmp.Diff([]string{"a6 a5 a4", "a3 a2 a1", "a0"}, pages); d != "" {
		t.Errorf("pages (-want +got):\n%s", d)
	}
}

func listsExpired(t *testing.T, open Open) {
	s, _ := open(t)
	mustCreate(t, s, sample("a1"))
	time.Sleep(time.Hour)
	page, err := s.List(t.Context(), approval.Filter{State: approval.StateExpired})
	if err != nil || ids(page.Records) != "a1" || page.Records[0].State != approval.StateExpired {
		t.Errorf("%+v, %v", page, err)
	}
	if page, err := s.List(t.Context(), approval.Filter{State: approval.StatePending}); err != nil || len(page.Records) != 0 {
		t.Errorf("pending: %+v, %v", page, err)
	}
}

func badCursor(t *testing.T, open Open) {
	s, _ := open(t)
	mustCreate(t, s, sample("a1"))
	for _, cursor := range []string{"x", "!!", "MTIz", "LmEx"} {
		if _, err := s.List(t.Context(), approval.Filter{Cursor: cursor}); module.CodeOf(err) != module.CodeInvalidInput {
			t.Errorf("cursor %q: %v", cursor, err)
		}
	}
}

// collect watches until n entries came, and returns them as "id state".
func collect(t *testing.T, s approval.Store, id string, after uint64, n int) []string {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	var got []string
	last := after
	for e, err := range s.Watch(ctx, id, after) {
		if err != nil {
			t.Errorf("watch: %v", err)
			break
		}
		if e.Revision <= last {
			t.Errorf("revision %d after %d", e.Revision, last)
		}
		last = e.Revision
		if got = append(got, e.Record.ID+" "+string(e.Record.State)); len(got) == n {
			break
		}
	}
	return got
}

func watches(t *testing.T, open Open) {
	s, again := open(t)
	writer := s
	if again != nil {
		writer = again(t)
	}
	first := mustCreate(t, writer, sample("a1"))
	second := mustCreate(t, writer, sample("a2"))
	if d := cmp.Diff([]string{"a1 pending", "a2 pending"}, collect(t, s, "", 0, 2)); d != "" {
		t.Errorf("from the beginning (-want +got):\n%s", d)
	}
	if d := cmp.Diff([]string{"a2 pending"}, collect(t, s, "", first, 1)); d != "" {
		t.Errorf("after the first (-want +got):\n%s", d)
	}
	got := make(chan []string, 1)
	go func() { got <- collect(t, s, "", second, 2) }()
	time.Sleep(time.Second) // the watch waits for what comes
	r := sample("a1")
	r.State = approval.StateApproved
	mustUpdate(t, writer, r, first)
	time.Sleep(time.Second)
	mustCreate(t, writer, sample("a3"))
	if d := cmp.Diff([]string{"a1 approved", "a3 pending"}, <-got); d != "" {
		t.Errorf("as they come (-want +got):\n%s", d)
	}
}

func watchesOne(t *testing.T, open Open) {
	s, _ := open(t)
	first := mustCreate(t, s, sample("a1"))
	mustCreate(t, s, sample("a2"))
	mustCreate(t, s, sample("a10"))
	r := sample("a1")
	r.State = approval.StateRejected
	got := make(chan []string, 1)
	go func() { got <- collect(t, s, "a1", first, 1) }()
	time.Sleep(time.Second)
	mustUpdate(t, s, r, first)
	if d := cmp.Diff([]string{"a1 rejected"}, <-got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

func watchEnds(t *testing.T, open Open) {
	s, _ := open(t)
	for i := range 3 {
		mustCreate(t, s, sample(fmt.Sprintf("a%d", i)))
	}
	ctx, stop := context.WithCancel(t.Context())
	time.AfterFunc(time.Second, stop)
	seen := 0
	for _, err := range s.Watch(ctx, "", 0) {
		if err != nil {
			t.Errorf("the end of the context is an error: %v", err)
		}
		seen++
	}
	if seen != 3 {
		t.Errorf("%d entries, want 3", seen)
	}
	for _, err := range s.Watch(ctx, "", 0) {
		t.Errorf("a watch under an ended context yields, with %v", err)
	}
}
