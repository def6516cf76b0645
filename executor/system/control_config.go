package system

import (
	"context"
	"strings"

	"github.com/apbus/apbus/module"
	"github.com/apbus/apbus/schema"
)

const idUpdateConfig = "system.control.update_config"

type updateConfigIn struct {
	Key    string `json:"key"`
	Value  any    `json:"value"`
	Reason string `json:"reason"`
}

func (m *Modules) updateConfig() module.Module {
	return build(Control, idUpdateConfig, "Change one setting of this process at run time.",
		object(map[string]any{
			"key": described(text(), "Dot path of the setting, such as executor.default_timeout."),
			// Which settings are secrets is known by their keys, which a schema cannot
			// look at, so no value is shown in logs, errors and records of the call.
			"value":  map[string]any{"description": "The new value.", "x-sensitive": true},
			"reason": reasonInput(),
		}),
		object(map[string]any{
			"success": boolean(), "key": text(), "old_value": map[string]any{}, "new_value": map[string]any{},
		}), m.runUpdateConfig)
}

// runUpdateConfig reads, sets and checks as one, then persists, tells and records.
func (m *Modules) runUpdateConfig(ctx context.Context, in updateConfigIn) (map[string]any, error) {
	if in.Key == "" {
		return nil, required("key")
	}
	reason, err := reasonOf(in.Reason)
	if err != nil {
		return nil, err
	}
	if restricted(in.Key) {
		return nil, module.Errorf(module.CodeConfigKeyRestricted, "setting %s cannot be changed at run time", in.Key).
			WithDetail("key", in.Key)
	}
	giveBack, err := m.take(ctx)
	if err != nil {
		return nil, err
	}
	defer giveBack()
	old, err := m.settings.Set(in.Key, in.Value)
	if err != nil {
		return nil, err
	}
	ctx = context.WithoutCancel(ctx) // what has changed is told
	m.keep(ctx, in.Key, in.Value)
	before, after := old, in.Value
	if sensitive(in.Key) {
		before, after = schema.DefaultReplacement, schema.DefaultReplacement
	}
	who := actorOf(ctx)
	m.emit(module.EventConfigUpdated, module.SeverityInfo, idUpdateConfig, who.sign(map[string]any{
		"key": in.Key, "old_value": before, "new_value": after, "reason": reason,
	}))
	e := who.entry(ActionUpdateConfig, idUpdateConfig, reason)
	e.Before, e.After = before, after
	m.record(ctx, e)
	return map[string]any{"success": true, "key": in.Key, "old_value": before, "new_value": after}, nil
}

// restricted reports whether a key would switch the system modules themselves, be
// it through the section around the switch, or is where switched off modules are
// kept.
func restricted(key string) bool {
	for _, r := range []string{keyEnabled, DisabledKey} {
		if key == r || strings.HasPrefix(r, key+".") || strings.HasPrefix(key, r+".") {
			return true
		}
	}
	return false
}

// sensitive reports whether the value of a setting is shown masked.
func sensitive(key string) bool {
	for segment := range strings.SplitSeq(strings.ToLower(key), ".") {
		for _, w := range []string{"token", "secret", "key", "password", "auth", "credential"} {
			if segment == w || strings.HasPrefix(segment, w+"_") || strings.HasSuffix(segment, "_"+w) {
				return true
			}
		}
	}
	return false
}
