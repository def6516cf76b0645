package bus_test

import (
	"context"
	"errors"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"

	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/module"
)

func refusal(code module.Code) *module.Error {
	return module.Errorf(code, "refused").NotExecuted()
}

func TestWhichErrorsAreTriedAgain(t *testing.T) {
	for _, tt := range []struct {
		name     string
		err      *module.Error
		attempts int
	}{
		{"overloaded", refusal(module.CodeBusOverloaded), 3},
		{"version mismatch", refusal(module.CodeBusVersionMismatch), 3},
		{"any code, certainly not started", refusal(module.CodeModuleExecuteError), 3},
		{"overloaded, but perhaps started", module.Errorf(module.CodeBusOverloaded, "x"), 1},
		{"no responders of a nested call", module.Errorf(module.CodeBusNoResponders, "x"), 1},
		{"lost node of a nested call", module.Errorf(module.CodeBusNodeLost, "x").WithRetryable(module.True), 1},
		{"failed", module.Errorf(module.CodeModuleExecuteError, "x"), 1},
		{"timed out", module.Errorf(module.CodeModuleTimeout, "x").WithRetryable(module.True), 1},
		{"cancelled before it started", refusal(module.CodeExecutionCancelled), 1},
		{"out of budget", refusal(module.CodeBusBudgetExhausted), 1},
		{"not found by the queue group", refusal(module.CodeModuleNotFound), 1},
		{"denied", refusal(module.CodeACLDenied), 1},
		{"undecodable", refusal(module.CodeBusBadMessage), 1},
		{"not retryable by its own word", refusal(module.CodeBusOverloaded).WithRetryable(module.False), 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			onWire(t, func(w *wire) {
				var seen []string
				w.peer().hosts("mod.x", func(_ *nats.Msg, attempt string) []*contextwire.Frame {
					seen = append(seen, attempt)
					return []*contextwire.Frame{failure(tt.err)}
				})
				_, err := w.client().Call(w.t.Context(), "mod.x", nil)
				e := wantCode(w.t, err, tt.err.Code)
				if !e.Remote || e.Unexecuted != tt.err.Unexecuted {
					w.t.Errorf("remote %v, unexecuted %v", e.Remote, e.Unexecuted)
				}
				var want []string
				for i := range tt.attempts {
					want = append(want, strconv.Itoa(i+1))
				}
				if diff := cmp.Diff(want, seen); diff != "" {
					w.t.Errorf("attempts the host saw (-want +got):\n%s", diff)
				}
			})
		})
	}
}

func TestRetrySucceeds(t *testing.T) {
	onWire(t, func(w *wire) {
		w.peer().hosts("mod.x", func(_ *nats.Msg, attempt string) []*contextwire.Frame {
			if attempt != "3" {
				return []*contextwire.Frame{failure(refusal(module.CodeBusOverloaded))}
			}
			return []*contextwire.Frame{result(map[string]any{"attempt": attempt})}
		})
		reply, err := w.client().Invoke(w.t.Context(), &contextwire.Request{ModuleID: "mod.x"})
		if err != nil {
			w.t.Fatal(err)
		}
		if reply.Attempt != 3 || reply.Output["attempt"] != "3" {
			w.t.Errorf("reply of attempt %d: %v", reply.Attempt, reply.Output)
		}
	})
}

// Full jitter: each wait is a random part of a bound that doubles.
func TestRetriesAreSpreadByJitter(t *testing.T) {
	onWire(t, func(w *wire) {
		var at []time.Time
		w.peer().hosts("mod.x", func(*nats.Msg, string) []*contextwire.Frame {
			at = append(at, time.Now())
			return []*contextwire.Frame{failure(refusal(module.CodeBusOverloaded))}
		})
		c := w.client()
		distinct := map[time.Duration]bool{}
		var longest [2]time.Duration
		for range 200 {
			at = nil
			_, err := c.Call(w.t.Context(), "mod.x", nil)
			wantCode(w.t, err, module.CodeBusOverloaded)
			for i := range longest {
				wait := at[i+1].Sub(at[i])
				distinct[wait] = true
				longest[i] = max(longest[i], wait)
			}
		}
		for i, bound := range []time.Duration{50 * time.Millisecond, 100 * time.Millisecond} {
			if longest[i] > bound || longest[i] < bound*8/10 {
				w.t.Errorf("of 200, the longest wait before attempt %d is %v, want nearly %v", i+2, longest[i], bound)
			}
		}
		if len(distinct) < 300 {
			w.t.Errorf("only %d distinct waits of 400", len(distinct))
		}
	})
}

func TestRetryRespectsTheBudget(t *testing.T) {
	onWire(t, func(w *wire) {
		var budgets []int
		w.peer().hosts("mod.x", func(m *nats.Msg, _ string) []*contextwire.Frame {
			ms, err := strconv.Atoi(contextwire.Header(m.Header).Get(contextwire.HeaderBudget))
			if err != nil {
				w.t.Error(err)
			}
			budgets = append(budgets, ms)
			return []*contextwire.Frame{{Kind: contextwire.FrameError, Err: refusal(module.CodeBusOverloaded), RetryAfter: 400 * time.Millisecond}}
		})
		c := w.client()
		began := time.Now()
		_, err := c.Invoke(w.t.Context(), &contextwire.Request{ModuleID: "mod.x", Budget: time.Second})
		wantCode(w.t, err, module.CodeBusOverloaded)
		if took := time.Since(began); took < 800*time.Millisecond || took > time.Second {
			w.t.Errorf("took %v, want two waits of 400 ms and more, within the budget of 1 s", took)
		}
		if len(budgets) != 3 || budgets[0] != 1000 || budgets[1] > 600 || budgets[2] > 200 || budgets[2] < 1 {
			w.t.Errorf("budgets on the wire %v, want 1000 ms and then what was left", budgets)
		}
		budgets = nil
		_, err = c.Invoke(w.t.Context(), &contextwire.Request{ModuleID: "mod.x", Budget: 300 * time.Millisecond})
		wantCode(w.t, err, module.CodeBusOverloaded)
		if len(budgets) != 1 {
			w.t.Errorf("%d attempts, want 1: the wait the host asks for does not fit", len(budgets))
		}
	})
}

func TestCancelEndsTheWaitBetweenAttempts(t *testing.T) {
	onWire(t, func(w *wire) {
		attempts := 0
		w.peer().hosts("mod.x", func(*nats.Msg, string) []*contextwire.Frame {
			attempts++
			return []*contextwire.Frame{{Kind: contextwire.FrameError, Err: refusal(module.CodeBusOverloaded), RetryAfter: time.Minute}}
		})
		enough := errors.New("enough")
		ctx, stop := context.WithTimeoutCause(w.t.Context(), time.Hour, errors.New("never"))
		defer stop()
		ctx, cut := context.WithCancelCause(ctx)
		time.AfterFunc(time.Second, func() { cut(enough) })
		began := time.Now()
		_, err := w.client().Call(ctx, "mod.x", nil)
		if e := wantCode(w.t, err, module.CodeExecutionCancelled); !errors.Is(e, enough) {
			w.t.Errorf("the cause is %v, want what the caller gave", errors.Unwrap(e))
		}
		if took := time.Since(began); took != time.Second || attempts != 1 {
			w.t.Errorf("ended after %v and %d attempts, want 1 s and 1", took, attempts)
		}
	})
}

func TestEndedContextSendsNothing(t *testing.T) {
	onWire(t, func(w *wire) {
		asked := 0
		w.peer().hosts("mod.x", func(*nats.Msg, string) []*contextwire.Frame { asked++; return nil })
		c := w.client()
		enough := errors.New("enough")
		cancelled, stop := context.WithCancelCause(w.t.Context())
		stop(enough)
		_, err := c.Call(cancelled, "mod.x", nil)
		if e := wantCode(w.t, err, module.CodeExecutionCancelled); !e.Unexecuted || !errors.Is(e, enough) {
			w.t.Errorf("unexecuted %v, cause %v", e.Unexecuted, errors.Unwrap(e))
		}
		late, release := context.WithDeadline(w.t.Context(), time.Now().Add(-time.Second))
		defer release()
		_, err = c.Call(late, "mod.x", nil)
		if e := wantCode(w.t, err, module.CodeModuleTimeout); !e.Unexecuted {
			w.t.Error("a call that was never sent does not say so")
		}
		synctest.Wait()
		if asked != 0 {
			w.t.Errorf("%d requests were sent", asked)
		}
	})
}

func TestClosedConnectionIsDisconnected(t *testing.T) {
	onWire(t, func(w *wire) {
		conns := w.conns()
		c, p := w.clientOn(conns), w.peer()
		p.hosts("mod.x", func(*nats.Msg, string) []*contextwire.Frame { return nil })
		conns.Calls.(interface{ Kill() }).Kill()
		began := time.Now()
		_, err := c.Call(w.t.Context(), "mod.x", nil)
		if e := wantCode(w.t, err, module.CodeBusDisconnected); !e.Unexecuted || e.Retryable != module.True {
			w.t.Errorf("unexecuted %v, retryable %v", e.Unexecuted, e.Retryable)
		}
		if took := time.Since(began); took > 200*time.Millisecond {
			w.t.Errorf("took %v", took)
		}
	})
}
