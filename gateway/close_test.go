package gateway_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apbus/apbus/cancel"
	"github.com/apbus/apbus/module"
)

func TestCloseWaitsForDetachedCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		g := newGateway(t, withInvoker(blocked(release, map[string]any{"ok": true})))
		id := detach(t, g)
		closed := make(chan struct{})
		go func() {
			g.Close(t.Context())
			close(closed)
		}()
		synctest.Wait()
		select {
		case <-closed:
			t.Fatal("closed before the call ended")
		default:
		}
		// Nothing new meanwhile, and nobody should be sent here.
		record(g, "POST", callURL, "{}", async).wantFault(t, 429, module.CodeBusOverloaded)
		record(g, "GET", "/readyz", "").wantFault(t, 503, module.CodeBusDisconnected)
		close(release)
		<-closed
		if m := record(g, "GET", "/v1/calls/"+id, "").fields(t); m["output"] == nil {
			t.Errorf("the call that was waited for: %v", m)
		}
	})
}

func TestCloseCancelsWhatIsLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		causes := make(chan error, 2)
		g := newGateway(t, withInvoker(waiting{func(ctx context.Context) error {
			<-ctx.Done()
			causes <- context.Cause(ctx)
			return context.Cause(ctx)
		}}))
		detach(t, g)
		attached := make(chan response, 1)
		go func() { attached <- record(g, "POST", callURL, "{}") }()
		synctest.Wait()
		start := time.Now()
		grace, stop := context.WithTimeout(t.Context(), 10*time.Second)
		defer stop()
		g.Close(grace)
		if waited := time.Since(start); waited != 10*time.Second {
			t.Errorf("closed after %v, want the whole grace", waited)
		}
		for range 2 {
			if cause := <-causes; cancel.ReasonOf(cause) != cancel.Shutdown {
				t.Errorf("cause %v, want reason shutdown", cause)
			}
		}
		(<-attached).wantFault(t, 499, module.CodeExecutionCancelled)
	})
}
