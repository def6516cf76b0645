package cancel_test

import (
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"weak"

	"github.com/apbus/apbus/cancel"
)

// closed reports whether a channel is closed, without waiting.
func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func TestTokenTree(t *testing.T) {
	// root ── a ── aa
	//      └─ b
	type tree struct{ root, a, aa, b *cancel.Token }
	tests := []struct {
		name string
		do   func(tree)
		want string // the names of the cancelled tokens
	}{
		{"nothing", func(tree) {}, ""},
		{"root takes all", func(x tree) { x.root.Cancel(nil) }, "root a aa b "},
		{"never up, never sideways", func(x tree) { x.a.Cancel(nil) }, "a aa "},
		{"leaf", func(x tree) { x.aa.Cancel(nil) }, "aa "},
		{"released child is out of reach", func(x tree) { x.b.Release(); x.root.Cancel(nil) }, "root a aa "},
		{"release takes what is below", func(x tree) { x.a.Release() }, "aa "},
		{"released token keeps its verdict", func(x tree) { x.b.Release(); x.b.Cancel(nil) }, ""},
		{"cancelled, then released", func(x tree) { x.b.Cancel(nil); x.b.Release(); x.b.Reset() }, "b "},
		{"reset revives one token only", func(x tree) { x.root.Cancel(nil); x.a.Reset() }, "root aa b "},
		{"reset child hears the next cancel", func(x tree) {
			x.root.Cancel(nil)
			x.a.Reset()
			x.root.Reset()
			x.root.Cancel(nil)
		}, "root a aa b "},
		{"reset token below a cancelled one", func(x tree) {
			x.a.Cancel(nil)
			x.aa.Reset()
			x.root.Cancel(nil)
		}, "root a aa b "},
		{"reset of a live token", func(x tree) { x.a.Reset() }, ""},
		{"middle of three children released", func(x tree) {
			c := x.root.Child()
			x.b.Release()
			c.Release()
			x.a.Release()
			x.root.Cancel(nil)
		}, "root aa "},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var x tree
			x.root = cancel.NewToken()
			x.a, x.b = x.root.Child(), x.root.Child()
			x.aa = x.a.Child()
			tt.do(x)
			got := ""
			for _, n := range []struct {
				name  string
				token *cancel.Token
			}{{"root", x.root}, {"a", x.a}, {"aa", x.aa}, {"b", x.b}} {
				if n.token.IsCancelled() {
					got += n.name + " "
				}
			}
			if got != tt.want {
				t.Errorf("cancelled tokens = %q, want %q", got, tt.want)
			}
		})
	}
}

func TestTokenFirstCauseWins(t *testing.T) {
	tok := cancel.NewToken()
	child := tok.Child()
	if err := tok.Check(); err != nil || tok.Cause() != nil {
		t.Fatalf("live token: Check = %v, Cause = %v, want nil", err, tok.Cause())
	}
	first := cancel.Because(cancel.Timeout, "n1", "")
	if !tok.Cancel(first) {
		t.Error("first Cancel = false, want true")
	}
	if tok.Cancel(cancel.Because(cancel.Caller, "", "")) {
		t.Error("second Cancel = true, want false")
	}
	for name, x := range map[string]*cancel.Token{"token": tok, "child": child, "late child": tok.Child()} {
		if got := x.Cause(); got != first {
			t.Errorf("%s: Cause = %v, want the first cause", name, got)
		}
		err := x.Check()
		if !errors.Is(err, cancel.ErrCancelled) || !errors.Is(err, first) || cancel.ReasonOf(err) != cancel.Timeout {
			t.Errorf("%s: Check = %v, want ErrCancelled wrapping the first cause", name, err)
		}
	}
}

func TestTokenNilCause(t *testing.T) {
	tok := cancel.NewToken()
	tok.Cancel(nil)
	if got := cancel.ReasonOf(tok.Cause()); got != cancel.Caller {
		t.Errorf("reason = %q, want %q", got, cancel.Caller)
	}
}

func TestTokenReleaseReason(t *testing.T) {
	parent := cancel.NewToken()
	running := parent.Child()
	parent.Release()
	parent.Release()
	if got := cancel.ReasonOf(running.Cause()); got != cancel.Parent {
		t.Errorf("reason of a token left running = %q, want %q", got, cancel.Parent)
	}
	if got := cancel.ReasonOf(parent.Child().Cause()); got != cancel.Parent {
		t.Errorf("reason of a child of a released token = %q, want %q", got, cancel.Parent)
	}
	if parent.Cancel(nil) {
		t.Error("Cancel of a released token = true, want false")
	}
}

func TestTokenDoneAndReset(t *testing.T) {
	tok := cancel.NewToken()
	before := tok.Done()
	if closed(before) {
		t.Fatal("Done is closed on a live token")
	}
	tok.Cancel(nil)
	if !closed(before) {
		t.Fatal("Done is open after Cancel")
	}
	tok.Reset()
	if !closed(before) {
		t.Error("a channel handed out before Reset was reopened")
	}
	after := tok.Done()
	if closed(after) || tok.IsCancelled() {
		t.Error("token is not live after Reset")
	}
	if !tok.Cancel(nil) || !closed(after) {
		t.Error("a reset token cannot be cancelled again")
	}
	late := cancel.NewToken()
	late.Cancel(nil)
	if !closed(late.Done()) {
		t.Error("Done asked for after Cancel is open")
	}
}

func TestTokenAfterFunc(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cause := cancel.Because(cancel.Remote, "", "")
		parent := cancel.NewToken()
		tok := parent.Child()
		var ran, stopped atomic.Int32
		var got error
		keep := tok.AfterFunc(func(c error) { got = c; ran.Add(1) })
		drop := tok.AfterFunc(func(error) { stopped.Add(1) })
		if !drop() || drop() {
			t.Error("stop does not return true exactly once")
		}
		parent.Cancel(cause)
		parent.Cancel(nil)
		synctest.Wait()
		if ran.Load() != 1 || got != cause {
			t.Errorf("function ran %d times with %v, want once with %v", ran.Load(), got, cause)
		}
		if stopped.Load() != 0 {
			t.Error("a stopped function ran")
		}
		if keep() {
			t.Error("stop after the function ran = true, want false")
		}

		late := tok.AfterFunc(func(error) { ran.Add(1) })
		synctest.Wait()
		if ran.Load() != 2 || late() {
			t.Error("a function registered on a cancelled token did not run")
		}

		tok.Reset()
		tok.AfterFunc(func(error) { ran.Add(1) })
		tok.Release()
		parent.Reset()
		parent.Cancel(nil)
		synctest.Wait()
		if ran.Load() != 2 {
			t.Error("a function registered on a released token ran")
		}
	})
}

func TestTokenAfterFuncMayUseTheToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tok := cancel.NewToken()
		var inner atomic.Bool
		tok.AfterFunc(func(error) {
			tok.Cancel(nil)
			tok.AfterFunc(func(error) { inner.Store(true) })
			tok.Child().Release()
		})
		tok.Cancel(nil)
		synctest.Wait()
		if !inner.Load() {
			t.Error("a function could not register another one")
		}
	})
}

// A loser of the race to cancel may rely on the tree being cancelled just as
// the winner may.
func TestTokenCancelReturnsWhenAllBelowIsCancelled(t *testing.T) {
	for range 2000 {
		root := cancel.NewToken()
		leaf := root.Child().Child().Child().Child()
		var wins atomic.Int32
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				if root.Cancel(nil) {
					wins.Add(1)
				}
				if !leaf.IsCancelled() {
					t.Error("leaf is live after Cancel of the root returned")
				}
			})
		}
		wg.Wait()
		if wins.Load() != 1 {
			t.Fatalf("%d winners, want 1", wins.Load())
		}
	}
}

// However Child, Cancel and Release fall, a child that was not released is
// cancelled.
func TestTokenChildCancelRace(t *testing.T) {
	for range 10_000 {
		root := cancel.NewToken()
		brother := root.Child()
		var child *cancel.Token
		var wg sync.WaitGroup
		wg.Go(func() { child = root.Child() })
		wg.Go(func() { root.Cancel(nil) })
		wg.Go(brother.Release)
		wg.Wait()
		if !child.IsCancelled() {
			t.Fatal("a child made while its parent was cancelled is live")
		}
	}
}

func TestTokenReleaseLeaksNothing(t *testing.T) {
	root := cancel.NewToken()
	released := func() weak.Pointer[cancel.Token] {
		first, tok, last := root.Child(), root.Child(), root.Child()
		defer first.Release()
		defer last.Release()
		defer tok.Release()
		return weak.Make(tok)
	}()
	runtime.GC()
	if released.Value() != nil {
		t.Error("a released token is still reachable")
	}
	root.Cancel(nil)
}
