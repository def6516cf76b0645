package module

import "maps"

// Dependency is another module that a module needs (protocol §5.3).
type Dependency struct {
	ModuleID string
	// Version is a constraint such as ">=1.2,<2"; "" is any version.
	Version string
	// Optional dependencies only order the loading where they are there.
	Optional bool
}

// Map returns the wire form; an absent version is left out.
func (d Dependency) Map() map[string]any {
	m := map[string]any{"module_id": d.ModuleID, "optional": d.Optional}
	if d.Version != "" {
		m["version"] = d.Version
	}
	return m
}

// The keys of a descriptor's metadata that the framework reads.
const (
	metadataDependencies = "dependencies"
	metadataDeprecation  = "x-deprecation"
	deprecationSunset    = "sunset_date"
)

// WithDependencies names the modules that this one needs, in its metadata.
func WithDependencies(deps ...Dependency) Option {
	return func(f *Func) {
		list := make([]any, len(deps))
		for i, d := range deps {
			list[i] = d.Map()
		}
		f.desc.Metadata = maps.Clone(f.desc.Metadata)
		if f.desc.Metadata == nil {
			f.desc.Metadata = map[string]any{}
		}
		f.desc.Metadata[metadataDependencies] = list
	}
}

// Dependencies reads the module's dependencies from its metadata. An entry
// without a module_id is left out.
func (d Descriptor) Dependencies() []Dependency {
	var out []Dependency
	list, _ := d.Metadata[metadataDependencies].([]any)
	for _, item := range list {
		m, _ := item.(map[string]any)
		var dep Dependency
		dep.ModuleID, _ = m["module_id"].(string)
		dep.Version, _ = m["version"].(string)
		dep.Optional, _ = m["optional"].(bool)
		if dep.ModuleID != "" {
			out = append(out, dep)
		}
	}
	return out
}

// Deprecation returns the block x-deprecation of the metadata, nil when the
// module is not deprecated.
func (d Descriptor) Deprecation() map[string]any {
	block, _ := d.Metadata[metadataDeprecation].(map[string]any)
	if off, said := block["deprecated"].(bool); said && !off {
		return nil
	}
	return block
}

// SunsetDate is the day from which a deprecated module may be gone, as its
// deprecation says, "" when it does not.
func (d Descriptor) SunsetDate() string {
	block, _ := d.Metadata[metadataDeprecation].(map[string]any)
	date, _ := block[deprecationSunset].(string)
	return date
}

// Definition is the wire form of [Descriptor.Map] with what the metadata says in
// places of its own: dependencies, never null, and sunset_date (protocol §12.2).
func (d Descriptor) Definition() map[string]any {
	m := d.Map()
	deps := []any{}
	for _, dep := range d.Dependencies() {
		deps = append(deps, dep.Map())
	}
	m["dependencies"], m["sunset_date"] = deps, nullable(d.SunsetDate())
	return m
}
