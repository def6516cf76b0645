package main

import (
	"context"
	"log/slog"
	"strings"

	"github.com/apbus/apbus/executor"
	"github.com/apbus/apbus/executor/middleware"
	"github.com/apbus/apbus/executor/system"
	"github.com/apbus/apbus/module"
)

// observation is what the system modules report from: calls and errors, as
// middlewares of the executor see them.
type observation struct {
	usage  *middleware.UsageCollector
	errors *middleware.ErrorHistory
}

// observe watches calls where the system modules are wanted; nil and no options
// otherwise.
func observe(cfg *config, emit func(module.Event)) (*observation, []executor.Option, error) {
	if !cfg.wantsSystem() {
		return nil, nil, nil
	}
	notify, err := middleware.NewPlatformNotify(middleware.NotifyConfig{Emit: emit})
	if err != nil {
		return nil, nil, err
	}
	o := &observation{
		usage:  middleware.NewUsageCollector(middleware.UsageConfig{}),
		errors: middleware.NewErrorHistory(middleware.HistoryConfig{}),
	}
	return o, []executor.Option{
		executor.WithMiddleware(middleware.NewUsage(o.usage), middleware.NewRecordErrors(o.errors), notify),
	}, nil
}

// registerSystem registers the system modules that the flags ask for.
func registerSystem(ctx context.Context, cfg *config, x *executor.Executor, o *observation, emit func(module.Event), log *slog.Logger) error {
	if o == nil {
		return nil
	}
	set, err := system.NewSettings(map[string]any{
		"project": map[string]any{"name": cfg.NS}, "executor": limitSettings(cfg.limits()),
		"sys_modules": map[string]any{
			"enabled": true, "events": map[string]any{"enabled": cfg.SysControl},
		},
	})
	if err != nil {
		return err
	}
	opts := system.Options{
		Groups: system.GroupsOf(set), Usage: o.usage, Errors: o.errors, Settings: set,
		Audit: system.NewMemoryAudit(0), Emit: emit, Logger: log, FailOnError: true,
	}
	if cfg.Overrides != "" {
		opts.Overrides = system.NewFileOverrides(cfg.Overrides)
	}
	if _, err = system.Register(ctx, x, opts); err != nil {
		return err
	}
	followLimits(set, x, log)
	return nil
}

// warnUnprotected tells when nothing recognised stands in front of the control
// modules (protocol §6.6.5).
func warnUnprotected(x *executor.Executor, log *slog.Logger) {
	if x.GovernanceState().UnprotectedControlSurface {
		log.Warn("the control modules are unprotected: neither an ACL nor approvals stand in front of them")
	}
}

// logEvents writes events to the log: those about health, which nobody else
// mentions, as warnings, all others for looking closely, since what they tell is
// logged where it happens.
func logEvents(log *slog.Logger) func(module.Event) {
	return func(e module.Event) {
		level := slog.LevelDebug
		if strings.HasPrefix(e.Type, "apcore.health.") {
			level = slog.LevelWarn
		}
		log.LogAttrs(context.Background(), level, "event", slog.String("event", e.Type),
			slog.String("module_id", e.ModuleID), slog.String("severity", e.Severity), slog.Any("data", e.Data))
	}
}
