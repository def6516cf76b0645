package main

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/apbus/apbus/bus"
	"github.com/apbus/apbus/executor/approval"
	"github.com/apbus/apbus/internal/settings"
	"github.com/apbus/apbus/jetstream"
)

// Where the requests are kept of calls that need a person.
const (
	approvalsDurable = "durable"
	approvalsMemory  = "memory"
)

// checkApprovals finds what no single flag shows.
func (c *config) checkApprovals() error {
	if c.ApprovalWait < 0 {
		return settings.Usagef("--approval-wait must not be negative")
	}
	if c.ApprovalExpiry <= 0 || c.ApprovalExpiry > jetstream.DefaultApprovalRetention/2 {
		return settings.Usagef("--approval-expiry must be above 0 and at most %v: requests are not kept for ever", jetstream.DefaultApprovalRetention/2)
	}
	return nil
}

// openApprovals makes the handler of calls that need a person. They never run
// undecided: without JetStream they wait where nobody can decide.
func openApprovals(ctx context.Context, cfg *config, conns *bus.Conns, log *slog.Logger) (approval.Handler, error) {
	o := approval.Options{Wait: cfg.ApprovalWait, Expiry: cfg.ApprovalExpiry, Logger: log}
	switch {
	case cfg.Approvals == approvalsMemory:
		log.Warn("approval requests are kept in memory, as told: nobody outside this process can decide, and its end loses them")
	case conns.JS == nil:
		log.Warn("approval requests are kept in memory for want of JetStream: nobody outside this process can decide, and its end loses them")
	default:
		store, err := jetstream.OpenApprovals(ctx, conns.JS, jetstream.ApprovalOptions{Namespace: cfg.NS, Replicas: cfg.Replicas, Logger: log})
		if err != nil {
			return nil, fmt.Errorf("open the approvals (--approvals memory does without): %w", err)
		}
		return approval.NewDurable(store, o), nil
	}
	return approval.NewMemory(o), nil
}
