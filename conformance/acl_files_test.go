//go:build conformance

package conformance_test

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/google/go-cmp/cmp"

	"github.com/apbus/apbus/executor"
	"github.com/apbus/apbus/executor/acl"
	"github.com/apbus/apbus/module"
)

// driveACLAudit loads a real file and checks real calls.
func driveACLAudit(c *kase) {
	in, want := c.at("input"), c.at("expected")
	var callback []acl.AuditEntry
	var calls []func(context.Context, acl.AuditEntry) error
	switch kind := in.at("callback").str(); kind {
	case "none":
		calls = []func(context.Context, acl.AuditEntry) error{nil}
	case "collecting":
		calls = append(calls, func(_ context.Context, e acl.AuditEntry) error { callback = append(callback, e); return nil })
	case "failing":
		calls = append(calls,
			func(context.Context, acl.AuditEntry) error { return errors.New("the sink is down") },
			func(context.Context, acl.AuditEntry) error { panic("the sink is down") })
	default:
		c.Fatalf("driver: unknown callback %s", kind)
	}
	for _, call := range calls {
		callback = nil
		driveACLAuditWith(c, in, want, call, &callback)
	}
}

func driveACLAuditWith(c *kase, in, want *node, call func(context.Context, acl.AuditEntry) error, callback *[]acl.AuditEntry) {
	block := in.at("acl_file").fields()
	extra := maps.Clone(block)
	delete(extra, "rules")
	path := filepath.Join(c.t.TempDir(), "acl.yaml")
	if err := os.WriteFile(path, fileOf(c.run, nil, block["rules"], extra), 0o600); err != nil {
		c.Fatalf("driver: %v", err)
	}
	diagnostics, sink := &journal{}, &journal{}
	p, err := acl.Load(path, acl.Options{Audit: call, AuditLogger: sink.logger(), Logger: diagnostics.logger()})
	checks := in.at("checks").list()
	if !want.at("loads").flag() {
		if got := module.CodeOf(err); string(got) != want.at("error_code").str() {
			c.Fatalf("code %s (%v)", got, err)
		}
		want.at("error_message_contains").contains(err.Error())
		return
	}
	if err != nil {
		c.Fatalf("load: %v", err)
	}
	loaded := diagnostics.text()
	decisions := []string{}
	for _, n := range checks {
		q := acl.Query{CallerID: n.at("caller_id").text(), TargetID: n.at("target_id").str(), Context: module.NewContext(module.ContextOptions{})}
		decisions = append(decisions, accessOf(p.Authorize(c.t.Context(), q)))
	}
	audits := sink.named("apcore.acl.audit")
	for _, key := range want.keys() {
		n := want.at(key)
		switch key {
		case "loads":
		case "decisions":
			equal(c, key, n.strs(), decisions)
		case "default_sink_records":
			if len(audits) != n.number() || len(sink.all()) != n.number() {
				c.Errorf("%d records (%d in all)", len(audits), len(sink.all()))
			}
		case "default_sink_field_names":
			equal(c, key, slices.Sorted(slices.Values(n.strs())), slices.Sorted(maps.Keys(audits[0].attrs)))
		case "default_sink_level":
			if got := strings.ToLower(audits[0].level.String()); got != n.str() {
				c.Errorf("level %s, want %s", got, n.str())
			}
		case "default_sink_decisions":
			var got []string
			for _, a := range audits {
				got = append(got, a.attrs["decision"].String())
			}
			equal(c, key, n.strs(), got)
		case "load_warning_contains":
			n.contains(loaded)
		case "load_warning_absent":
			n.str() // nothing at all is warned of, this among it
			if len(diagnostics.all()) > 0 {
				c.Errorf("warns: %s", diagnostics.text())
			}
		case "override_warning_names":
			n.contains(loaded)
			if got := len(diagnostics.all()); got != 1 {
				c.Errorf("%d diagnostics, want one", got)
			}
		case "callback_decisions":
			var got []string
			for _, e := range *callback {
				got = append(got, string(e.Decision))
			}
			equal(c, key, n.strs(), got)
		case "delivery_failure_reports":
			failures := 0
			for _, r := range diagnostics.all() {
				if r.level >= slog.LevelWarn && strings.Contains(r.message, "sink failed") {
					failures++
				}
			}
			if failures != n.number() {
				c.Errorf("%d reports: %s", failures, diagnostics.text())
			}
		default:
			c.Fatalf("driver: unknown expectation %s", key)
		}
	}
}

func equal(c *kase, what string, want, got any) {
	if diff := cmp.Diff(want, got); diff != "" {
		c.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

// driveACLRoot lays out a project folder and looks for rules as a program does.
func driveACLRoot(c *kase) {
	base := c.t.TempDir()
	root := ""
	if c.has("acl_root_unset") {
		c.at("acl_root_unset").must(true)
	} else {
		root = c.at("acl_root").str()
	}
	files := c.opt("fs")
	if files.null() {
		files = &node{r: c.run, v: map[string]any{"acl/global_acl.yaml": "acl_policy"}, reads: &reads{}}
	}
	for _, name := range files.keys() {
		path := filepath.Join(base, name)
		switch kind := files.at(name).str(); kind {
		case "directory":
			if err := os.MkdirAll(path, 0o700); err != nil {
				c.Fatalf("driver: %v", err)
			}
		case "acl_policy":
			policy := c.file.at("acl_policy")
			text := fileOf(c.run, policy.at("default_effect").raw(), policy.at("rules").raw(), nil)
			if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
				c.Fatalf("driver: %v", err)
			}
			if err := os.WriteFile(path, text, 0o600); err != nil {
				c.Fatalf("driver: %v", err)
			}
		default:
			c.Fatalf("driver: unknown kind of file %s", kind)
		}
	}
	o := acl.Options{Logger: quiet()}
	if c.has("default_effect") {
		o.DefaultEffect = effect(c.at("default_effect").str())
	}
	var p *acl.Policy
	found := false
	if c.opt("caller_supplied_executor").flag() {
		// Whoever makes an executor says which rules it has; it looks for none.
		c.t.Chdir(base)
	} else {
		var err error
		if p, found, err = acl.Discover(root, base, o); err != nil {
			c.Fatalf("discover: %v", err)
		}
	}
	var opts []executor.Option
	if found {
		opts = append(opts, executor.WithACL(p))
	}
	x := c.executor(opts, trivial("some.target"))
	want := c.at("expected")
	for _, key := range want.keys() {
		n := want.at(key)
		switch key {
		case "resolved_acl_root":
			if acl.DefaultRoot != n.str() || c.file.at("default_acl_root").str() != n.str() {
				c.Errorf("default root %s", acl.DefaultRoot)
			}
			if !found {
				c.Errorf("nothing is found in the default root")
			}
		case "config_valid":
			n.must(true) // Discover gave no error
		case "acl_attached":
			if found != n.flag() {
				c.Errorf("attached = %t", found)
			}
		case "enforcement":
			_, err := x.Call(c.t.Context(), "some.target", nil)
			if got := module.CodeOf(err) == module.CodeACLDenied; got != n.flag() {
				c.Errorf("enforced = %t (%v)", got, err)
			}
		case "decision":
			q := acl.Query{CallerID: c.at("caller_id").text(), TargetID: c.at("target_id").str()}
			if d := p.Authorize(c.t.Context(), q); d.Allowed != n.flag() {
				c.Errorf("allowed = %t", d.Allowed)
			}
		default:
			c.Fatalf("driver: unknown expectation %s", key)
		}
	}
}
