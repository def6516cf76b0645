package system

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"time"

	"github.com/apbus/apbus/executor"
	"github.com/apbus/apbus/executor/middleware"
	"github.com/apbus/apbus/executor/registry"
	"github.com/apbus/apbus/module"
)

// UsageSource tells what calls were made; *middleware.UsageCollector is one.
type UsageSource interface {
	Summary(period time.Duration) middleware.UsageSummary
	Module(id string, period time.Duration) middleware.ModuleUsage
}

var _ UsageSource = (*middleware.UsageCollector)(nil)

// ErrorSource tells how calls of a module failed: the latest failures first, at
// most limit, all for 0. *middleware.ErrorHistory is one.
type ErrorSource interface {
	Get(moduleID string, limit int) []middleware.ErrorEntry
}

var _ ErrorSource = (*middleware.ErrorHistory)(nil)

// Options configures [Register]. The zero value registers the read modules, which
// then report what the registry knows and that no calls were seen.
type Options struct {
	// Groups are the groups to register; nil means [ReadGroups], an empty list none.
	Groups []Group
	// Project is the name of the system as reports show it; "" means the setting
	// project.name.
	Project string
	// Usage and Errors are what was seen of calls; nil for nothing.
	Usage  UsageSource
	Errors ErrorSource
	// Settings is what system.control.update_config changes; nil means one of
	// defaults only.
	Settings *Settings
	// Overrides keeps changes of settings and switches over a restart; nil keeps
	// none. What it holds is applied by Register.
	Overrides OverridesStore
	// Audit keeps who changed what; nil only logs it.
	Audit AuditStore
	// Emit takes the events of control modules; nil drops them. It must not block.
	Emit func(module.Event)
	// Logger is slog.Default() when nil.
	Logger *slog.Logger
	// FailOnError makes a module that cannot be registered fail [Register] with
	// SYS_MODULE_REGISTRATION_FAILED, after taking the others out again; otherwise
	// it is logged and left out.
	FailOnError bool
}

// Modules are the system modules of one executor.
type Modules struct {
	x         *executor.Executor
	reg       *registry.Registry
	project   string
	usage     UsageSource
	errors    ErrorSource
	settings  *Settings
	overrides OverridesStore
	audit     AuditStore
	emitTo    func(module.Event)
	log       *slog.Logger
	ids       []string

	// turn holds one token: whoever has it may change settings, switches and what
	// is stored of them. It is a channel, since storing does I/O and waiting for it
	// ends with the call.
	turn chan struct{}
}

// Register makes the system modules of x and registers them as internal modules.
// First it applies what the overrides hold, on top of the settings; what cannot be
// applied is logged. A second registration is DUPLICATE_MODULE_ID and changes
// nothing; an unknown group is GENERAL_INVALID_INPUT. No ACL and no approval
// handler are attached: without a handler, and without a strict policy, control
// modules are warned of (protocol §6.6.3).
func Register(ctx context.Context, x *executor.Executor, o Options) (*Modules, error) {
	groups := o.Groups
	if groups == nil {
		groups = ReadGroups()
	}
	m := &Modules{
		x: x, reg: x.Registry(), usage: o.Usage, errors: o.Errors, settings: o.Settings,
		overrides: o.Overrides, audit: o.Audit, emitTo: o.Emit, log: cmp.Or(o.Logger, slog.Default()),
		turn: make(chan struct{}, 1),
	}
	if m.settings == nil {
		s, err := NewSettings(nil)
		if err != nil {
			return nil, err
		}
		m.settings = s
	}
	m.project = o.Project
	if m.project == "" {
		m.project = m.settings.text(keyProject)
	}
	var mods []module.Module
	for _, g := range groups {
		if !g.known() {
			return nil, module.Errorf(module.CodeInvalidInput, "unknown group of system modules %.64q", string(g))
		}
		mods = append(mods, m.group(g)...)
	}
	for _, mod := range mods {
		id := mod.Descriptor().ID
		if _, there := m.reg.Get(id); there {
			return nil, (&module.IDConflict{Kind: module.ConflictDuplicate, With: id}).Err(id)
		}
	}
	m.applyOverrides(ctx)
	if err := m.register(ctx, mods, o.FailOnError); err != nil {
		return nil, err
	}
	m.warnUnprotected(groups)
	return m, nil
}

func (m *Modules) group(g Group) []module.Module {
	switch g {
	case Health:
		return []module.Module{m.healthSummary(), m.healthModule()}
	case Manifest:
		return []module.Module{m.manifestModule(), m.manifestFull()}
	case Usage:
		return []module.Module{m.usageSummary(), m.usageModule()}
	case Control:
		return []module.Module{m.updateConfig(), m.reloadModule(), m.toggleFeature()}
	}
	return nil
}

func (m *Modules) register(ctx context.Context, mods []module.Module, failOnError bool) error {
	for _, mod := range mods {
		id := mod.Descriptor().ID
		err := m.reg.RegisterInternal(mod) //nolint:contextcheck // loading a system module waits for nothing
		switch {
		case err == nil:
			m.ids = append(m.ids, id)
		case failOnError:
			m.Unregister(ctx)
			return module.Errorf(module.CodeSysModuleRegistration, "system module %s cannot be registered: %w", id, err).
				WithDetail("module_id", id)
		default:
			m.log.Error("a system module cannot be registered", slog.String("module_id", id), slog.Any("cause", err))
		}
	}
	return nil
}

// IDs lists the modules that were registered.
func (m *Modules) IDs() []string { return slices.Clone(m.ids) }

// Settings returns the settings that update_config changes.
func (m *Modules) Settings() *Settings { return m.settings }

// Unregister takes the modules out again.
func (m *Modules) Unregister(ctx context.Context) {
	for _, id := range slices.Backward(m.ids) {
		m.reg.Unregister(ctx, id)
	}
	m.ids = nil
}

// Enable switches a module on through system.control.toggle_feature, with
// everything that governs that call. Without the control modules, a nil m
// included, it is SYS_MODULES_DISABLED.
func (m *Modules) Enable(ctx context.Context, moduleID, reason string) error {
	return m.toggle(ctx, moduleID, reason, true)
}

// Disable switches a module off, as [Modules.Enable] switches it on.
func (m *Modules) Disable(ctx context.Context, moduleID, reason string) error {
	return m.toggle(ctx, moduleID, reason, false)
}

func (m *Modules) toggle(ctx context.Context, moduleID, reason string, enabled bool) error {
	if m == nil || !slices.Contains(m.ids, idToggle) {
		return module.Errorf(module.CodeSysModulesDisabled, "the control modules are not registered")
	}
	_, err := m.x.Call(ctx, idToggle, map[string]any{"module_id": moduleID, "enabled": enabled, "reason": reason})
	return err
}

// build makes one system module.
func build[In any](g Group, id, description string, in, out map[string]any, run func(ctx context.Context, in In) (map[string]any, error), more ...module.Option) *module.Func {
	return module.New(id, description, run, append([]module.Option{
		module.WithAnnotations(g.annotations()), module.WithTags("system", string(g)),
		module.WithInputSchema(in), module.WithOutputSchema(out),
	}, more...)...)
}

// entry finds a module; MODULE_NOT_FOUND when there is none.
func (m *Modules) entry(id string) (*registry.Entry, error) {
	e, ok := m.reg.Get(id)
	if !ok {
		return nil, registry.NotFound(id)
	}
	return e, nil
}
