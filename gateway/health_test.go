package gateway_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apbus/apbus/gateway"
	"github.com/apbus/apbus/module"
)

func TestHealth(t *testing.T) {
	sick := func(o *gateway.Options) {
		o.Readiness = gateway.ReadyFunc(func(context.Context) error { return errors.New("SECRET") })
	}
	if res := record(newGateway(t), "GET", "/readyz", ""); res.status != 200 || res.body != `{"status":"ready"}` {
		t.Errorf("readyz: %d %s", res.status, res.body)
	}
	g := newGateway(t, sick)
	res := record(g, "GET", "/readyz", "")
	res.wantFault(t, 503, module.CodeBusDisconnected)
	if strings.Contains(res.body, "SECRET") {
		t.Errorf("readyz shows the cause: %s", res.body)
	}
	if res := record(g, "GET", "/healthz", ""); res.status != 200 || res.body != `{"status":"ok"}` {
		t.Errorf("healthz: %d %s", res.status, res.body)
	}
}

func TestReadinessProbeIsLimited(t *testing.T) {
	bubble(t, func(t *testing.T, g *gateway.Gateway) {
		start := time.Now()
		record(g, "GET", "/readyz", "").wantFault(t, 503, module.CodeBusDisconnected)
		if took := time.Since(start); took != 2*time.Second {
			t.Errorf("took %v, want 2s", took)
		}
		synctest.Wait()
	}, func(o *gateway.Options) {
		o.Readiness = gateway.ReadyFunc(func(ctx context.Context) error {
			<-ctx.Done()
			return context.Cause(ctx)
		})
	})
}
