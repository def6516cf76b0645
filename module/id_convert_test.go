package module_test

import (
	"context"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/apbus/apbus/module"
)

func TestNormalizeID(t *testing.T) {
	tests := []struct {
		name, language, local string
		want                  string // "" is refused
		normalized            string
	}{
		{name: "canonical already", language: "python", local: "auth.login", want: "auth.login"},
		{name: "camel", language: "typescript", local: "auth.loginHandler", want: "auth.login_handler"},
		{name: "pascal", language: "go", local: "Auth.LoginHandler", want: "auth.login_handler"},
		{name: "rust", language: "rust", local: "crate::auth::MfaHandler", want: "crate.auth.mfa_handler"},
		{name: "acronym", language: "python", local: "api.HTTPClient", want: "api.http_client"},
		{name: "acronym at the end", language: "python", local: "MY_MODULE.DataXML", want: "my_module.data_xml"},
		{name: "digits", language: "java", local: "V2.User123Profile", want: "v2.user123_profile"},
		{name: "underscores stay", language: "python", local: "a___b__c_", want: "a___b__c_"},
		{name: "trailing underscore after words", language: "python", local: "getUser_", want: "get_user_"},
		{name: "leading underscore", language: "python", local: "_lead", normalized: "_lead"},
		{name: "hyphen", language: "python", local: "user-profiles", normalized: "user-profiles"},
		{name: "not ascii", language: "python", local: "getÜber", normalized: "getÜber"},
		{name: "colons outside rust", language: "go", local: "a::b", normalized: "a::b"},
		{name: "empty", language: "go", local: "", normalized: ""},
		{name: "too long once converted", language: "go", local: "a" + strings.Repeat("aB", 96), normalized: "a" + strings.Repeat("a_b", 96)},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := module.NormalizeID(tt.language, tt.local)
			if got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
			if tt.want != "" {
				return
			}
			e := module.AsError(err)
			if e == nil || e.Code != module.CodeInvalidModuleID || e.Details["normalized"] != tt.normalized {
				t.Errorf("err = %+v, want INVALID_MODULE_ID with %q", e, tt.normalized)
			}
		})
	}
}

func TestCanonicalizeName(t *testing.T) {
	tests := []struct {
		name string
		want string
		err  module.NameError
	}{
		{name: "cat-file", want: "cat_file"},
		{name: "cat_--file", want: "cat__file"},
		{name: "a.b:c d", want: "a_b_c_d"},
		{name: "!!HTTPServer!!", want: "http_server"},
		{name: "getUser_", want: "get_user_"},
		{name: "system", want: "system"},
		{name: strings.Repeat("aB", 64), want: strings.Repeat("a_b", 64)},
		{name: "!!!Ü!!!", err: module.NameNonASCII},
		{name: "cat\u00a0file", err: module.NameNonASCII},
		{name: "\xff", err: module.NameNonASCII},
		{name: "", err: module.NameEmpty},
		{name: "?!", err: module.NameEmpty},
		{name: "7z", err: module.NameInvalidStart},
		{name: "_x", err: module.NameInvalidStart},
		{name: "7" + strings.Repeat("a", 200), err: module.NameInvalidStart},
		{name: strings.Repeat("aB", 65), err: module.NameTooLong},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			want := module.CanonicalName{Original: tt.name, Canonical: tt.want, Err: tt.err}
			if d := cmp.Diff(want, module.CanonicalizeName(tt.name)); d != "" {
				t.Error(d)
			}
		})
	}
	m := module.CanonicalizeName("7z").Map()
	if d := cmp.Diff(map[string]any{"original_name": "7z", "canonical_name": nil, "error": "invalid_start"}, m); d != "" {
		t.Error(d)
	}
}

// Conversions give what they promise for every input, and the same when they are
// given their own result.
func TestConversionsProperty(t *testing.T) {
	segment := regexp.MustCompile(`^[a-z][a-z0-9_]{0,191}$`)
	snake := regexp.MustCompile(`^([a-z0-9]+(_[a-z0-9]+)*)?$`)
	rapid.Check(t, func(t *rapid.T) {
		s := rapid.OneOf(rapid.String(), rapid.StringMatching(`[A-Za-z0-9_. :-]{0,40}`)).Draw(t, "name")
		c := module.CanonicalizeName(s)
		if c.Original != s || (c.Canonical == "") == (c.Err == "") {
			t.Fatalf("%+v", c)
		}
		if c.Err == "" {
			if !segment.MatchString(c.Canonical) {
				t.Fatalf("%q is no segment", c.Canonical)
			}
			if again := module.CanonicalizeName(c.Canonical); again.Canonical != c.Canonical {
				t.Fatalf("%q becomes %q", c.Canonical, again.Canonical)
			}
		}
		if id, err := module.NormalizeID("go", s); err == nil {
			if again, err := module.NormalizeID("go", id); err != nil || again != id {
				t.Fatalf("%q becomes %q, %v", id, again, err)
			}
		}
		if got := module.SnakeCaseName(s); !snake.MatchString(got) {
			t.Fatalf("SnakeCaseName(%q) = %q", s, got)
		}
	})
}

func TestSnakeCaseName(t *testing.T) {
	for in, want := range map[string]string{
		"HTTPSender": "http_sender", "SendMail": "send_mail", "__My--Class__": "my_class", "Größe": "gr_e", "": "", "ß": "",
	} {
		if got := module.SnakeCaseName(in); got != want {
			t.Errorf("SnakeCaseName(%q) = %q, want %q", in, got, want)
		}
	}
}

func TestDetectIDConflict(t *testing.T) {
	existing := []string{"foo.system.bar", "Legacy.Job", "system.taken"}
	tests := []struct {
		name, id string
		want     module.ConflictKind
		code     module.Code
	}{
		{"free", "foo.bar", "", ""},
		{"duplicate", "foo.system.bar", module.ConflictDuplicate, module.CodeDuplicateModuleID},
		{"duplicate before reserved", "system.taken", module.ConflictDuplicate, module.CodeDuplicateModuleID},
		{"reserved first", "system.x", module.ConflictReserved, module.CodeInvalidModuleID},
		{"reserved alone", "schema", module.ConflictReserved, module.CodeInvalidModuleID},
		{"reserved in capitals", "System.x", module.ConflictReserved, module.CodeInvalidModuleID},
		{"reserved later on", "executor.schema.validate", "", ""},
		{"begins alike", "systems.report", "", ""},
		{"ephemeral", "ephemeral.x", "", ""},
		{"case", "legacy.job", module.ConflictCase, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := module.DetectIDConflict(tt.id, existing)
			if tt.want == "" {
				if c != nil {
					t.Fatalf("conflict %+v, want none", c)
				}
				return
			}
			if c == nil || c.Kind != tt.want || c.IsError() != (tt.code != "") || module.CodeOf(c.Err(tt.id)) != tt.code {
				t.Fatalf("conflict %+v, want %s with code %q", c, tt.want, tt.code)
			}
		})
	}
}

func TestDependenciesAndDefinition(t *testing.T) {
	f := module.New("m", "M", func(context.Context, struct{}) (struct{}, error) { return struct{}{}, nil },
		module.WithMetadata(map[string]any{"x-sla": "gold", "x-deprecation": map[string]any{"sunset_date": "2027-01-01"}}),
		module.WithDependencies(module.Dependency{ModuleID: "a", Version: "^1"}, module.Dependency{ModuleID: "b", Optional: true}))
	d := f.Descriptor()
	want := []module.Dependency{{ModuleID: "a", Version: "^1"}, {ModuleID: "b", Optional: true}}
	if diff := cmp.Diff(want, d.Dependencies()); diff != "" {
		t.Error(diff)
	}
	back, err := module.DescriptorFromMap(d.Map())
	if diff := cmp.Diff(want, back.Dependencies()); diff != "" || err != nil {
		t.Errorf("after a hop: %v %s", err, diff)
	}
	def := d.Definition()
	wire := []any{map[string]any{"module_id": "a", "version": "^1", "optional": false}, map[string]any{"module_id": "b", "optional": true}}
	if diff := cmp.Diff(wire, def["dependencies"]); diff != "" || def["sunset_date"] != "2027-01-01" {
		t.Errorf("sunset %v, %s", def["sunset_date"], diff)
	}
	if d.Metadata["x-sla"] != "gold" || d.Deprecation() == nil {
		t.Errorf("metadata %v", d.Metadata)
	}
	none := module.Descriptor{ID: "m", Metadata: map[string]any{"dependencies": []any{"odd", map[string]any{"version": "1"}}}}
	def = none.Definition()
	if diff := cmp.Diff([]any{}, def["dependencies"]); diff != "" || def["sunset_date"] != nil || none.Deprecation() != nil {
		t.Errorf("%v %s", def, diff)
	}
	alone := module.New("m", "M", func(context.Context, struct{}) (struct{}, error) { return struct{}{}, nil }, module.WithDependencies(module.Dependency{ModuleID: "a"}))
	if got := alone.Descriptor().Dependencies(); len(got) != 1 {
		t.Errorf("dependencies %v", got)
	}
}
