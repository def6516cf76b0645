package system

import (
	"context"

	"github.com/apbus/apbus/module"
)

const idToggle = "system.control.toggle_feature"

type toggleIn struct {
	ModuleID string `json:"module_id"`
	Enabled  *bool  `json:"enabled"`
	Reason   string `json:"reason"`
}

func (m *Modules) toggleFeature() module.Module {
	return build(Control, idToggle, "Switch a module of this process off for calls, or on again.",
		object(map[string]any{
			"module_id": described(text(), "The module to switch."),
			"enabled":   described(boolean(), "false switches it off: its calls fail with MODULE_DISABLED."),
			"reason":    reasonInput(),
		}),
		object(map[string]any{"success": boolean(), "module_id": text(), "enabled": boolean()}), m.runToggle,
		module.WithPreview(func(_ context.Context, in toggleIn) (*module.PreviewResult, error) {
			summary := "Switch the module " + in.ModuleID + " of this node on"
			if !orElse(in.Enabled, false) {
				summary = "Switch the module " + in.ModuleID + " of this node off"
			}
			return &module.PreviewResult{Changes: []module.Change{{
				Action: "update", Target: in.ModuleID, Summary: summary,
				Before: module.Optional{Value: m.reg.Enabled(in.ModuleID), Set: true},
				After:  module.Optional{Value: orElse(in.Enabled, false), Set: true},
			}}}, nil
		}))
}

func (m *Modules) runToggle(ctx context.Context, in toggleIn) (map[string]any, error) {
	switch {
	case in.ModuleID == "":
		return nil, required("module_id")
	case in.ModuleID == idToggle:
		return nil, module.Errorf(module.CodeInvalidInput, "%s cannot be switched: nothing could switch it on again", idToggle)
	case in.Enabled == nil:
		return nil, module.Errorf(module.CodeInvalidInput, "enabled is required and must be a boolean")
	}
	reason, err := reasonOf(in.Reason)
	if err != nil {
		return nil, err
	}
	if _, err := m.entry(in.ModuleID); err != nil {
		return nil, err
	}
	giveBack, err := m.take(ctx)
	if err != nil {
		return nil, err
	}
	defer giveBack()
	enabled := *in.Enabled
	before := m.reg.SetEnabled(in.ModuleID, enabled)
	ctx = context.WithoutCancel(ctx) // what has changed is told
	var disabled any
	if ids := m.reg.Disabled(); len(ids) > 0 {
		disabled = stringsOf(ids)
	}
	m.keep(ctx, DisabledKey, disabled)
	severity := module.SeverityInfo
	if !enabled {
		severity = module.SeverityWarn
	}
	who := actorOf(ctx)
	m.emit(module.EventModuleToggled, severity, in.ModuleID, who.sign(map[string]any{
		"module_id": in.ModuleID, "enabled": enabled, "reason": reason,
	}))
	e := who.entry(ActionToggleFeature, in.ModuleID, reason)
	e.Before, e.After = before, enabled
	m.record(ctx, e)
	return map[string]any{"success": true, "module_id": in.ModuleID, "enabled": enabled}, nil
}
