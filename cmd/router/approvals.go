package main

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/apbus/apbus/bus"
	"github.com/apbus/apbus/executor/approval"
	"github.com/apbus/apbus/gateway"
	"github.com/apbus/apbus/jetstream"
)

// openApprovals serves the requests that the nodes have stored; nil without
// JetStream, where there are none. The store is there for the tasks that wait.
func openApprovals(ctx context.Context, cfg *config, conns *bus.Conns, decided func(context.Context, approval.Record), log *slog.Logger) (gateway.Approvals, *jetstream.ApprovalStore, error) {
	if conns.JS == nil {
		return nil, nil, nil
	}
	store, err := jetstream.OpenApprovals(ctx, conns.JS, jetstream.ApprovalOptions{Namespace: cfg.NS, Replicas: cfg.Replicas, Logger: log})
	if err != nil {
		return nil, nil, fmt.Errorf("open the approvals: %w", err)
	}
	return approval.NewDurable(store, approval.Options{OnDecision: decided, Logger: log}), store, nil
}
