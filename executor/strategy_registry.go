package executor

import (
	"maps"
	"slices"
	"sync"

	"github.com/apbus/apbus/module"
)

// strategies holds what [RegisterStrategy] was given, for the whole process.
var strategies = struct {
	mu    sync.RWMutex
	build map[string]func() *Strategy
}{build: map[string]func() *Strategy{}}

// RegisterStrategy makes a strategy selectable by name for the whole process, with
// [WithStrategyName] (core-executor seed, Pipeline Strategy API). build is called for
// every executor, since a strategy belongs to one that may edit it; it must be safe
// for concurrent use. An empty name, that of a preset, one that is taken and a nil
// build are refused with GENERAL_INVALID_INPUT.
func RegisterStrategy(name string, build func() *Strategy) error {
	if name == "" || build == nil {
		return module.Errorf(module.CodeInvalidInput, "a strategy needs a name and a function that builds it")
	}
	if _, err := Preset(name); err == nil {
		return module.Errorf(module.CodeInvalidInput, "strategy %q is a preset", name)
	}
	strategies.mu.Lock()
	defer strategies.mu.Unlock()
	if _, taken := strategies.build[name]; taken {
		return module.Errorf(module.CodeInvalidInput, "strategy %q is registered already", name)
	}
	strategies.build[name] = build
	return nil
}

// LookupStrategy builds the preset or registered strategy of that name. An unknown
// name is STRATEGY_NOT_FOUND, a build function that returns nil
// PIPELINE_CONFIGURATION_ERROR.
func LookupStrategy(name string) (*Strategy, error) {
	strategies.mu.RLock()
	build := strategies.build[name]
	strategies.mu.RUnlock()
	if build == nil {
		return Preset(name)
	}
	s := build()
	if s == nil {
		return nil, module.Errorf(module.CodePipelineConfiguration, "strategy %q was built as nil", name)
	}
	// A copy, because what build returns may be shared and bear another name.
	c := *s
	c.name, c.middleware = name, slices.Clip(s.middleware)
	return &c, nil
}

// registeredStrategies lists the names, sorted.
func registeredStrategies() []string {
	strategies.mu.RLock()
	defer strategies.mu.RUnlock()
	return slices.Sorted(maps.Keys(strategies.build))
}

// ListStrategies describes the running strategy and, sorted by name, every other
// that [RegisterStrategy] knows.
func (x *Executor) ListStrategies() []StrategyInfo {
	running := x.strategy.Load()
	list := []StrategyInfo{running.Info()}
	for _, name := range registeredStrategies() {
		if name == running.Name() {
			continue
		}
		if s, err := LookupStrategy(name); err == nil {
			list = append(list, s.Info())
		}
	}
	return list
}
