package cancel_test

import (
	"context"
	"strconv"
	"testing"

	"github.com/apbus/apbus/cancel"
)

// An unwatched token is one allocation, and a nested call's is the token, its
// context with the value and the stop function, and the links between them.
func TestAllocations(t *testing.T) {
	parent := cancel.NewToken()
	ctx, caller := cancel.Join(context.Background(), parent)
	defer caller.Release()
	tests := []struct {
		name string
		do   func()
		max  float64
	}{
		{"root token", func() { cancel.NewToken().IsCancelled() }, 1},
		{"child token", func() { c := parent.Child(); c.IsCancelled(); c.Release() }, 1},
		{"nested join", func() { _, tok := cancel.Join(ctx, caller); tok.IsCancelled(); tok.Release() }, 6},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := testing.AllocsPerRun(200, tt.do); got > tt.max {
				t.Errorf("%v allocations, want at most %v", got, tt.max)
			}
		})
	}
}

func BenchmarkJoinNested(b *testing.B) {
	ctx, caller := cancel.Join(b.Context(), nil)
	defer caller.Release()
	b.ReportAllocs()
	for b.Loop() {
		_, tok := cancel.Join(ctx, caller)
		tok.Release()
	}
}

func BenchmarkJoinUnderToken(b *testing.B) {
	app := cancel.NewToken()
	b.ReportAllocs()
	for b.Loop() {
		_, tok := cancel.Join(context.Background(), app)
		tok.Release()
	}
}

func BenchmarkCheck(b *testing.B) {
	_, tok := cancel.Join(b.Context(), nil)
	defer tok.Release()
	b.ReportAllocs()
	for b.Loop() {
		if tok.IsCancelled() {
			b.Fatal("cancelled")
		}
	}
}

func BenchmarkCancelTree(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		root := cancel.NewToken()
		for range 100 {
			root.Child()
		}
		root.Cancel(nil)
	}
}

func BenchmarkTableBeginEnd(b *testing.B) {
	for _, inFlight := range []int{0, 10_000} {
		b.Run(strconv.Itoa(inFlight), func(b *testing.B) {
			tab := cancel.NewTable(cancel.TableOptions{})
			for i := range inFlight {
				if _, err := tab.Begin(cancel.Call{Key: key(strconv.Itoa(i), 1), Root: "r", Issuer: "ann"}); err != nil {
					b.Fatal(err)
				}
			}
			tok := cancel.NewToken()
			b.ReportAllocs()
			for b.Loop() {
				e, err := tab.Begin(cancel.Call{Key: key("c", 1), Root: "r", Parent: "p", Trace: "t", Issuer: "ann", Token: tok})
				if err != nil {
					b.Fatal(err)
				}
				e.End()
			}
		})
	}
}

func BenchmarkTableBury(b *testing.B) {
	tab := cancel.NewTable(cancel.TableOptions{})
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		i++
		tab.Cancel(cancel.Selector{Call: strconv.Itoa(i)}, cancel.CancelRequest{Issuer: "ann", Bury: true})
	}
}
