package cancel_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apbus/apbus/cancel"
	"github.com/google/go-cmp/cmp"
)

// begin enters a call that must be let in.
func begin(t *testing.T, tab *cancel.Table, c cancel.Call) *cancel.Entry {
	t.Helper()
	e, err := tab.Begin(c)
	if err != nil {
		t.Fatalf("Begin(%s/%d) = %v", c.Call, c.Attempt, err)
	}
	t.Cleanup(e.End)
	return e
}

func key(call string, attempt int) cancel.Key { return cancel.Key{Call: call, Attempt: attempt} }

func TestSelectorValid(t *testing.T) {
	tests := []struct {
		name string
		sel  cancel.Selector
		ok   bool
	}{
		{"call", cancel.Selector{Call: "c"}, true},
		{"call and attempt", cancel.Selector{Call: "c", Attempt: 2}, true},
		{"root", cancel.Selector{Root: "r"}, true},
		{"parent", cancel.Selector{Parent: "p"}, true},
		{"trace", cancel.Selector{Trace: "t"}, true},
		{"issuer", cancel.Selector{Issuer: "i"}, true},
		{"empty", cancel.Selector{}, false},
		{"two", cancel.Selector{Call: "c", Root: "r"}, false},
		{"issuer and call", cancel.Selector{Call: "c", Issuer: "i"}, false},
		{"attempt alone", cancel.Selector{Attempt: 1}, false},
		{"attempt of a root", cancel.Selector{Root: "r", Attempt: 1}, false},
		{"negative attempt", cancel.Selector{Call: "c", Attempt: -1}, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if err := tt.sel.Valid(); (err == nil) != tt.ok {
				t.Errorf("Valid() = %v, want ok %v", err, tt.ok)
			}
			if tt.ok {
				return
			}
			tab := cancel.NewTable(cancel.TableOptions{})
			e := begin(t, tab, cancel.Call{Key: key("c", 1), Root: "r", Issuer: "i"})
			matched, buried := tab.Cancel(tt.sel, cancel.CancelRequest{Privileged: true, Bury: true})
			if len(matched) != 0 || buried || e.Cancelling() {
				t.Error("an invalid selector had an effect")
			}
		})
	}
}

func TestTableCancelMatches(t *testing.T) {
	calls := []cancel.Call{
		{Key: key("a", 1), Root: "a", Trace: "t1", Issuer: "ann"},
		{Key: key("a", 2), Root: "a", Trace: "t1", Issuer: "ann"},
		{Key: key("b", 1), Root: "a", Parent: "a", Trace: "t1", Issuer: "ann"},
		{Key: key("c", 1), Root: "a", Parent: "a", Trace: "t1", Issuer: "bob"},
		{Key: key("d", 1), Root: "d", Trace: "t2", Issuer: "bob"},
	}
	tests := []struct {
		name string
		sel  cancel.Selector
		by   cancel.CancelRequest
		want []string
	}{
		{"one attempt", cancel.Selector{Call: "a", Attempt: 2}, cancel.CancelRequest{Issuer: "ann"}, []string{"a/2"}},
		{"every attempt", cancel.Selector{Call: "a"}, cancel.CancelRequest{Issuer: "ann"}, []string{"a/1", "a/2"}},
		{"own part of a root", cancel.Selector{Root: "a"}, cancel.CancelRequest{Issuer: "ann"}, []string{"a/1", "a/2", "b/1"}},
		{"whole root when privileged", cancel.Selector{Root: "a"}, cancel.CancelRequest{Issuer: "op", Privileged: true}, []string{"a/1", "a/2", "b/1", "c/1"}},
		{"parent", cancel.Selector{Parent: "a"}, cancel.CancelRequest{Issuer: "bob"}, []string{"c/1"}},
		{"trace", cancel.Selector{Trace: "t2"}, cancel.CancelRequest{Issuer: "bob"}, []string{"d/1"}},
		{"issuer", cancel.Selector{Issuer: "bob"}, cancel.CancelRequest{Issuer: "bob"}, []string{"c/1", "d/1"}},
		{"somebody else's call", cancel.Selector{Call: "d"}, cancel.CancelRequest{Issuer: "ann"}, nil},
		{"somebody else's issuer", cancel.Selector{Issuer: "bob"}, cancel.CancelRequest{Issuer: "ann"}, nil},
		{"nobody's request", cancel.Selector{Root: "a"}, cancel.CancelRequest{}, nil},
		{"unknown", cancel.Selector{Call: "x"}, cancel.CancelRequest{Issuer: "ann"}, nil},
		{"unknown attempt", cancel.Selector{Call: "a", Attempt: 3}, cancel.CancelRequest{Issuer: "ann"}, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tab := cancel.NewTable(cancel.TableOptions{})
			start := time.Now()
			for i, c := range calls {
				c.StartedAt = start.Add(time.Duration(i))
				begin(t, tab, c)
			}
			tt.by.Cause = cancel.Because(cancel.Remote, tt.by.Issuer, "")
			matched, buried := tab.Cancel(tt.sel, tt.by)
			if buried {
				t.Error("buried without being asked to")
			}
			returned := make(map[string]bool)
			for _, c := range matched {
				returned[fmt.Sprintf("%s/%d", c.Call, c.Attempt)] = true
			}
			var got []string
			for _, v := range tab.List() {
				name := fmt.Sprintf("%s/%d", v.Call.Call, v.Attempt)
				if returned[name] != (v.State == cancel.StateCancelling) {
					t.Errorf("%s: state %q, returned as a match %v", name, v.State, returned[name])
				}
				if v.State == cancel.StateCancelling {
					got = append(got, name)
					if v.Token.Cause() != tt.by.Cause {
						t.Errorf("%s: cause = %v, want that of the request", name, v.Token.Cause())
					}
				}
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("cancelled calls (-want +got):\n%s", diff)
			}
		})
	}
}

func TestTableBeginAndEnd(t *testing.T) {
	tab := cancel.NewTable(cancel.TableOptions{})
	c := cancel.Call{Key: key("a", 1), Root: "a", Issuer: "ann", ModuleID: "math.add", Budget: time.Second, Token: cancel.NewToken()}
	e := begin(t, tab, c)
	if _, err := tab.Begin(c); !errors.Is(err, cancel.ErrInFlight) {
		t.Errorf("second Begin = %v, want ErrInFlight", err)
	}
	again := begin(t, tab, cancel.Call{Key: key("a", 2), Root: "a", Issuer: "ann"})
	if got := again.Call(); got.Token == nil || got.StartedAt.IsZero() {
		t.Errorf("Begin left Token %v, StartedAt %v", got.Token, got.StartedAt)
	}
	if !tab.Has(c.Key) || tab.Has(key("a", 3)) || tab.Len() != 2 || len(tab.ByIssuer("ann")) != 2 {
		t.Error("the table does not hold what began")
	}
	e.End()
	e.End()
	if tab.Has(c.Key) || tab.Len() != 1 || len(tab.ByIssuer("ann")) != 1 {
		t.Error("the table holds what ended")
	}
	if e = begin(t, tab, c); e.Cancelling() {
		t.Error("a call that began anew is cancelling")
	}
	c.Token.Cancel(nil)
	if !e.Cancelling() || tab.List()[0].Token == nil {
		t.Error("a cancelled token does not show in the table")
	}
	e.End()
	again.End()
	if got, want := tab.Stats(), (cancel.Stats{Begun: 3}); got != want {
		t.Errorf("Stats = %+v, want %+v", got, want)
	}
	if got := tab.List(); len(got) != 0 || tab.ByIssuer("ann") != nil {
		t.Errorf("empty table lists %v", got)
	}
}

// Ending calls in every order keeps the lists of the table whole.
func TestTableEndOrders(t *testing.T) {
	orders := [][]int{{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}}
	for _, order := range orders {
		t.Run(fmt.Sprint(order), func(t *testing.T) {
			tab := cancel.NewTable(cancel.TableOptions{})
			var entries []*cancel.Entry
			for i := range 3 {
				entries = append(entries, begin(t, tab, cancel.Call{Key: key("a", i+1), Root: "r", Issuer: "ann"}))
			}
			for left := 2; left >= 0; left-- {
				entries[order[2-left]].End()
				matched, _ := tab.Cancel(cancel.Selector{Root: "r"}, cancel.CancelRequest{Issuer: "ann"})
				if len(matched) != left || tab.Len() != left {
					t.Fatalf("%d calls of the root, %d in all; want %d", len(matched), tab.Len(), left)
				}
			}
		})
	}
}

func TestTableWaitEmpty(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tab := cancel.NewTable(cancel.TableOptions{})
		if err := tab.WaitEmpty(t.Context()); err != nil {
			t.Fatalf("WaitEmpty of an empty table = %v", err)
		}
		first := begin(t, tab, cancel.Call{Key: key("a", 1)})
		second := begin(t, tab, cancel.Call{Key: key("b", 1)})

		grace, stop := context.WithTimeoutCause(t.Context(), time.Second, cancel.Because(cancel.Shutdown, "", ""))
		defer stop()
		if err := tab.WaitEmpty(grace); cancel.ReasonOf(err) != cancel.Shutdown {
			t.Errorf("WaitEmpty past its grace = %v, want the cause of the context", err)
		}

		var wg sync.WaitGroup
		results := make([]error, 2)
		for i := range results {
			wg.Go(func() { results[i] = tab.WaitEmpty(t.Context()) })
		}
		synctest.Wait()
		first.End()
		synctest.Wait()
		if tab.Len() != 1 {
			t.Fatalf("Len = %d, want 1", tab.Len())
		}
		second.End()
		wg.Wait()
		for i, err := range results {
			if err != nil {
				t.Errorf("waiter %d: %v", i, err)
			}
		}
	})
}

// A cancel that comes at the same time as its call finds it running or leaves a
// tombstone in its way, in every interleaving.
func TestTableCancelIsNeverLost(t *testing.T) {
	selectors := map[string]cancel.Selector{
		"call":    {Call: "c"},
		"attempt": {Call: "c", Attempt: 1},
		"root":    {Root: "r"},
		"parent":  {Parent: "p"},
		"trace":   {Trace: "t"},
	}
	for name, sel := range selectors {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for i := range 2_000 {
				tab := cancel.NewTable(cancel.TableOptions{})
				tok := cancel.NewToken()
				var err error
				var matched []cancel.Call
				var buried bool
				var wg sync.WaitGroup
				call := func() {
					_, err = tab.Begin(cancel.Call{Key: key("c", 1), Root: "r", Parent: "p", Trace: "t", Issuer: "ann", Token: tok})
				}
				stop := func() {
					matched, buried = tab.Cancel(sel, cancel.CancelRequest{Issuer: "ann", Bury: true})
				}
				if i%2 == 0 {
					call, stop = stop, call
				}
				wg.Go(call)
				wg.Go(stop)
				wg.Wait()
				_, isTombstoned := errors.AsType[*cancel.Tombstoned](err)
				switch {
				case len(matched) == 1 && !buried && err == nil && tok.IsCancelled():
				case len(matched) == 0 && buried && isTombstoned:
				default:
					t.Fatalf("lost: matched %d, buried %v, Begin %v, token cancelled %v", len(matched), buried, err, tok.IsCancelled())
				}
			}
		})
	}
}
