package cancel_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apbus/apbus/cancel"
)

// Whoever watches a token learns of the end of its time at that very moment,
// whichever way it watches and whether it came before the limit or after.
func TestExpiry(t *testing.T) {
	watches := []struct {
		name  string
		watch func(tok *cancel.Token, told func())
	}{
		{"done", func(tok *cancel.Token, told func()) {
			done := tok.Done()
			go func() { <-done; told() }()
		}},
		{"after func", func(tok *cancel.Token, told func()) { tok.AfterFunc(func(error) { told() }) }},
		{"child", func(tok *cancel.Token, told func()) { tok.Child().AfterFunc(func(error) { told() }) }},
		{"child that polls", func(tok *cancel.Token, told func()) {
			c := tok.Child()
			go func() {
				for !c.IsCancelled() {
					time.Sleep(700 * time.Microsecond) //archtest:real-time not real: every use is inside a bubble
				}
				told()
			}()
		}},
		{"poll", func(tok *cancel.Token, told func()) {
			go func() {
				for !tok.IsCancelled() {
					time.Sleep(700 * time.Microsecond) //archtest:real-time not real: every use is inside a bubble
				}
				told()
			}()
		}},
	}
	for _, tt := range watches {
		for _, first := range []bool{true, false} {
			for _, joined := range []bool{true, false} {
				name := tt.name + map[bool]string{true: " before", false: " after"}[first] + map[bool]string{true: ", joined", false: ""}[joined]
				t.Run(name, func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						tok := cancel.NewToken()
						if joined {
							_, tok = cancel.Join(t.Context(), nil)
						}
						var e cancel.Expiry
						began, told := time.Now(), make(chan time.Duration, 1)
						watch := func() { tt.watch(tok, func() { told <- time.Since(began) }) }
						if first {
							watch()
						}
						e.Begin(tok, began.Add(time.Second), "over")
						if !first {
							watch()
						}
						if took := <-told; took.Truncate(time.Millisecond) != time.Second {
							t.Errorf("told after %v", took)
						}
						if c := tok.Cause(); cancel.ReasonOf(c) != cancel.Timeout || !e.Rang(c) {
							t.Errorf("cause %v, rang %v", c, e.Rang(c))
						}
						tok.Release()
					})
				})
			}
		}
	}
}

// Without a watcher there is no timer: the time passes and nothing happens until
// somebody asks.
func TestExpiryUnwatched(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, tok := cancel.Join(t.Context(), nil)
		var e cancel.Expiry
		at := time.Now().Add(time.Second)
		e.Begin(tok, at, "over")
		if e.At() != at {
			t.Errorf("ends at %v", e.At())
		}
		if e.Over(at.Add(-1)) {
			t.Error("over before its time")
		}
		time.Sleep(2 * time.Second)
		if err := ctx.Err(); err != nil {
			t.Errorf("somebody armed it: %v", err)
		}
		if !e.Over(time.Now()) || ctx.Err() == nil || !e.Rang(context.Cause(ctx)) {
			t.Errorf("asked, and the context says %v", context.Cause(ctx))
		}
	})
}

func TestExpiryStopped(t *testing.T) {
	for _, armed := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			tok := cancel.NewToken()
			var e cancel.Expiry
			e.Begin(tok, time.Now().Add(time.Second), "over")
			if armed {
				e.Arm()
			}
			e.Stop()
			e.Stop()
			e.Arm()
			time.Sleep(2 * time.Second)
			if c := tok.Cause(); c != nil {
				t.Errorf("armed %v: stopped, and the token says %v", armed, c)
			}
		})
	}
}

// A limit that is over already ends the token when somebody watches, and a cancel
// that came first keeps its cause.
func TestExpiryPast(t *testing.T) {
	tok := cancel.NewToken()
	var e cancel.Expiry
	e.Begin(tok, time.Now().Add(-time.Second), "over")
	if !tok.IsCancelled() || !e.Rang(tok.Cause()) {
		t.Errorf("cause %v", tok.Cause())
	}

	other := cancel.NewToken()
	other.Cancel(cancel.Because(cancel.Remote, "", ""))
	var late cancel.Expiry
	late.Begin(other, time.Now().Add(-time.Second), "over")
	if !late.Over(time.Now()) || cancel.ReasonOf(other.Cause()) != cancel.Remote || late.Rang(other.Cause()) {
		t.Errorf("cause %v", other.Cause())
	}
}

// Many may watch, ask and stop at once; whoever heard that the time is over finds
// the token cancelled, with the one cause.
func TestExpiryRaces(t *testing.T) {
	for range 500 {
		_, tok := cancel.Join(t.Context(), nil)
		var e cancel.Expiry
		var all sync.WaitGroup
		began := make(chan struct{})
		for i := range 6 {
			all.Go(func() {
				<-began
				switch i {
				case 0:
					tok.IsCancelled()
				case 1:
					<-tok.Done()
				case 2:
					tok.AfterFunc(func(error) {})()
				default:
					if e.Over(time.Now().Add(time.Hour)) && !e.Rang(tok.Cause()) {
						t.Errorf("over, and the cause is %v", tok.Cause())
					}
				}
			})
		}
		e.Begin(tok, time.Now().Add(time.Minute), "over")
		close(began)
		all.Wait()
		e.Stop()
		tok.Release()
	}
}
