//go:build conformance

package conformance_test

import (
	"slices"
	"strings"

	"github.com/google/go-cmp/cmp"

	"github.com/apbus/apbus/executor"
	"github.com/apbus/apbus/executor/acl"
	"github.com/apbus/apbus/executor/system"
	"github.com/apbus/apbus/schema"
)

func driveGlob(c *kase) {
	if got := schema.MatchGlob(c.at("pattern").str(), c.at("value").str()); got != c.at("expected").flag() {
		c.Errorf("match = %t", got)
	}
}

func driveSensitiveKeys(c *kase) {
	var o schema.RedactOptions
	switch kind := c.at("construction").str(); kind {
	case "default":
	case "override":
		o.SensitiveKeys = c.at("override_sensitive_keys").strs()
	default:
		c.Fatalf("driver: unknown construction %s", kind)
	}
	want := c.at("expected")
	if want.has("sensitive_keys") {
		equal(c, "default keys", want.at("sensitive_keys").strs(), schema.DefaultSensitiveKeys())
		equal(c, "length", want.at("length").number(), len(schema.DefaultSensitiveKeys()))
		// Whoever gets the list cannot change the next one's.
		schema.DefaultSensitiveKeys()[0] = "changed"
		if slices.Contains(schema.DefaultSensitiveKeys(), "changed") {
			c.Errorf("the default list can be changed")
		}
		return
	}
	redact(c, o, nil, want)
}

// redact masks the inputs of a case and compares.
func redact(c *kase, o schema.RedactOptions, compiled *schema.Compiled, want *node) {
	r, err := schema.NewRedactor(o)
	if err != nil {
		c.Fatalf("redactor: %v", err)
	}
	in := c.at("input").fields()
	got := r.Redact(compiled, in)
	wanted := make(map[string]any)
	for key := range want.object() {
		if key != "_note" && !strings.HasPrefix(key, "deprecation_") {
			wanted[key] = want.at(key).raw()
		}
	}
	for key := range in {
		if _, named := wanted[key]; !named {
			delete(got, key) // a case judges what it names
		}
	}
	if diff := cmp.Diff(wanted, got); diff != "" {
		c.Errorf("redacted (-want +got):\n%s", diff)
	}
}

func driveRedaction(c *kase) {
	if c.has("config") || c.has("legacy_key_by_sdk") {
		driveRedactionKeys(c)
		return
	}
	cfg := c.at("redaction_config")
	o := schema.RedactOptions{Patterns: cfg.at("regex_patterns").strs(), Replacement: cfg.at("replacement").str()}
	keys, defaults := cfg.at("sensitive_keys"), cfg.opt("use_defaults").flag()
	switch {
	case keys.null() && defaults:
	case keys.null() || defaults:
		c.Fatalf("driver: contradictory configuration")
	default:
		o.SensitiveKeys = keys.strs()
	}
	var compiled *schema.Compiled
	if c.has("schema") {
		var err error
		if compiled, err = schema.Compile(c.at("schema").fields()); err != nil {
			c.Fatalf("compile: %v", err)
		}
	}
	redact(c, o, compiled, c.at("expected"))
}

// driveRedactionKeys puts the configuration under the key that the case names and
// has the settings say what that means. No spelling but the canonical one was ever
// read here, so the older one of another implementation stands for it.
func driveRedactionKeys(c *kase) {
	log := c.listen()
	settings, err := system.NewSettings(nil)
	if err != nil {
		c.Fatalf("settings: %v", err)
	}
	set := func(key string, value any) {
		if _, err := settings.Set(key, value); err != nil {
			c.Fatalf("set %s: %v", key, err)
		}
	}
	for _, from := range []string{"config", "config_canonical"} {
		for key, value := range c.opt(from).fields() {
			set(key, value)
		}
	}
	if c.has("legacy_key_by_sdk") {
		key, _ := c.at("legacy_key_by_sdk").fields()["rust"].(string)
		set(key, c.at("legacy_value").raw())
	}
	want := c.at("expected")
	redact(c, settings.RedactOptions(), nil, want)
	for _, key := range []string{"deprecation_warning_emitted", "deprecation_warning_is_one_shot"} {
		if want.has(key) && want.at(key).flag() != (len(log.all()) > 0) {
			c.Errorf("redacted (-want +got): %s = %t", key, !want.at(key).flag())
		}
	}
}

func driveConfigDefaults(c *kase) {
	settings, err := system.NewSettings(nil)
	if err != nil {
		c.Fatalf("settings: %v", err)
	}
	key := c.at("key").str()
	got, ok := settings.Get(key)
	if diff := cmp.Diff(c.at("expected").raw(), got); diff != "" || !ok {
		c.Errorf("%s (-want +got):\n%s", key, diff)
	}
	// What the executor does without a configuration is what the settings say.
	own := map[string]any{
		"executor.default_timeout":   executor.DefaultTimeout.Milliseconds(),
		"executor.global_timeout":    executor.DefaultGlobalTimeout.Milliseconds(),
		"executor.max_call_depth":    int64(executor.DefaultMaxCallDepth),
		"executor.max_module_repeat": int64(executor.DefaultMaxModuleRepeat),
		"stream.max_merge_depth":     int64(executor.DefaultMaxMergeDepth),
		"schema.max_ref_depth":       int64(schema.MaxRefHops),
		"acl.root":                   acl.DefaultRoot,
	}
	if value, applies := own[key]; applies {
		equal(c, "constant for "+key, got, value)
	}
}
