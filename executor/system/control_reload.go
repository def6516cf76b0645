package system

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"github.com/apbus/apbus/executor/registry"
	"github.com/apbus/apbus/module"
	"github.com/apbus/apbus/schema"
)

const idReload = "system.control.reload_module"

type reloadIn struct {
	ModuleID   *string `json:"module_id"`
	PathFilter *string `json:"path_filter"`
	Reason     string  `json:"reason"`
}

func (m *Modules) reloadModule() module.Module {
	duration := number()
	single := object(map[string]any{
		"success": boolean(), "module_id": text(), "previous_version": text(), "new_version": text(), "reload_duration_ms": duration,
	})
	bulk := object(map[string]any{
		"success": boolean(), "module_id": typed("null"), "reloaded_modules": list(text()), "reload_duration_ms": duration,
	})
	return build(Control, idReload, "Replace a module of this process, or all that match, by a newly made one.",
		object(map[string]any{
			"module_id":   described(nullText(), "The module to reload."),
			"path_filter": described(nullText(), "Instead: every module whose ID matches, * and ? being wildcards. System modules are not among them."),
			"reload_dependents": map[string]any{
				"description": "Ignored; modules that depend on a reloaded one stay as they are.", "deprecated": true,
			},
			"reason": reasonInput(),
		}, "module_id", "path_filter", "reload_dependents"),
		map[string]any{"type": "object", "oneOf": []any{single, bulk}}, m.runReload,
		module.WithPreview(m.previewReload))
}

// previewReload names every module that a filter reaches.
func (m *Modules) previewReload(_ context.Context, in reloadIn) (*module.PreviewResult, error) {
	ids := []string{orElse(in.ModuleID, "")}
	if filter := orElse(in.PathFilter, ""); filter != "" {
		ids = m.matching(filter)
	}
	p := &module.PreviewResult{}
	for _, id := range ids {
		if e, ok := m.reg.Get(id); ok {
			p.Changes = append(p.Changes, module.Change{
				Action: "update", Target: id, Summary: "Replace the module " + id + " of this node by a new one",
				Before: module.Optional{Value: e.Descriptor.EffectiveVersion(), Set: true},
			})
		}
	}
	return p, nil
}

func (m *Modules) runReload(ctx context.Context, in reloadIn) (map[string]any, error) {
	reason, err := reasonOf(in.Reason)
	if err != nil {
		return nil, err
	}
	id, filter := orElse(in.ModuleID, ""), orElse(in.PathFilter, "")
	switch {
	case id != "" && filter != "":
		return nil, module.Errorf(module.CodeModuleReloadConflict, "module_id and path_filter exclude each other")
	case id == "" && filter == "":
		return nil, module.Errorf(module.CodeInvalidInput, "module_id or path_filter is required and must not be empty")
	}
	giveBack, err := m.take(ctx)
	if err != nil {
		return nil, err
	}
	defer giveBack()
	started := time.Now()
	if filter != "" {
		return m.reloadAll(ctx, filter, reason, started)
	}
	done, err := m.reloadOne(ctx, id, reason, "")
	if err != nil {
		return nil, err
	}
	return map[string]any{
		"success": true, "module_id": id, "previous_version": done.PreviousVersion, "new_version": done.NewVersion,
		"reload_duration_ms": milliseconds(started),
	}, nil
}

// reloadAll goes on after a failure, so that one bad module does not keep the
// others back; the error then names both.
func (m *Modules) reloadAll(ctx context.Context, filter, reason string, started time.Time) (map[string]any, error) {
	reloaded, failed := []any{}, []any{}
	var first error
	correlation := module.NewTraceID()
	for _, id := range m.matching(filter) {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if _, err := m.reloadOne(ctx, id, reason, correlation); err != nil {
			m.log.Error("reload failed", slog.String("module_id", id), slog.Any("cause", err))
			failed = append(failed, id)
			if first == nil {
				first = err
			}
			continue
		}
		reloaded = append(reloaded, id)
	}
	if first != nil {
		return nil, module.Errorf(module.CodeReloadFailed, "%d modules were not reloaded: %w", len(failed), first).
			WithDetails(map[string]any{"reloaded_modules": reloaded, "failed_modules": failed})
	}
	return map[string]any{
		"success": true, "module_id": nil, "reloaded_modules": reloaded, "reload_duration_ms": milliseconds(started),
	}, nil
}

// matching lists the modules that a filter names, each after those it depends on.
func (m *Modules) matching(filter string) []string {
	var items []registry.LoadItem
	var ids []string
	for _, d := range m.reg.Descriptors() {
		if module.FirstSegment(d.ID) == "system" || !schema.MatchGlob(filter, d.ID) {
			continue
		}
		it := registry.LoadItem{ID: d.ID}
		for _, dep := range d.Dependencies() {
			// They are loaded already: only the order counts, not what fits.
			it.Dependencies = append(it.Dependencies, module.Dependency{ModuleID: dep.ModuleID, Optional: true})
		}
		items, ids = append(items, it), append(ids, d.ID)
	}
	plan, err := registry.LoadOrder(items, nil)
	if err != nil {
		return ids // a circle has no order
	}
	return plan.Order
}

func (m *Modules) reloadOne(ctx context.Context, id, reason, correlation string) (registry.Reloaded, error) {
	if c := module.FromContext(ctx); c != nil && slices.Contains(c.ChainView(), id) {
		return registry.Reloaded{}, module.Errorf(module.CodeReloadFailed, "module %s is part of this very call, which its reload would wait for", id).
			WithDetails(map[string]any{"module_id": id, "restored": true})
	}
	done, err := m.reg.Reload(ctx, id, registry.ReloadOptions{})
	if err != nil {
		return done, err
	}
	ctx = context.WithoutCancel(ctx) // what has changed is told
	who := actorOf(ctx)
	m.emit(module.EventModuleReloaded, module.SeverityInfo, id, who.sign(map[string]any{
		"module_id": id, "previous_version": done.PreviousVersion, "new_version": done.NewVersion, "reason": reason,
	}))
	e := who.entry(ActionReloadModule, id, reason)
	e.Before, e.After, e.CorrelationID = done.PreviousVersion, done.NewVersion, correlation
	m.record(ctx, e)
	return done, nil
}

func milliseconds(since time.Time) float64 {
	return float64(time.Since(since)) / float64(time.Millisecond)
}
