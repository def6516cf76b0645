package system

import (
	"context"
	"slices"
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
	return discreet{build(Control, idUpdateConfig, "Change one setting of this process at run time.",
		object(map[string]any{
			"key":    described(text(), "Dot path of the setting, such as executor.default_timeout."),
			"value":  map[string]any{"description": "The new value."},
			"reason": reasonInput(),
		}),
		object(map[string]any{
			"success": boolean(), "key": text(), "old_value": map[string]any{}, "new_value": map[string]any{},
		}), m.runUpdateConfig, module.WithPreview(m.previewUpdateConfig)),
	}
}

// discreet masks the new value of a setting that is a secret, which only its key
// tells, wherever the call is logged or recorded.
type discreet struct{ *module.Func }

var _ module.Discreet = discreet{}

// SensitiveInputs implements module.Discreet. A key that is no text is as good as
// a secret one.
func (discreet) SensitiveInputs(inputs map[string]any) []string {
	if key, ok := inputs["key"].(string); ok && !holdsSecret(key, inputs["value"]) {
		return nil
	}
	return []string{"value"}
}

// previewUpdateConfig shows a reviewer what is in force now, masked like the new
// value where the setting is a secret.
func (m *Modules) previewUpdateConfig(_ context.Context, in updateConfigIn) (*module.PreviewResult, error) {
	old, there := m.settings.Get(in.Key)
	return &module.PreviewResult{Changes: []module.Change{{
		Action: "update", Target: in.Key, Summary: "Change the setting " + in.Key + " of this node",
		Before: module.Optional{Value: shown(in.Key, old), Set: there},
		After:  module.Optional{Value: shown(in.Key, in.Value), Set: true},
	}}}, nil
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
	before, after := shown(in.Key, old), shown(in.Key, in.Value)
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

// holdsSecret reports whether a setting, or one within a section, is a secret.
func holdsSecret(key string, v any) bool {
	if sensitive(key) {
		return true
	}
	switch x := v.(type) {
	case map[string]any:
		for name, e := range x {
			if holdsSecret(name, e) {
				return true
			}
		}
	case []any:
		return slices.ContainsFunc(x, func(e any) bool { return holdsSecret("", e) })
	}
	return false
}

// shown is the value of a setting as everybody may see it. A setting that is not
// set hides nothing.
func shown(key string, v any) any {
	if v == nil || !holdsSecret(key, v) {
		return v
	}
	switch x := v.(type) {
	case map[string]any:
		if sensitive(key) {
			break
		}
		out := make(map[string]any, len(x))
		for name, e := range x {
			out[name] = shown(name, e)
		}
		return out
	case []any:
		if sensitive(key) {
			break
		}
		out := make([]any, len(x))
		for i, e := range x {
			out[i] = shown("", e)
		}
		return out
	}
	return schema.DefaultReplacement
}
