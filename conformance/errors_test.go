//go:build conformance

package conformance_test

import (
	"maps"
	"regexp"
	"slices"

	"github.com/google/go-cmp/cmp"

	"github.com/apbus/apbus/executor/middleware"
	"github.com/apbus/apbus/module"
)

func driveErrorDetails(c *kase) {
	contract := c.file.at("module_contract")
	m := trivial(contract.at("module_id").str())
	m.desc.InputSchema, m.desc.OutputSchema = contract.at("input_schema").fields(), contract.at("output_schema").fields()
	in, want := c.at("input"), c.at("expected")
	id := m.desc.ID
	if other := in.opt("call_module_id").text(); other != "" {
		id = other
	}
	_, err := c.executor(nil, m).Call(c.t.Context(), id, in.at("inputs").fields())
	e := module.AsError(err)
	if e == nil {
		c.Fatalf("no coded error: %v", err)
	}
	wire := e.Map()
	c.wantCode(err, want.at("error_code").str())
	if wire["code"] != want.at("error_code").str() {
		c.Errorf("wire code %v", wire["code"])
	}
	details, _ := wire["details"].(map[string]any)
	list, _ := details["errors"].([]any)
	for _, item := range list {
		m, _ := item.(map[string]any)
		message, _ := m["message"].(string)
		if diff := cmp.Diff([]string{"keyword", "message", "path"}, slices.Sorted(maps.Keys(m))); diff != "" || message == "" {
			c.Errorf("item %v (-want +got):\n%s", m, diff)
		}
	}
	for _, n := range want.opt("errors").list() {
		path, keyword := n.at("path").str(), n.at("keyword").str()
		if !slices.ContainsFunc(violations(e), func(v map[string]any) bool { return v["path"] == path && v["keyword"] == keyword }) {
			c.Errorf("errors %v lack %s at %q", list, keyword, path)
		}
	}
	if want.has("error_count") && len(list) != want.at("error_count").number() {
		c.Errorf("%d errors", len(list))
	}
	keysPresent(c, want, "detail_keys", details)
}

// keysPresent compares the keys of m with the lists <prefix>_present and _absent.
func keysPresent(c *kase, n *node, prefix string, m map[string]any) {
	for _, key := range n.opt(prefix + "_present").strs() {
		if _, ok := m[key]; !ok {
			c.Errorf("%s is missing in %v", key, m)
		}
	}
	for _, key := range n.opt(prefix + "_absent").strs() {
		if _, ok := m[key]; ok {
			c.Errorf("%s is there in %v", key, m)
		}
	}
}

func driveErrorSerialization(c *kase) {
	in := c.at("input")
	e := module.Errorf(module.Code(in.at("code").str()), "%s", in.at("message").str())
	for _, key := range in.keys() {
		n := in.at(key)
		switch key {
		case "code", "message":
		case "trace_id":
			e.TraceID = n.str()
		case "ai_guidance":
			e = e.WithGuidance(n.str())
		case "user_fixable":
			e = e.WithUserFixable(module.TriOf(n.flag()))
		case "retryable":
			e = e.WithRetryable(module.TriOf(n.flag()))
		case "details":
			e = e.WithDetails(n.fields())
		default:
			c.Fatalf("driver: unknown field %s", key)
		}
	}
	wire := e.Map()
	keysPresent(c, c.node, "expected_keys", wire)
	details, _ := wire["details"].(map[string]any)
	keysPresent(c, c.node, "expected_detail_keys", details)
	back, ok := module.ErrorFromMap(wire)
	if !ok || back.Code != e.Code || back.TraceID != e.TraceID || back.UserFixable != e.UserFixable || back.Retryable != e.Retryable {
		c.Errorf("reads back as %+v", back)
	}
}

func driveErrorRecovery(c *kase) {
	code := module.Code(c.at("code").str())
	if !code.Known() {
		c.Errorf("code %s is unknown", code)
	}
	e, want := module.Errorf(code, "made without an override"), c.at("expected")
	for key, got := range map[string]module.Tri{"retryable": e.Retryable, "user_fixable": e.UserFixable} {
		n := want.at(key)
		wanted := module.Unset
		if !n.null() {
			wanted = module.TriOf(n.flag())
		}
		wire, written := e.Map()[key]
		value, set := got.Bool()
		if got != wanted || written != set || (set && wire != value) {
			c.Errorf("%s = %v (wire %v), want %v", key, got, wire, wanted)
		}
	}
}

func driveErrorCodes(c *kase) {
	prefixes := c.file.at("framework_prefixes").strs()
	if diff := cmp.Diff(slices.Sorted(slices.Values(prefixes)), slices.Sorted(slices.Values(module.ReservedCodePrefixes()))); diff != "" {
		c.Errorf("prefixes (-want +got):\n%s", diff)
	}
	var steps []*node
	switch action := c.at("action").str(); action {
	case "register":
		steps = []*node{c.node}
	case "register_sequence", "register_unregister_register":
		steps = c.at("steps").list()
	default:
		c.Fatalf("driver: unknown action %s", action)
	}
	reg := module.NewCodeRegistry()
	var err error
	var id, code string
	for i, s := range steps {
		id = s.at("module_id").str()
		if s != c.node && s.has("action") && s.at("action").str() == "unregister" {
			reg.Unregister(id)
			if owner, ok := reg.Owner(module.Code(code)); ok {
				c.Errorf("%s still belongs to %s", code, owner)
			}
			continue
		}
		code = s.at("error_code").str()
		if err = reg.Register(id, module.Code(code)); err != nil && i < len(steps)-1 {
			c.Fatalf("step %d: %v", i, err)
		}
	}
	if c.has("expected_error") {
		c.wantCode(err, c.at("expected_error").str())
		return
	}
	if want := c.at("expected").str(); want != "ok" {
		c.Fatalf("driver: unknown expectation %s", want)
	}
	c.wantCode(err, "")
	if owner, ok := reg.Owner(module.Code(code)); !ok || owner != id || !slices.Contains(reg.All(), module.Code(code)) {
		c.Errorf("%s belongs to %q (%t), want %s", code, owner, ok, id)
	}
}

func driveFingerprints(c *kase) {
	h := middleware.NewErrorHistory(middleware.HistoryConfig{})
	for _, n := range c.at("errors").list() {
		h.Record(n.at("caller_id").str(), module.Errorf(module.Code(n.at("error_code").str()), "%s", n.at("message").str()))
	}
	entries, want := h.All(0), c.at("expected")
	distinct := make(map[string]bool)
	for _, e := range entries {
		distinct[e.Fingerprint] = true
		equal(c, "fingerprint", module.Fingerprint(e.Code, e.ModuleID, e.Message), e.Fingerprint)
	}
	for _, key := range want.keys() {
		n := want.at(key)
		switch key {
		case "entry_count":
			equal(c, key, n.number(), len(entries))
		case "fingerprints_distinct":
			equal(c, key, n.number(), len(distinct))
		case "first_entry_count":
			equal(c, key, n.number(), int(entries[0].Count))
		case "timestamp_pattern":
			form := regexp.MustCompile(n.str())
			for _, field := range want.at("timestamp_fields").strs() {
				if text, _ := entries[0].Map()[field].(string); !form.MatchString(text) {
					c.Errorf("%s is %v", field, entries[0].Map()[field])
				}
			}
		case "timestamp_fields":
		default:
			c.Fatalf("driver: unknown expectation %s", key)
		}
	}
}
