package cancel_test

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/apbus/apbus/cancel"
)

type markKey struct{}

// The ways a nested call's context can come from its caller's; every one of
// them must carry a stop of the caller.
func nestings() []struct {
	name   string
	nested func(context.Context) context.Context
} {
	return []struct {
		name   string
		nested func(context.Context) context.Context
	}{
		{"same context", func(ctx context.Context) context.Context { return ctx }},
		{"with a value", func(ctx context.Context) context.Context { return context.WithValue(ctx, markKey{}, 1) }},
		{"with a timeout", func(ctx context.Context) context.Context {
			ctx, stop := context.WithTimeout(ctx, time.Hour)
			context.AfterFunc(ctx, stop)
			return ctx
		}},
		{"without cancel", context.WithoutCancel},
		{"without cancel, with a timeout", func(ctx context.Context) context.Context {
			ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), time.Hour)
			context.AfterFunc(ctx, stop)
			return ctx
		}},
		{"unrelated", func(context.Context) context.Context { return context.Background() }},
	}
}

func TestJoinStops(t *testing.T) {
	cause := cancel.Because(cancel.Shutdown, "n1", "")
	tests := []struct {
		name string
		stop func(outer context.CancelCauseFunc, app, caller *cancel.Token)
		want cancel.Reason
	}{
		{"caller's token", func(_ context.CancelCauseFunc, _, caller *cancel.Token) { caller.Cancel(cause) }, cancel.Shutdown},
		{"token above the caller's", func(_ context.CancelCauseFunc, app, _ *cancel.Token) { app.Cancel(cause) }, cancel.Shutdown},
		{"context above the caller's", func(outer context.CancelCauseFunc, _, _ *cancel.Token) { outer(cause) }, cancel.Shutdown},
		{"caller finished", func(_ context.CancelCauseFunc, _, caller *cancel.Token) { caller.Release() }, cancel.Parent},
	}
	for _, tt := range tests {
		for _, n := range nestings() {
			t.Run(tt.name+"/"+n.name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					outer, stopOuter := context.WithCancelCause(t.Context())
					defer stopOuter(nil)
					app := cancel.NewToken()
					ctx, caller := cancel.Join(outer, app)
					defer caller.Release()
					nctx, nested := cancel.Join(n.nested(ctx), caller)
					defer nested.Release()
					leaf := nested.Child()
					var heard error
					leaf.AfterFunc(func(c error) { heard = c })

					if nested.IsCancelled() || leaf.IsCancelled() || nctx.Err() != nil {
						t.Fatal("the nested call begins cancelled")
					}
					tt.stop(stopOuter, app, caller)
					synctest.Wait()
					if nctx.Err() == nil || !nested.IsCancelled() || !leaf.IsCancelled() {
						t.Fatalf("nested context %v, token %v, leaf %v; want all cancelled",
							nctx.Err(), nested.IsCancelled(), leaf.IsCancelled())
					}
					for name, err := range map[string]error{
						"context": context.Cause(nctx), "token": nested.Cause(), "leaf": leaf.Cause(), "function": heard,
					} {
						if got := cancel.ReasonOf(err); got != tt.want {
							t.Errorf("%s: reason = %q, want %q", name, got, tt.want)
						}
					}
				})
			})
		}
	}
}

func TestJoinNestedNeverReachesCaller(t *testing.T) {
	app := cancel.NewToken()
	ctx, caller := cancel.Join(t.Context(), app)
	defer caller.Release()
	nctx, nested := cancel.Join(ctx, caller)
	timeout := cancel.Because(cancel.Timeout, "", "")
	if !nested.Cancel(timeout) || context.Cause(nctx) != timeout {
		t.Errorf("nested context cause = %v, want %v", context.Cause(nctx), timeout)
	}
	nested.Release()
	if caller.IsCancelled() || app.IsCancelled() || ctx.Err() != nil {
		t.Error("a nested timeout reached the caller")
	}
}

func TestJoinContextAndTokenAgreeAtOnce(t *testing.T) {
	outer, stop := context.WithCancelCause(t.Context())
	ctx, tok := cancel.Join(outer, nil)
	defer tok.Release()
	boom := errors.New("boom")
	stop(boom)
	// No waiting: the token is asked right after the context ended.
	if !tok.IsCancelled() || tok.Cause() != boom || !closed(tok.Done()) {
		t.Errorf("token after its context ended: cause %v, want %v", tok.Cause(), boom)
	}
	if err := tok.Check(); !errors.Is(err, boom) {
		t.Errorf("Check = %v, want it to wrap %v", err, boom)
	}
	if tok.Cancel(nil) {
		t.Error("Cancel after the context ended = true, want false")
	}
	if ctx.Err() == nil {
		t.Error("joined context is live")
	}
}

func TestJoinDeadlineIsTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithTimeout(t.Context(), time.Second)
		defer stop()
		_, tok := cancel.Join(ctx, nil)
		defer tok.Release()
		<-tok.Done()
		if got := cancel.ReasonOf(tok.Check()); got != cancel.Timeout {
			t.Errorf("reason = %q, want %q", got, cancel.Timeout)
		}
	})
}

func TestJoinUnderWhatIsOver(t *testing.T) {
	cancelled, released := cancel.NewToken(), cancel.NewToken()
	cancelled.Cancel(cancel.Because(cancel.Remote, "", ""))
	released.Release()
	ended, stop := context.WithCancel(t.Context())
	stop()
	tests := []struct {
		name   string
		ctx    context.Context
		parent *cancel.Token
		want   cancel.Reason
	}{
		{"cancelled token", t.Context(), cancelled, cancel.Remote},
		{"released token", t.Context(), released, cancel.Parent},
		{"ended context", ended, nil, cancel.Caller},
		{"ended context, live token", ended, cancel.NewToken(), cancel.Caller},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			ctx, tok := cancel.Join(tt.ctx, tt.parent)
			defer tok.Release()
			if got := cancel.ReasonOf(tok.Cause()); got != tt.want || ctx.Err() == nil {
				t.Errorf("reason = %q, context %v; want %q and a cancelled context", got, ctx.Err(), tt.want)
			}
		})
	}
}

func TestJoinRelease(t *testing.T) {
	app := cancel.NewToken()
	ctx, tok := cancel.Join(t.Context(), app)
	tok.Release()
	if tok.IsCancelled() || tok.Check() != nil {
		t.Error("a call that finished reports cancelled")
	}
	if got := cancel.ReasonOf(context.Cause(ctx)); got != cancel.Parent {
		t.Errorf("reason of the context = %q, want %q", got, cancel.Parent)
	}
	if !closed(tok.Done()) {
		t.Error("Done is open though the context is over")
	}
	app.Cancel(nil)
	tok.Cancel(nil)
	if tok.IsCancelled() {
		t.Error("a late cancel changed the verdict of a finished call")
	}
}

func TestJoinReset(t *testing.T) {
	app := cancel.NewToken()
	ctx, tok := cancel.Join(t.Context(), app)
	defer tok.Release()
	tok.Cancel(nil)
	tok.Reset()
	if tok.IsCancelled() || closed(tok.Done()) {
		t.Error("token is not live after Reset")
	}
	if ctx.Err() == nil {
		t.Error("a context came back to life")
	}
	again := tok.Done()
	app.Cancel(nil)
	if !tok.IsCancelled() || !closed(again) {
		t.Error("a reset token no longer hears its parent")
	}
}

func TestFromContext(t *testing.T) {
	if got := cancel.FromContext(t.Context()); got != nil {
		t.Errorf("FromContext without Join = %v, want nil", got)
	}
	ctx, outer := cancel.Join(t.Context(), nil)
	defer outer.Release()
	nctx, inner := cancel.Join(context.WithValue(ctx, markKey{}, 1), outer)
	defer inner.Release()
	if cancel.FromContext(ctx) != outer || cancel.FromContext(nctx) != inner {
		t.Error("FromContext does not return the innermost token")
	}
}

func TestJoinLeaksNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		app := cancel.NewToken()
		ctx, caller := cancel.Join(t.Context(), app)
		defer caller.Release()
		var gone []weak.Pointer[cancel.Token]
		for _, n := range nestings() {
			_, tok := cancel.Join(n.nested(ctx), caller)
			tok.AfterFunc(func(error) { t.Error("a function of a finished call ran") })
			tok.Child()
			tok.Release()
			gone = append(gone, weak.Make(tok))
		}
		synctest.Wait()
		runtime.GC()
		for i, n := range nestings() {
			if gone[i].Value() != nil {
				t.Errorf("%s: a released token is still reachable", n.name)
			}
		}
		app.Cancel(nil)
		synctest.Wait() // a bubble that ends with goroutines left fails the test
	})
}

// The ends of a call meet in every order; none may deadlock, and the verdict
// of the two faces must agree.
func TestJoinRace(t *testing.T) {
	for range 3000 {
		outer, stop := context.WithCancelCause(t.Context())
		app := cancel.NewToken()
		ctx, tok := cancel.Join(outer, app)
		nctx, nested := cancel.Join(ctx, tok)
		var wg sync.WaitGroup
		wg.Go(func() { stop(cancel.Because(cancel.CallerGone, "", "")) })
		wg.Go(func() { app.Cancel(cancel.Because(cancel.Shutdown, "", "")) })
		wg.Go(func() { tok.Cancel(cancel.Because(cancel.Timeout, "", "")) })
		wg.Go(func() { nested.AfterFunc(func(error) {})() })
		wg.Go(func() { tok.Child().Release() })
		wg.Wait()
		if !tok.IsCancelled() || !nested.IsCancelled() || nctx.Err() == nil {
			t.Fatal("a cancel was lost")
		}
		if tok.Cause() != context.Cause(ctx) {
			t.Fatalf("token says %v, its context %v", tok.Cause(), context.Cause(ctx))
		}
		nested.Release()
		tok.Release()
	}
}
