//go:build conformance

package conformance_test

import (
	"context"
	"encoding/json"
	"slices"
	"strings"

	"github.com/apbus/apbus/executor"
	"github.com/apbus/apbus/executor/acl"
	"github.com/apbus/apbus/module"
)

type preflighted struct {
	*mod
	invoked  *[]string
	warnings []string
}

func (p preflighted) Preflight(context.Context, map[string]any) ([]string, error) {
	*p.invoked = append(*p.invoked, "preflight")
	return p.warnings, nil
}

type previewed struct {
	*mod
	invoked *[]string
	result  *module.PreviewResult
}

func (p previewed) Preview(context.Context, map[string]any) (*module.PreviewResult, error) {
	*p.invoked = append(*p.invoked, "preview")
	return p.result, nil
}

type both struct {
	preflighted
	*previewed
}

func (b both) Descriptor() module.Descriptor { return b.preflighted.Descriptor() }

func (b both) Execute(ctx context.Context, in map[string]any) (map[string]any, error) {
	return b.preflighted.Execute(ctx, in)
}

// knownCheck keeps a misspelt name from passing as absent.
func knownCheck(c *kase, name string) {
	switch name {
	case "module_id", "executor_binding", "context", "call_chain", "module_lookup", "acl", "approval", "schema",
		"module_preflight", "module_preview":
	default:
		c.Fatalf("driver: unknown check %s", name)
	}
}

func driveReporting(c *kase) { drivePreflight(c, false) }

func driveDisclosure(c *kase) { drivePreflight(c, true) }

// drivePreflight validates a call of the contract's module. full says that it has
// both hooks whatever the case names.
func drivePreflight(c *kase, full bool) {
	contract, in, want := c.file.at("module_contract"), c.at("input"), c.at("expected")
	id := contract.at("module_id").str()
	if in.has("module_id") {
		id = in.at("module_id").str()
	}
	m := trivial(id)
	m.desc.InputSchema, m.desc.OutputSchema = contract.at("input_schema").fields(), contract.at("output_schema").fields()
	var invoked []string
	change, err := module.ChangeFromMap(contract.at("preview_change").fields())
	if err != nil {
		c.Fatalf("change: %v", err)
	}
	before := preflighted{m, &invoked, contract.at("preflight_returns").strs()}
	after := previewed{m, &invoked, &module.PreviewResult{Changes: []module.Change{change}}}
	if in.opt("preview_returns_null").flag() {
		after.result = nil
	}
	hasPreflight := full || in.opt("implements_preflight").flag()
	hasPreview := full || in.opt("implements_preview").flag()
	var target module.Module = m
	switch {
	case hasPreflight && hasPreview:
		target = both{before, &after}
	case hasPreflight:
		target = before
	case hasPreview:
		target = after
	}
	rules, err := acl.Parse("case", fileOf(c.run, in.at("default_effect").raw(), in.at("acl_rules").raw(), nil), acl.Options{Logger: quiet()})
	if err != nil {
		c.Fatalf("rules: %v", err)
	}
	modules := []module.Module{target}
	if in.has("register") && !in.at("register").flag() {
		modules = nil
	}
	x := c.executor([]executor.Option{executor.WithACL(rules)}, modules...)
	r := x.Validate(inContext(c.t.Context(), in.at("caller_id").str(), nil), id, in.at("inputs").fields())

	names, failed := []string{}, []string{}
	passed := make(map[string]module.PreflightCheck)
	for _, check := range r.Checks {
		names = append(names, check.Check)
		if check.Passed {
			passed[check.Check] = check
		} else {
			failed = append(failed, check.Check)
		}
	}
	wire := r.Map()
	text, err := json.Marshal(wire)
	if err != nil {
		c.Fatalf("serialize: %v", err)
	}
	for _, key := range want.keys() {
		n := want.at(key)
		switch key {
		case "valid":
			equal(c, key, n.flag(), r.Valid)
		case "checks_present":
			for _, name := range n.strs() {
				if !slices.Contains(names, name) {
					c.Errorf("check %s is missing in %v", name, names)
				}
			}
		case "checks_absent":
			for _, name := range n.strs() {
				knownCheck(c, name)
				if slices.Contains(names, name) {
					c.Errorf("check %s is there", name)
				}
			}
		case "failed_checks":
			equal(c, key, slices.Sorted(slices.Values(n.strs())), slices.Sorted(slices.Values(failed)))
		case "passed_checks":
			for _, name := range n.strs() {
				if _, ok := passed[name]; !ok {
					c.Errorf("check %s did not pass: %v", name, names)
				}
			}
		case "optional_passed_checks":
			for _, name := range n.strs() {
				knownCheck(c, name)
				check, ok := passed[name]
				if slices.Contains(names, name) && (!ok || len(check.Warnings) > 0) {
					c.Errorf("check %s: %+v", name, check)
				}
			}
		case "predicted_changes_count":
			equal(c, key, n.number(), len(r.PredictedChanges))
		case "predicted_changes_present":
			if _, ok := wire["predicted_changes"].([]any); ok != n.flag() {
				c.Errorf("predicted_changes is %v", wire["predicted_changes"])
			}
		case "hooks_invoked":
			equal(c, key, n.strs(), append([]string{}, invoked...))
		case "sentinel_absent":
			if got := !strings.Contains(string(text), contract.at("sentinel").str()); got != n.flag() {
				c.Errorf("sentinel absent = %t: %s", got, text)
			}
		default:
			c.Fatalf("driver: unknown expectation %s", key)
		}
	}
	contract.opt("sentinel").raw()
}
