package bindings_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/apbus/apbus/bindings"
	"github.com/apbus/apbus/module"
)

const full = `bindings:
- module_id: text.upper
  name: Upper
  description: Upper-case a text
  documentation: More of it.
  version: 2.1.0
  tags: [text, demo]
  timeout: 1500ms
  metadata: {owner: ana, since: 2024}
  annotations: {readonly: true, idempotent: true, requires_approval: true, open_world: false, cache_ttl: 5, cache_key_fields: [text]}
  input_schema:
    type: object
    required: [text]
    properties: {text: {type: string, maxLength: 10}}
  output_schema: &out {type: object}
  command: {argv: [tr, a-z, A-Z]}
- module_id: text.lower
  description: Lower-case a text
  output_schema: *out
  http: {url: "https://example.com/lower", method: PUT}
`

func TestDescriptors(t *testing.T) {
	mods, _ := load(t, full)
	want := module.Descriptor{
		ID: "text.upper", Name: "Upper", Description: "Upper-case a text", Documentation: "More of it.", Version: "2.1.0",
		Tags: []string{"text", "demo"}, Timeout: new(1500 * time.Millisecond), Metadata: map[string]any{"owner": "ana", "since": int64(2024)},
		Annotations: module.Annotations{
			Readonly: true, Idempotent: true, RequiresApproval: true, ClosedWorld: true, CacheTTL: 5, CacheKeyFields: []string{"text"},
		},
		InputSchema: map[string]any{
			"type": "object", "required": []any{"text"},
			"properties": map[string]any{"text": map[string]any{"type": "string", "maxLength": int64(10)}},
		},
		OutputSchema: map[string]any{"type": "object"},
	}
	if d := cmp.Diff(want, mods["text.upper"].Descriptor()); d != "" {
		t.Error(d)
	}
	lower := mods["text.lower"].Descriptor()
	if lower.Timeout != nil || lower.EffectiveVersion() != "1.0.0" || lower.InputSchema["type"] != "object" {
		t.Errorf("defaults: %+v", lower)
	}
}

func TestFaultsNameFileLineAndKey(t *testing.T) {
	const head = "bindings:\n- module_id: x.y\n  description: d\n"
	const command = "  command: {argv: [cat]}\n"
	for _, tt := range []struct {
		name, text string
		want       []string
	}{
		{"nothing", "", []string{"empty"}},
		{"broken YAML", "bindings: [\n", []string{"b.yaml"}},
		{"a list", "- a\n", []string{":1", "mapping"}},
		{"no bindings", "{}\n", []string{"bindings is missing"}},
		{"two documents", head + command + "---\n{}\n", []string{"more than one document"}},
		{"bindings is a map", "bindings: {}\n", []string{":1", "bindings", "list"}},
		{"unknown key at the top", "binding: []\n", []string{":1", "binding", `"bindings"`}},
		{"unknown key", head + "  descripton: x\n" + command, []string{":4", "bindings[0].descripton", `"description"`}}, //nolint:misspell // on purpose
		{"unknown key of a command", head + "  command:\n    argv: [cat]\n    maxoutput: 3\n", []string{":6", "bindings[0].command.maxoutput", `"max_output"`}},
		{"unknown annotation", head + "  annotations: {read_only: true}\n" + command, []string{":4", "annotations.read_only", `"readonly"`}},
		{"annotation of another type", head + "  annotations:\n    readonly: sure\n" + command, []string{":5", "annotations.readonly", "false"}},
		{"key twice", head + "  version: 1.0.0\n  version: 1.0.0\n" + command, []string{":5", "version", "twice"}},
		{"no ID", "bindings:\n- description: d\n" + command, []string{":2", "module_id is missing"}},
		{"bad ID", "bindings:\n- module_id: X\n  description: d\n" + command, []string{":2", "bindings[0].module_id"}},
		{"reserved ID", "bindings:\n- module_id: system.x\n  description: d\n" + command, []string{":2", "reserved"}},
		{"ID twice", head + command + "- module_id: x.y\n  description: d\n" + command, []string{":5", "bindings[1].module_id", ":2"}},
		{"no description", "bindings:\n- module_id: x.y\n" + command, []string{":2", "description is missing"}},
		{"ID is a number", "bindings:\n- module_id: 5\n" + command, []string{":2", "module_id", "text"}},
		{"neither", head, []string{":2", "neither"}},
		{"both", head + command + "  http: {url: 'http://x'}\n", []string{":5", "not both"}},
		{"no argv", head + "  command: {}\n", []string{":4", "argv"}},
		{"argv is text", head + "  command: {argv: cat x}\n", []string{":4", "command.argv", "list"}},
		{"argv holds a number", head + "  command:\n    argv:\n    - head\n    - 5\n", []string{":7", "argv[1]", "text"}},
		{"timeout without unit", head + "  timeout: 5\n" + command, []string{":4", "timeout", "5s"}},
		{"negative timeout", head + "  timeout: -5s\n" + command, []string{":4", "timeout"}},
		{"max_output is text", head + "  command: {argv: [cat], max_output: 1MB}\n", []string{":4", "max_output", "bytes"}},
		{"schema is text", head + "  input_schema: object\n" + command, []string{":4", "input_schema"}},
		{"schema does not compile", head + "  output_schema:\n    type: objekt\n" + command, []string{":4", "output_schema"}},
		{"no url", head + "  http: {method: POST}\n", []string{":4", "url is missing"}},
		{"url of a file", head + "  http: {url: 'file:///etc/passwd'}\n", []string{":4", "http.url"}},
		{"url with a password", head + "  http: {url: 'http://u:geheim@x'}\n", []string{":4", "http.url", "header"}},
		{"method", head + "  http: {url: 'http://x', method: TRACE}\n", []string{":4", "method", "POST"}},
		{"header of ours", head + "  http: {url: 'http://x', headers: {Host: y}}\n", []string{":4", "headers.Host"}},
		{"variable that is not set", head + "  http:\n    url: http://x\n    headers: {X-Key: {env: NO_SUCH}}\n", []string{":6", "headers.X-Key.env", "NO_SUCH"}},
		{"secret file that is not there", head + "  command:\n    argv: [cat]\n    env: {K: {file: no-such}}\n", []string{":6", "env.K.file"}},
		{"secret of two sources", head + "  command: {argv: [cat], env: {K: {file: a, env: B}}}\n", []string{":4", "env.K"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			path := write(t, t.TempDir(), "b.yaml", tt.text)
			mods, err := bindings.Load([]string{path}, bindings.Options{Env: environment})
			if mods != nil || module.CodeOf(err) != module.CodeBindingFileInvalid {
				t.Fatalf("%v, err = %v", mods, err)
			}
			for _, want := range append(tt.want, path) {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q lacks %q", err, want)
				}
			}
			if strings.Contains(err.Error(), "geheim") {
				t.Errorf("the error quotes a secret: %v", err)
			}
		})
	}
	if _, err := bindings.Load([]string{"/no/such/file"}, bindings.Options{}); module.CodeOf(err) != module.CodeBindingFileInvalid {
		t.Errorf("err = %v", err)
	}
}

// What runs can be exchanged under callers, what they see cannot.
func TestAdopt(t *testing.T) {
	one, _ := load(t, shell(`echo '{"v":1}'`, ""))
	two, _ := load(t, shell(`echo '{"v":2}'`, ""))
	other, _ := load(t, shell(`echo '{"v":3}'`, "  timeout: 5s\n"))
	again, _ := load(t, shell(`echo '{"v":1}'`, ""))
	m := one["x.y"]
	if m.Same(two["x.y"]) || m.Same(other["x.y"]) {
		t.Error("modules that differ are the same")
	}
	_ = again
	if m.Adopt(other["x.y"]) {
		t.Error("a module with another limit was adopted")
	}
	if !m.Adopt(two["x.y"]) {
		t.Fatal("what callers cannot see was not adopted")
	}
	if out, err := execute(t, t.Context(), m, nil); err != nil || out["v"] != int64(2) {
		t.Errorf("%v, %v", out, err)
	}
}

func FuzzLoad(f *testing.F) {
	f.Add(full)
	f.Add("bindings:\n- {module_id: a.b, description: d, http: {url: 'http://x', headers: {A: {env: B}}}}\n")
	f.Fuzz(func(t *testing.T, text string) {
		mods, err := bindings.Load([]string{write(t, t.TempDir(), "b.yaml", text)}, bindings.Options{})
		if err == nil {
			for _, m := range mods {
				if m.Descriptor().Hash() == "" || module.ValidateID(m.ID()) != nil {
					t.Errorf("a descriptor that cannot cross: %+v", m.Descriptor())
				}
			}
		} else if module.CodeOf(err) != module.CodeBindingFileInvalid {
			t.Errorf("code %s", module.CodeOf(err))
		}
	})
}
