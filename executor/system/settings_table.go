package system

import "github.com/apbus/apbus/schema"

// Keys that this package reads itself.
const (
	keyEnabled   = "sys_modules.enabled"
	keyEvents    = "sys_modules.events.enabled"
	keyProject   = "project.name"
	keyOverrides = "sys_modules.control.overrides_path"
)

// setting is what is known of one key: its default and what it may be, as a
// schema.
type setting struct {
	key   string
	value any
	rule  map[string]any
}

// knownSettings are the public settings with their defaults. Durations are
// milliseconds.
func knownSettings() []setting {
	between := func(t string, limits ...any) map[string]any {
		rule := map[string]any{"type": t, "minimum": limits[0]}
		if len(limits) > 1 {
			rule["maximum"] = limits[1]
		}
		return rule
	}
	nonEmpty := map[string]any{"type": "string", "minLength": 1}
	return []setting{
		{"executor.default_timeout", int64(30000), between("integer", 0, 600000)},
		{"executor.global_timeout", int64(60000), between("integer", 0)},
		{"executor.grace_period", int64(5000), between("integer", 0)},
		{"executor.acl_timeout", int64(1000), between("integer", 0)},
		{"executor.max_call_depth", int64(32), between("integer", 1, 1000)},
		{"executor.max_module_repeat", int64(3), between("integer", 1, 100)},
		{"stream.max_merge_depth", int64(32), between("integer", 1, 64)},
		{"extensions.root", "./extensions", nonEmpty},
		{"extensions.auto_discover", true, boolean()},
		{"extensions.max_depth", int64(8), between("integer", 1, 16)},
		{"extensions.follow_symlinks", false, boolean()},
		{"schema.root", "./schemas", nonEmpty},
		{"schema.strategy", "yaml_first", enum("yaml_first", "native_first", "yaml_only")},
		{"schema.max_ref_depth", int64(schema.MaxRefHops), between("integer", 1)},
		{"acl.root", "./acl", nonEmpty},
		{"acl.default_effect", "deny", enum("allow", "deny")},
		{"observability.tracing.enabled", false, boolean()},
		{"observability.tracing.strategy", "full", enum("full", "proportional", "error_first", "off")},
		{"observability.tracing.sampling_rate", 1.0, between("number", 0, 1)},
		{"observability.tracing.exporter", "stdout", enum("stdout", "otlp", "jaeger")},
		{"observability.tracing.otlp_endpoint", nil, nullText()},
		{"observability.metrics.enabled", false, boolean()},
		{keySensitive, listOf(schema.DefaultSensitiveKeys()), texts()},
		{keyPatterns, []any{}, texts()},
		{keyReplacement, schema.DefaultReplacement, nonEmpty},
		{keyProject, "apcore", nonEmpty},
		{keyEnabled, false, boolean()},
		{keyEvents, false, boolean()},
		{"sys_modules.events.thresholds.error_rate", 0.1, between("number", 0, 1)},
		{"sys_modules.events.thresholds.latency_p99_ms", 5000.0, between("number", 0)},
		{"sys_modules.health.enabled", true, boolean()},
		{"sys_modules.manifest.enabled", true, boolean()},
		{"sys_modules.usage.enabled", true, boolean()},
		{"sys_modules.control.enabled", true, boolean()},
		{keyOverrides, nil, nullText()},
		{"sys_modules.error_history.max_entries_per_module", int64(50), between("integer", 1)},
		{"sys_modules.error_history.max_total_entries", int64(1000), between("integer", 1)},
	}
}
