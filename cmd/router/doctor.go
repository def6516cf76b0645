package main

import (
	"context"

	"github.com/apbus/apbus/bus"
	"github.com/apbus/apbus/gateway"
)

// doctorOf shows the gateway what bus.Diagnose finds with the router's own way to
// the bus, and inside the embedded server where there is one.
func doctorOf(o bus.Options, namespace string, embedded *bus.Embedded) gateway.Doctor {
	return gateway.DoctorFunc(func(ctx context.Context) ([]gateway.HealthCheck, error) {
		checks, err := bus.Diagnose(ctx, o, bus.DoctorOptions{Namespace: namespace, Server: embedded})
		if err != nil {
			return nil, err
		}
		list := make([]gateway.HealthCheck, len(checks))
		for i, c := range checks {
			list[i] = gateway.HealthCheck{Name: c.Name, State: string(c.State), Note: c.Note}
			for _, f := range c.Findings {
				list[i].Findings = append(list[i].Findings, gateway.Finding{
					Severity: string(f.Severity), What: f.What, Problem: f.Problem, Mend: f.Mend,
				})
			}
		}
		return list, nil
	})
}
