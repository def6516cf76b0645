package main

import (
	"log/slog"
	"strings"
	"time"

	"github.com/apbus/apbus/executor"
	"github.com/apbus/apbus/executor/system"
)

// limits are the executor's settings that have a flag; the others keep their
// defaults until system.control.update_config changes them.
func (c *config) limits() executor.Config {
	return executor.Config{
		DefaultTimeout: &c.DefaultTimeout, GlobalTimeout: &c.GlobalTimeout, GracePeriod: &c.GracePeriod,
	}
}

// limitSettings is the section executor of the settings, in milliseconds.
func limitSettings(cfg executor.Config) map[string]any {
	return map[string]any{
		"default_timeout": cfg.DefaultTimeout.Milliseconds(),
		"global_timeout":  cfg.GlobalTimeout.Milliseconds(),
		"grace_period":    cfg.GracePeriod.Milliseconds(),
	}
}

// followLimits gives the executor the limits that the settings hold now, overrides
// of an earlier run among them, and again whenever one of them is changed.
func followLimits(set *system.Settings, x *executor.Executor, log *slog.Logger) {
	apply := func() {
		if err := x.Configure(limitsOf(set)); err != nil {
			log.Error("limits of the executor not changed", "cause", err)
		}
	}
	apply()
	set.OnChange(func(key string, _ any) {
		if section, _, _ := strings.Cut(key, "."); section == "executor" || section == "stream" {
			apply()
		}
	})
}

func limitsOf(set *system.Settings) executor.Config {
	whole := func(key string) int {
		v, _ := set.Get(key)
		n, _ := v.(int64)
		return int(n)
	}
	millis := func(key string) *time.Duration {
		return new(time.Duration(whole(key)) * time.Millisecond)
	}
	return executor.Config{
		DefaultTimeout: millis("executor.default_timeout"), GlobalTimeout: millis("executor.global_timeout"),
		GracePeriod: millis("executor.grace_period"), ACLTimeout: millis("executor.acl_timeout"),
		MaxCallDepth: whole("executor.max_call_depth"), MaxModuleRepeat: whole("executor.max_module_repeat"),
		MaxMergeDepth: whole("stream.max_merge_depth"),
	}
}
