package executor

import (
	"context"
	"fmt"

	"github.com/apbus/apbus/module"
)

// introspection asks a module what a call would do. What it answers is scrubbed of
// the sensitive values of the inputs, and whatever goes wrong is a warning.
type introspection struct{ callRef }

// preflight returns the module's warnings.
func (v introspection) preflight(ctx context.Context) (warnings []string) {
	s := scrubber{redactor: v.x.redactor, secrets: v.secrets()}
	defer func() {
		if p := recover(); p != nil {
			_ = v.panicked(ctx, checkPreflight, p, module.CodeInternal) // for its log record
			warnings = []string{"preflight panicked"}
		}
	}()
	list, err := v.entry.Preflighter.Preflight(ctx, v.inputs)
	if err != nil {
		return []string{s.text("preflight failed: " + err.Error())}
	}
	for _, w := range list {
		warnings = append(warnings, s.text(w))
	}
	return warnings
}

// preview returns the predicted changes. An invalid one is a warning and predicts
// nothing. answered is false when the module predicts nothing at all.
func (v introspection) preview(ctx context.Context) (changes []module.Change, warnings []string, answered bool) {
	s := scrubber{redactor: v.x.redactor, secrets: v.secrets()}
	defer func() {
		if p := recover(); p != nil {
			_ = v.panicked(ctx, checkPreview, p, module.CodeInternal) // for its log record
			changes, warnings, answered = nil, []string{"preview panicked"}, true
		}
	}()
	result, err := v.entry.Previewer.Preview(ctx, v.inputs)
	if err != nil {
		return nil, []string{s.text("preview failed: " + err.Error())}, true
	}
	if result == nil {
		return nil, nil, false
	}
	for i, c := range result.Changes {
		clean, err := s.change(c)
		if err != nil {
			warnings = append(warnings, fmt.Sprintf("predicted change %d is invalid: %s", i, s.text(err.Error())))
			continue
		}
		changes = append(changes, clean)
	}
	return changes, warnings, true
}

// change validates one change and brings it into the JSON data model.
func (s *scrubber) change(c module.Change) (module.Change, error) {
	if err := c.Validate(); err != nil {
		return c, err
	}
	c.Action, c.Target, c.Summary = s.text(c.Action), s.text(c.Target), s.text(c.Summary)
	for _, o := range []*module.Optional{&c.Before, &c.After} {
		if !o.Set {
			continue
		}
		normal, err := module.Normalize(o.Value)
		if err != nil {
			return c, err
		}
		o.Value = s.value(normal)
	}
	if c.Extra != nil {
		extra, err := module.NormalizeMap(c.Extra)
		if err != nil {
			return c, err
		}
		c.Extra, _ = s.value(extra).(map[string]any)
	}
	return c, nil
}
