package gateway

import (
	"context"
	"net/http"
)

// Doctor looks for misconfigurations of the bus.
type Doctor interface {
	// Diagnose says of each thing it looked at what it found. It may take seconds.
	Diagnose(ctx context.Context) ([]HealthCheck, error)
}

// HealthCheck is one thing that was looked at.
type HealthCheck struct {
	Name string
	// State is ok, found or skipped.
	State string
	// Note says why nothing was looked at, or how far it could be seen.
	Note     string
	Findings []Finding
}

// Finding is one thing that is wrong: how bad it is (error or warning), what it is
// about, what it does, and how it is mended.
type Finding struct{ Severity, What, Problem, Mend string }

// DoctorFunc makes a [Doctor] of a function; a nil one is GENERAL_NOT_IMPLEMENTED.
type DoctorFunc func(ctx context.Context) ([]HealthCheck, error)

var _ Doctor = DoctorFunc(nil)

// Diagnose calls f.
func (f DoctorFunc) Diagnose(ctx context.Context) ([]HealthCheck, error) {
	if f == nil {
		return nil, notImplemented("the doctor")
	}
	return f(ctx)
}

// showDoctor serves GET /v1/doctor.
func (g *Gateway) showDoctor(x *exchange) error {
	checks, err := g.doctor.Diagnose(x.r.Context())
	if err != nil {
		return err
	}
	list := make([]any, len(checks))
	for i, c := range checks {
		findings := make([]any, len(c.Findings))
		for j, f := range c.Findings {
			findings[j] = map[string]any{"severity": f.Severity, "what": f.What, "problem": f.Problem, "mend": f.Mend}
		}
		list[i] = map[string]any{"check": c.Name, "state": c.State, "note": orNull(c.Note), "findings": findings}
	}
	return x.json(http.StatusOK, map[string]any{"checks": list})
}
