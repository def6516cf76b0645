package module_test

import (
	"context"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/apbus/apbus/module"
)

func TestChangeRoundTrip(t *testing.T) {
	for _, tt := range []struct {
		name string
		c    module.Change
		want obj
	}{
		{"required fields only", module.Change{Action: "send", Target: "smtp:a@example.com", Summary: "Send a mail"},
			obj{"action": "send", "target": "smtp:a@example.com", "summary": "Send a mail"}},
		{"one extension", module.Change{Action: "a", Target: "t", Summary: "s", Extra: obj{"x-foo": obj{"n": int64(1)}}},
			obj{"action": "a", "target": "t", "summary": "s", "x-foo": obj{"n": int64(1)}}},
		{"before and after", module.Change{Action: "a", Target: "t", Summary: "s", Before: module.Known(obj{"tier": "gold"}), After: module.Known("x")},
			obj{"action": "a", "target": "t", "summary": "s", "before": obj{"tier": "gold"}, "after": "x"}},
		{"null is not absent", module.Change{Action: "a", Target: "t", Summary: "s", Before: module.Known(nil)},
			obj{"action": "a", "target": "t", "summary": "s", "before": nil}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			equal(t, "map", tt.c.Map(), tt.want)
			got, err := module.ChangeFromMap(hop(t, tt.c.Map()))
			if err != nil {
				t.Fatal(err)
			}
			equal(t, "change", got, tt.c)
		})
	}
}

func TestChangeRefuses(t *testing.T) {
	good := obj{"action": "a", "target": "t", "summary": "s"}
	if _, err := module.ChangeFromMap(good); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name   string
		change obj
	}{
		{"no action", obj{"action": ""}},
		{"null target", obj{"target": nil}},
		{"summary no string", obj{"summary": int64(1)}},
		{"blank summary", obj{"summary": "  "}},
		{"two lines", obj{"summary": "a\nb"}},
		{"carriage return", obj{"summary": "a\rb"}},
		{"other key", obj{"confidence": 0.5}},
		{"key that only looks like one", obj{"X-foo": 1}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := obj{}
			for _, from := range []obj{good, tt.change} {
				for k, v := range from {
					m[k] = v
				}
			}
			c, err := module.ChangeFromMap(m)
			hasCode(t, err, module.CodeInvalidInput)
			equal(t, "change", c, module.Change{})
		})
	}
	for name, m := range map[string]obj{"action": {"target": "t", "summary": "s"}, "target": {"action": "a", "summary": "s"}, "summary": {"action": "a", "target": "t"}} {
		if _, err := module.ChangeFromMap(m); err == nil {
			t.Errorf("a change without %s passed", name)
		}
	}
	// Extra cannot stand in for a field, even in an invalid change.
	bad := module.Change{Action: "delete", Target: "t", Summary: "s", Extra: obj{"action": "read", "before": "fake"}}
	if bad.Validate() == nil || bad.Map()["action"] != "delete" {
		t.Errorf("map %v", bad.Map())
	}
}

func TestChangeRoundTripProperty(t *testing.T) {
	text := rapid.StringMatching(`[!-~][^\n\r]{0,9}`)
	value := rapid.OneOf(rapid.Just(any(nil)), rapid.Int64().AsAny(), rapid.String().AsAny(), rapid.Float64Range(-1, 1).AsAny())
	rapid.Check(t, func(t *rapid.T) {
		c := module.Change{Action: text.Draw(t, "action"), Target: text.Draw(t, "target"), Summary: text.Draw(t, "summary")}
		if rapid.Bool().Draw(t, "has before") {
			c.Before = module.Known(value.Draw(t, "before"))
		}
		if rapid.Bool().Draw(t, "has after") {
			c.After = module.Known(value.Draw(t, "after"))
		}
		if extra := rapid.MapOfN(rapid.StringMatching(`x-[a-z]{0,4}`), value, 0, 3).Draw(t, "extra"); len(extra) > 0 {
			c.Extra = extra
		}
		got, err := module.ChangeFromMap(c.Map())
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(c, got); diff != "" {
			t.Fatalf("(-want +got):\n%s", diff)
		}
	})
}

// The cases of the preview RFC, as far as a module shows them: what validation
// makes of each belongs to the executor.
func TestPreviewCases(t *testing.T) {
	type in struct {
		User string `json:"user"`
	}
	run := func(context.Context, in) (obj, error) { return obj{}, nil }
	remove := module.Change{Action: "delete", Target: "users.42", Summary: "Delete user 42", Before: module.Known(obj{"id": int64(42)})}
	mail := module.Change{Action: "send", Target: "smtp:x", Summary: "Send a mail"}
	broken := errors.New("no database")
	answer := func(r *module.PreviewResult, err error) module.Option {
		return module.WithPreview(func(_ context.Context, v in) (*module.PreviewResult, error) {
			if v.User != "42" {
				t.Errorf("input %v", v)
			}
			return r, err
		})
	}
	for _, tt := range []struct {
		name string
		opts []module.Option
		want *module.PreviewResult
		err  error
	}{
		{"no preview", nil, nil, nil},
		{"predicts nothing", []module.Option{answer(nil, nil)}, nil, nil},
		{"one change", []module.Option{answer(&module.PreviewResult{Changes: []module.Change{mail}}, nil)}, &module.PreviewResult{Changes: []module.Change{mail}}, nil},
		{"several in order", []module.Option{answer(&module.PreviewResult{Changes: []module.Change{remove, mail}}, nil)}, &module.PreviewResult{Changes: []module.Change{remove, mail}}, nil},
		{"fails", []module.Option{answer(nil, broken)}, nil, broken},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := module.New("users.delete", "Delete a user", run, tt.opts...)
			got, err := m.Preview(t.Context(), obj{"user": "42"})
			if !errors.Is(err, tt.err) || (err == nil) != (tt.err == nil) {
				t.Fatalf("error %v", err)
			}
			equal(t, "preview", got, tt.want)
			sent := got.Map()
			if sent != nil {
				sent = hop(t, sent)
			}
			back, err := module.PreviewFromMap(sent)
			if err != nil {
				t.Fatal(err)
			}
			equal(t, "preview after a hop", back, tt.want)
		})
	}
	m := module.New("users.delete", "", run, answer(nil, nil))
	_, err := m.Preview(t.Context(), obj{"user": int64(42)})
	hasCode(t, err, module.CodeInvalidInput)
}

func TestPreviewFromMapRefuses(t *testing.T) {
	for name, m := range map[string]obj{
		"no changes": {}, "null": {"changes": nil}, "no list": {"changes": obj{}}, "no map": {"changes": []any{"x"}}, "invalid": {"changes": []any{obj{"action": "a"}}},
	} {
		r, err := module.PreviewFromMap(m)
		if r != nil || err == nil {
			t.Errorf("%s passed", name)
		}
	}
	if r, err := module.PreviewFromMap(obj{"changes": []any{}}); err != nil || r == nil || len(r.Changes) != 0 {
		t.Errorf("an empty list: %v, %v", r, err)
	}
}
