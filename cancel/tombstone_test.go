package cancel_test

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apbus/apbus/cancel"
)

func TestTombstoneMatches(t *testing.T) {
	call := cancel.Call{Key: key("c", 2), Root: "r", Parent: "p", Trace: "t", Issuer: "ann"}
	tests := []struct {
		name string
		sel  cancel.Selector
		by   cancel.CancelRequest
		stop bool
	}{
		{"call", cancel.Selector{Call: "c"}, cancel.CancelRequest{Issuer: "ann"}, true},
		{"attempt", cancel.Selector{Call: "c", Attempt: 2}, cancel.CancelRequest{Issuer: "ann"}, true},
		{"root", cancel.Selector{Root: "r"}, cancel.CancelRequest{Issuer: "ann"}, true},
		{"parent", cancel.Selector{Parent: "p"}, cancel.CancelRequest{Issuer: "ann"}, true},
		{"trace", cancel.Selector{Trace: "t"}, cancel.CancelRequest{Issuer: "ann"}, true},
		{"privileged", cancel.Selector{Call: "c"}, cancel.CancelRequest{Issuer: "op", Privileged: true}, true},
		{"privileged attempt", cancel.Selector{Call: "c", Attempt: 2}, cancel.CancelRequest{Privileged: true}, true},
		{"other attempt", cancel.Selector{Call: "c", Attempt: 1}, cancel.CancelRequest{Issuer: "ann"}, false},
		{"other call", cancel.Selector{Call: "r"}, cancel.CancelRequest{Issuer: "ann"}, false},
		{"other issuer", cancel.Selector{Call: "c"}, cancel.CancelRequest{Issuer: "bob"}, false},
		{"no issuer", cancel.Selector{Call: "c"}, cancel.CancelRequest{}, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tab := cancel.NewTable(cancel.TableOptions{})
			tt.by.Bury = true
			tt.by.Cause = cancel.Because(cancel.Timeout, "", "budget spent")
			if matched, buried := tab.Cancel(tt.sel, tt.by); len(matched) != 0 || !buried {
				t.Fatalf("Cancel = %v, %v; want a tombstone", matched, buried)
			}
			_, err := tab.Begin(call)
			if !tt.stop {
				if err != nil {
					t.Fatalf("Begin = %v, want nil", err)
				}
				return
			}
			stopped, ok := errors.AsType[*cancel.Tombstoned](err)
			if !ok {
				t.Fatalf("Begin = %v, want a Tombstoned", err)
			}
			if stopped.Cause != tt.by.Cause || !errors.Is(err, cancel.ErrCancelled) || cancel.ReasonOf(err) != cancel.Timeout {
				t.Errorf("Begin = %v, want ErrCancelled and the cause of the cancel", err)
			}
			if got := tab.Stats(); got.Refused != 1 || got.Begun != 0 || tab.Len() != 0 {
				t.Errorf("Stats = %+v, want one refusal and no call", got)
			}
		})
	}
}

func TestTombstoneOnlyWhenAskedAndUnmatched(t *testing.T) {
	tab := cancel.NewTable(cancel.TableOptions{})
	begin(t, tab, cancel.Call{Key: key("c", 1), Issuer: "ann"})
	for name, cancelOne := range map[string]func() ([]cancel.Call, bool){
		"not asked": func() ([]cancel.Call, bool) {
			return tab.Cancel(cancel.Selector{Call: "x"}, cancel.CancelRequest{Issuer: "ann"})
		},
		"matched": func() ([]cancel.Call, bool) {
			return tab.Cancel(cancel.Selector{Call: "c"}, cancel.CancelRequest{Issuer: "ann", Bury: true})
		},
		"matched again": func() ([]cancel.Call, bool) {
			return tab.Cancel(cancel.Selector{Call: "c"}, cancel.CancelRequest{Issuer: "ann", Bury: true})
		},
		"by issuer": func() ([]cancel.Call, bool) {
			return tab.Cancel(cancel.Selector{Issuer: "zoe"}, cancel.CancelRequest{Issuer: "zoe", Bury: true})
		},
	} {
		if _, buried := cancelOne(); buried || tab.Stats().Tombstones != 0 {
			t.Errorf("%s: left a tombstone", name)
		}
	}
}

func TestTombstoneExpires(t *testing.T) {
	tests := []struct {
		name string
		opts cancel.TableOptions
		ttl  time.Duration
		want time.Duration
	}{
		{"default", cancel.TableOptions{}, 0, 2 * time.Minute},
		{"table", cancel.TableOptions{TombstoneTTL: time.Second}, 0, time.Second},
		{"request", cancel.TableOptions{TombstoneTTL: time.Second}, time.Hour, time.Hour},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tab := cancel.NewTable(tt.opts)
				tab.Cancel(cancel.Selector{Call: "c"}, cancel.CancelRequest{Bury: true, TTL: tt.ttl})
				time.Sleep(tt.want - time.Nanosecond)
				if _, err := tab.Begin(cancel.Call{Key: key("c", 1)}); err == nil {
					t.Error("a tombstone went before its time")
				}
				time.Sleep(time.Nanosecond)
				begin(t, tab, cancel.Call{Key: key("c", 1)})
				if got := tab.Stats(); got.Tombstones != 0 || got.Expired != 1 {
					t.Errorf("Stats = %+v, want the tombstone gone", got)
				}
			})
		})
	}
}

func TestTombstoneRenewed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tab := cancel.NewTable(cancel.TableOptions{})
		sel := cancel.Selector{Trace: "t"}
		first := cancel.Because(cancel.Timeout, "", "")
		tab.Cancel(sel, cancel.CancelRequest{Bury: true, Cause: first, TTL: time.Minute})
		time.Sleep(30 * time.Second)
		tab.Cancel(sel, cancel.CancelRequest{Bury: true, TTL: time.Minute})
		tab.Cancel(sel, cancel.CancelRequest{Bury: true, TTL: time.Second})
		if got := tab.Stats(); got.Tombstones != 1 || got.Evicted != 0 {
			t.Errorf("Stats = %+v, want one tombstone", got)
		}
		time.Sleep(59 * time.Second)
		_, err := tab.Begin(cancel.Call{Key: key("c", 1), Trace: "t"})
		if cancel.ReasonOf(err) != cancel.Timeout {
			t.Errorf("Begin = %v, want the first cause for the longest time", err)
		}
	})
}

// Expired tombstones go with the next burial, whoever left them, so an idle
// issuer's do not stay for good.
func TestTombstoneSweep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tab := cancel.NewTable(cancel.TableOptions{})
		for i := range 100 {
			tab.Cancel(cancel.Selector{Call: fmt.Sprint(i)}, cancel.CancelRequest{
				Issuer: fmt.Sprint(i % 7), Bury: true, TTL: time.Duration(100-i) * time.Second,
			})
		}
		time.Sleep(50 * time.Second)
		tab.Cancel(cancel.Selector{Call: "last"}, cancel.CancelRequest{Bury: true})
		if got := tab.Stats(); got.Tombstones != 51 || got.Expired != 50 || got.Buried != 101 {
			t.Errorf("Stats = %+v, want 51 tombstones left of 101", got)
		}
	})
}

func TestTombstoneCap(t *testing.T) {
	tab := cancel.NewTable(cancel.TableOptions{TombstonesPerIssuer: 3})
	bury := func(issuer, call string) {
		tab.Cancel(cancel.Selector{Call: call}, cancel.CancelRequest{Issuer: issuer, Bury: true})
	}
	bury("bob", "b")
	for i := range 5 {
		bury("ann", fmt.Sprint(i))
	}
	if got := tab.Stats(); got.Evicted != 2 || got.Tombstones != 4 {
		t.Errorf("Stats = %+v, want 2 evicted and 4 left", got)
	}
	for _, tt := range []struct {
		issuer, call string
		stop         bool
	}{{"ann", "0", false}, {"ann", "1", false}, {"ann", "2", true}, {"ann", "4", true}, {"bob", "b", true}} {
		_, err := tab.Begin(cancel.Call{Key: key(tt.call, 1), Issuer: tt.issuer})
		if (err != nil) != tt.stop {
			t.Errorf("Begin of call %s of %s = %v, want stopped %v", tt.call, tt.issuer, err, tt.stop)
		}
	}
}

func TestTombstoneCapOfOne(t *testing.T) {
	tab := cancel.NewTable(cancel.TableOptions{TombstonesPerIssuer: 1})
	for i := range 3 {
		tab.Cancel(cancel.Selector{Call: fmt.Sprint(i)}, cancel.CancelRequest{Issuer: "ann", Bury: true})
	}
	if got := tab.Stats(); got.Evicted != 2 || got.Tombstones != 1 {
		t.Errorf("Stats = %+v, want 2 evicted and 1 left", got)
	}
}
