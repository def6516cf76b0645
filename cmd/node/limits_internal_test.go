package main

import (
	"log/slog"
	"testing"
	"time"

	"github.com/apbus/apbus/executor"
	"github.com/apbus/apbus/executor/registry"
	"github.com/apbus/apbus/executor/system"
)

// What update_config sets counts for the executor from the next call on, and what
// the settings refuse changes nothing.
func TestLimitsFollowTheSettings(t *testing.T) {
	cfg := &config{DefaultTimeout: 7 * time.Second, GlobalTimeout: 90 * time.Second, GracePeriod: time.Second}
	quiet := slog.New(slog.DiscardHandler)
	x, err := executor.New(registry.New(registry.Options{}), cfg.limits(), executor.WithLogger(quiet))
	if err != nil {
		t.Fatal(err)
	}
	set, err := system.NewSettings(map[string]any{"executor": limitSettings(cfg.limits())})
	if err != nil {
		t.Fatal(err)
	}
	followLimits(set, x, quiet)
	if got := x.Config(); *got.DefaultTimeout != 7*time.Second || *got.GlobalTimeout != 90*time.Second || *got.GracePeriod != time.Second {
		t.Errorf("at the start: %v %v %v", *got.DefaultTimeout, *got.GlobalTimeout, *got.GracePeriod)
	}
	for key, value := range map[string]any{
		"executor.default_timeout": 250, "executor.global_timeout": 0, "executor.grace_period": 20, "executor.acl_timeout": 30,
		"executor.max_call_depth": 4, "executor.max_module_repeat": 2, "stream.max_merge_depth": 8,
	} {
		if _, err := set.Set(key, value); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := set.Set("executor.max_call_depth", 0); err == nil {
		t.Error("a depth of 0 was taken")
	}
	got := x.Config()
	if *got.DefaultTimeout != 250*time.Millisecond || *got.GlobalTimeout != 0 || *got.GracePeriod != 20*time.Millisecond ||
		*got.ACLTimeout != 30*time.Millisecond || got.MaxCallDepth != 4 || got.MaxModuleRepeat != 2 || got.MaxMergeDepth != 8 {
		t.Errorf("after the changes: %+v", got)
	}
}
