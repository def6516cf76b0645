package gateway_test

import (
	"context"
	"errors"
	"testing"

	"github.com/apbus/apbus/gateway"
	"github.com/apbus/apbus/module"
)

func TestDoctor(t *testing.T) {
	examined := func(checks []gateway.HealthCheck, err error) func(*gateway.Options) {
		return func(o *gateway.Options) {
			o.Doctor = gateway.DoctorFunc(func(context.Context) ([]gateway.HealthCheck, error) { return checks, err })
		}
	}
	g := newGateway(t, examined([]gateway.HealthCheck{
		{Name: "jetstream", State: "ok"},
		{Name: "catalogue", State: "skipped", Note: "nobody is there"},
		{Name: "stream_overlap", State: "found", Findings: []gateway.Finding{{"error", "stream S", "it captures calls", "narrow it"}}},
	}, nil))
	const want = `{"checks":[{"check":"jetstream","findings":[],"note":null,"state":"ok"},` +
		`{"check":"catalogue","findings":[],"note":"nobody is there","state":"skipped"},` +
		`{"check":"stream_overlap","findings":[{"mend":"narrow it","problem":"it captures calls","severity":"error","what":"stream S"}],"note":null,"state":"found"}]}`
	if res := record(g, "GET", "/v1/doctor", ""); res.status != 200 || res.body != want {
		t.Errorf("got %d %s\nwant %s", res.status, res.body, want)
	}
	record(newGateway(t, examined(nil, errors.New("SECRET"))), "GET", "/v1/doctor", "").wantFault(t, 500, module.CodeInternal)
	record(newGateway(t), "GET", "/v1/doctor", "").wantFault(t, 501, module.CodeNotImplemented)
}
