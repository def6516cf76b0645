package acl_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/apbus/apbus/executor/acl"
	"github.com/apbus/apbus/module"
	"github.com/google/go-cmp/cmp"
)

const sample = `
$schema: https://apcore.dev/acl/v1
version: "1.0"
default_effect: allow
telemetry: {enabled: true}
rules:
  - callers: [agent.*]
    targets: [cli.git_push]
    effect: allow
    approval: required
    description: force pushes need a person
    conditions:
      arguments: {has_key: [force]}
      $or:
        - roles: [dev]
        - max_call_depth: 3
  - callers: ["@external"]
    targets: ["$not", "public.*"]
    effect: deny
`

func TestParse(t *testing.T) {
	p, err := acl.Parse("acl.yaml", []byte(sample), acl.Options{DefaultEffect: new(acl.Deny)})
	if err != nil {
		t.Fatal(err)
	}
	if p.DefaultEffect() != acl.Allow {
		t.Errorf("default effect %s, want the file's", p.DefaultEffect())
	}
	want := []acl.Rule{{
		Callers: []string{"agent.*"}, Targets: []string{"cli.git_push"}, Effect: acl.Allow, Approval: acl.Required,
		Description: "force pushes need a person",
		Conditions: obj{
			"arguments": obj{"has_key": []any{"force"}},
			"$or":       []any{obj{"roles": []any{"dev"}}, obj{"max_call_depth": 3}},
		},
	}, deny("@external", "$not public.*")}
	if diff := cmp.Diff(want, p.Rules()); diff != "" {
		t.Errorf("rules (-want +got):\n%s", diff)
	}
	if f := p.Validate(); len(f) != 0 {
		t.Errorf("findings %v", f)
	}
	d := p.Authorize(t.Context(), acl.Query{CallerID: "agent.a", TargetID: "cli.git_push", Context: call(1, ""), ArgumentKeys: []string{"force"}})
	if !d.Allowed || !d.ApprovalRequired {
		t.Errorf("decision %+v", d)
	}
}

func TestParseErrors(t *testing.T) {
	const head = "rules:\n  - callers: [a]\n    targets: [b]\n    effect: allow\n"
	tests := []struct {
		name, yaml string
		want       []string
	}{
		{"empty", "", []string{"not a mapping"}},
		{"list", "- a", []string{"not a mapping"}},
		{"garbage", "a: [", []string{"acl.yaml", "line"}},
		{"tab", "rules:\n\t- a", []string{"line 2"}},
		{"duplicate key", head + "rules: []", []string{"line", "already defined"}},
		{"two documents", head + "---\nrules: []", []string{"more than one document"}},
		{"no rules", "default_effect: deny", []string{"rules is missing"}},
		{"rules is a mapping", "x: 1\nrules: {}", []string{"acl.yaml:2", "rules is not a list"}},
		{"rules is null", "rules:", []string{"acl.yaml:1", "rules is not a list"}},
		{"default effect", "rules: []\ndefault_effect: Deny", []string{"acl.yaml:2", `default_effect "Deny"`}},
		{"empty default effect", `{rules: [], default_effect: ""}`, []string{`default_effect ""`}},
		{"null default effect", "rules: []\ndefault_effect:", []string{"acl.yaml:2", "default_effect is not a string"}},
		{"default effect before rules", "rules: 5\ndefault_effect: Deny", []string{"default_effect"}},
		{"rule is a string", "rules:\n  - x", []string{"acl.yaml:2", "rule 0", "not a mapping"}},
		{"unknown key", head + "    conditons: {roles: [a]}", []string{"acl.yaml:5", "rule 0", `"conditons"`}},
		{"reserved key", head + "    priority: 3", []string{"acl.yaml:5", `"priority" (reserved`}},
		{"all unknown keys", head + "    zz: 1\n    actions: [x]", []string{`"actions" (reserved`, `"zz"`}},
		{"unknown key before effect", "rules:\n  - {effect: x, foo: 1}", []string{"foo"}},
		{"no effect", "rules:\n  - callers: [a]\n    targets: [b]", []string{"acl.yaml:2", "effect is missing"}},
		{"effect is a list", "rules:\n  - {callers: [a], targets: [b], effect: [allow]}", []string{"effect is not a string"}},
		{"approval is a boolean", head + "    approval: true", []string{"acl.yaml:5", "approval is not a string"}},
		{"approval is empty", head + `    approval: ""`, []string{"acl.yaml:5", "approval"}},
		{"no callers", "rules:\n  - {targets: [b], effect: allow}", []string{"callers is missing"}},
		{"callers is a string", "rules:\n  - {callers: a.*, targets: [b], effect: allow}", []string{"callers is not a list"}},
		{"callers holds a number", "rules:\n  - {callers: [1, \"\"], targets: [b], effect: allow}", []string{"callers element 0 is not a string"}},
		{"type before shape", "rules:\n  - {callers: [\"\", 1], targets: [b], effect: allow}", []string{"callers element 1 is not a string"}},
		{"callers before targets", "rules:\n  - {callers: [], targets: 1, effect: allow}", []string{"callers is empty"}},
		{"effect before callers", "rules:\n  - {callers: 1, targets: 1, effect: Allow}", []string{`effect "Allow"`}},
		{"second rule", head + "  - callers: [a]\n    targets: [\"$not\"]\n    effect: deny", []string{"rule 1", "acl.yaml:6", "$not"}},
		{"alias", "shared: &r\n  callers: [a]\n  targets: 5\n  effect: allow\nrules:\n  - *r", []string{"acl.yaml:3", "targets"}},
		{"description is a list", head + "    description: [x]", []string{"acl.yaml:5", "description is not a string"}},
		{"conditions is a string", head + "    conditions: oops", []string{"acl.yaml:5", "conditions is not a mapping"}},
		{"conditions is null", head + "    conditions:", []string{"acl.yaml:5", "conditions is not a mapping"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := acl.Parse("acl.yaml", []byte(tt.yaml), acl.Options{})
			if module.CodeOf(err) != module.CodeACLRuleError {
				t.Fatalf("got %v, want %s", err, module.CodeACLRuleError)
			}
			for _, w := range tt.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("%q lacks %q", err, w)
				}
			}
		})
	}
}

func TestAnchorsAndMerge(t *testing.T) {
	p, err := acl.Parse("acl.yaml", []byte(`
base: &base {callers: [a], effect: allow}
rules:
  - {<<: *base, targets: [b]}
  - {<<: *base, targets: [c], effect: deny}
`), acl.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]acl.Rule{allow("a", "b"), deny("a", "c")}, p.Rules()); diff != "" {
		t.Errorf("rules (-want +got):\n%s", diff)
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestReload(t *testing.T) {
	path := filepath.Join(t.TempDir(), "acl.yaml")
	write(t, path, "default_effect: allow\nrules: []\n")
	p, err := acl.Load(path, acl.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.AddRule(deny("*", "x")); err != nil {
		t.Fatal(err)
	}
	write(t, path, "rules: [{callers: [a], targets: [b], effect: alow}]\n")
	if err := p.Reload(); module.CodeOf(err) != module.CodeACLRuleError {
		t.Errorf("reload of a bad file: %v", err)
	}
	if p.DefaultEffect() != acl.Allow || len(p.Rules()) != 1 {
		t.Error("a failed reload changed the policy")
	}
	write(t, path, "rules: [{callers: [a], targets: [b], effect: allow}]\n")
	if err := p.Reload(); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]acl.Rule{allow("a", "b")}, p.Rules()); diff != "" || p.DefaultEffect() != acl.Deny {
		t.Errorf("after reload, default %s, rules (-want +got):\n%s", p.DefaultEffect(), diff)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := p.Reload(); module.CodeOf(err) != module.CodeConfigNotFound || !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("reload of a missing file: %v", err)
	}
	if err := mustNew(t, acl.Options{}).Reload(); module.CodeOf(err) != module.CodeACLRuleError {
		t.Errorf("reload without a file: %v", err)
	}
}

func TestLoadMissing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "none.yaml")
	_, err := acl.Load(path, acl.Options{})
	if e := module.AsError(err); e == nil || e.Code != module.CodeConfigNotFound || e.Details["config_path"] != path {
		t.Errorf("got %v", err)
	}
}

func TestDiscover(t *testing.T) {
	const rules = "rules: [{callers: ['@external'], targets: [greet], effect: allow}]"
	tests := []struct {
		name, root, file string // file to create, relative to base
		found            bool
	}{
		{"default root", "", "acl/global_acl.yaml", true},
		{"directory", "conf/acl", "conf/acl/global_acl.yaml", true},
		{"file", "custom.yaml", "custom.yaml", true},
		{"missing", "nope", "acl/global_acl.yaml", false},
		{"directory without the file", "acl", "acl/other.yaml", false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			base := t.TempDir()
			write(t, filepath.Join(base, tt.file), rules)
			p, found, err := acl.Discover(tt.root, base, acl.Options{DefaultEffect: new(acl.Deny)})
			if err != nil || found != tt.found || (p != nil) != tt.found {
				t.Fatalf("got %v, %v, %v; want found %v", p, found, err, tt.found)
			}
			if found && !p.Check(t.Context(), acl.Query{TargetID: "greet"}) {
				t.Error("the rules do not apply")
			}
		})
	}
	t.Run("bad file", func(t *testing.T) {
		base := t.TempDir()
		write(t, filepath.Join(base, "acl/global_acl.yaml"), "rules: 5")
		if p, found, err := acl.Discover("", base, acl.Options{}); err == nil || found || p != nil {
			t.Errorf("got %v, %v, %v; want an error, since rules were meant", p, found, err)
		}
	})
	t.Run("path through a file", func(t *testing.T) {
		base := t.TempDir()
		write(t, filepath.Join(base, "a.yaml"), rules)
		if _, found, err := acl.Discover("a.yaml/acl", base, acl.Options{}); module.CodeOf(err) != module.CodeConfigInvalid || found {
			t.Errorf("got %v, %v; want the mistake reported", found, err)
		}
	})
	t.Run("absolute root", func(t *testing.T) {
		base := t.TempDir()
		write(t, filepath.Join(base, "a.yaml"), rules)
		if _, found, err := acl.Discover(filepath.Join(base, "a.yaml"), "elsewhere", acl.Options{}); !found || err != nil {
			t.Errorf("got %v, %v", found, err)
		}
	})
	t.Run("working directory", func(t *testing.T) {
		t.Chdir(t.TempDir())
		write(t, "acl/global_acl.yaml", rules)
		if _, found, err := acl.Discover("", "", acl.Options{}); !found || err != nil {
			t.Errorf("got %v, %v", found, err)
		}
	})
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(sample))
	f.Add([]byte("rules: [{callers: [a], targets: [b], effect: allow, conditions: {$or: [{$not: {x: 1}}, 3]}}]"))
	f.Add([]byte("audit: {log_level: trace}\nrules: []"))
	f.Add([]byte("a: &a [*a]\nrules: *a"))
	f.Add([]byte("rules:\n- &r {callers: [\"$or\", x], targets: ['**'], effect: deny, approval: not_required}\n- *r"))
	f.Add([]byte("rules: [{? [a] : b}]"))
	quiet := (&logBuffer{}).logger()
	f.Fuzz(func(t *testing.T, raw []byte) {
		p, err := acl.Parse("acl.yaml", raw, acl.Options{Logger: quiet})
		if err != nil {
			if c := module.CodeOf(err); c != module.CodeACLRuleError && c != module.CodeConfigInvalid {
				t.Fatalf("error without its code: %v", err)
			}
			return
		}
		// What was loaded can be read back, checked and validated.
		again, err := acl.New(p.Rules(), acl.Options{DefaultEffect: new(p.DefaultEffect()), Logger: quiet})
		if err != nil {
			t.Fatalf("loaded rules are refused elsewhere: %v", err)
		}
		q := acl.Query{CallerID: "a.b", TargetID: "c.d", Context: call(1, "user", "r"), ArgumentKeys: []string{"x"}}
		if a, b := p.Authorize(t.Context(), q), again.Authorize(t.Context(), q); a != b {
			t.Fatalf("two decisions for one policy: %+v, %+v", a, b)
		}
		p.Validate()
	})
}
