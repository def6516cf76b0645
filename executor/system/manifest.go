package system

import (
	"context"

	"github.com/apbus/apbus/executor/registry"
	"github.com/apbus/apbus/module"
)

const (
	idManifestModule = "system.manifest.module"
	idManifestFull   = "system.manifest.full"
)

// manifestSchema describes a module in a manifest; the full manifest may leave
// some of it out.
func manifestSchema(optional ...string) map[string]any {
	return object(map[string]any{
		"module_id": text(), "description": text(), "documentation": nullText(), "source_path": nullText(),
		"input_schema": anyObject(), "output_schema": anyObject(), "annotations": anyObject(), "tags": list(text()),
		"dependencies": list(object(map[string]any{
			"module_id": text(), "version": text(), "optional": boolean(),
		}, "version")),
		"metadata": anyObject(),
	}, optional...)
}

func manifestOf(e *registry.Entry, d module.Descriptor) map[string]any {
	def := d.Definition()
	out := map[string]any{"source_path": nullable(e.Source)}
	for _, key := range []string{
		"module_id", "description", "documentation", "input_schema", "output_schema", "annotations", "tags", "dependencies", "metadata",
	} {
		out[key] = def[key]
	}
	return out
}

type manifestModuleIn struct {
	ModuleID string `json:"module_id"`
}

func (m *Modules) manifestModule() module.Module {
	return build(Manifest, idManifestModule, "What one module of this process is: schemas, annotations, dependencies.",
		object(map[string]any{"module_id": moduleIDInput()}), manifestSchema(),
		func(_ context.Context, in manifestModuleIn) (map[string]any, error) {
			e, err := m.entry(in.ModuleID)
			if err != nil {
				return nil, err
			}
			d, ok := m.reg.Definition(in.ModuleID)
			if !ok {
				return nil, registry.NotFound(in.ModuleID) // it left in between
			}
			return manifestOf(e, d), nil
		})
}

type manifestFullIn struct {
	Schemas *bool    `json:"include_schemas"`
	Sources *bool    `json:"include_source_paths"`
	Prefix  *string  `json:"prefix"`
	Tags    []string `json:"tags"`
}

func (m *Modules) manifestFull() module.Module {
	return build(Manifest, idManifestFull, "What the discoverable modules of this process are.",
		object(map[string]any{
			"include_schemas":      withDefault(boolean(), true, "Whether to show the schemas."),
			"include_source_paths": withDefault(boolean(), true, "Whether to show where the modules come from."),
			"prefix":               described(nullText(), "Only IDs that begin with this."),
			"tags":                 described(map[string]any{"type": []any{"array", "null"}, "items": text()}, "Only modules with all of these tags."),
		}, "include_schemas", "include_source_paths", "prefix", "tags"),
		object(map[string]any{
			"project_name": text(), "module_count": integer(),
			"modules": list(manifestSchema("input_schema", "output_schema", "source_path")),
		}),
		func(_ context.Context, in manifestFullIn) (map[string]any, error) {
			modules := []any{}
			for _, id := range m.reg.List(registry.Filter{Tags: in.Tags, Prefix: orElse(in.Prefix, "")}) {
				e, ok := m.reg.Get(id)
				if !ok {
					continue // it left in between
				}
				entry := manifestOf(e, *e.Descriptor)
				if !orElse(in.Schemas, true) {
					delete(entry, "input_schema")
					delete(entry, "output_schema")
				}
				if !orElse(in.Sources, true) {
					delete(entry, "source_path")
				}
				modules = append(modules, entry)
			}
			return map[string]any{"project_name": m.project, "module_count": int64(len(modules)), "modules": modules}, nil
		})
}
