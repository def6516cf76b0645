package module_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/apbus/apbus/module"
)

type obj = map[string]any

// logged collects what is logged while the test runs.
func logged(t *testing.T) *bytes.Buffer {
	t.Helper()
	var buf bytes.Buffer
	before := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&buf, nil)))
	t.Cleanup(func() { slog.SetDefault(before) })
	return &buf
}

// warnings counts the WARN lines of a log.
func warnings(buf *bytes.Buffer) int { return strings.Count(buf.String(), "level=WARN") }

// hop sends a map through JSON, as from one process to another.
func hop(t *testing.T, m map[string]any) map[string]any {
	t.Helper()
	raw, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return parse(t, string(raw))
}

// parse reads JSON text into the data model.
func parse(t *testing.T, text string) map[string]any {
	t.Helper()
	dec := json.NewDecoder(strings.NewReader(text))
	dec.UseNumber()
	var m map[string]any
	if err := dec.Decode(&m); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	m, err := module.NormalizeMap(m)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func equal(t *testing.T, what string, got, want any) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

func hasCode(t *testing.T, err error, want module.Code) {
	t.Helper()
	if got := module.CodeOf(err); got != want {
		t.Errorf("code %q, want %q (error %v)", got, want, err)
	}
}

// executor runs what call says.
type executor struct {
	call func(ctx context.Context, id string, inputs map[string]any, o module.CallOptions) (map[string]any, error)
}

func (x *executor) Call(ctx context.Context, id string, inputs map[string]any, opts ...module.CallOption) (map[string]any, error) {
	if x.call == nil {
		return nil, errors.New("not to be called")
	}
	var o module.CallOptions
	for _, set := range opts {
		set(&o)
	}
	return x.call(ctx, id, inputs, o)
}

// inside is the context.Context of a call of target that x runs.
func inside(t *testing.T, x module.Executor, target string, s module.CallScope) context.Context {
	t.Helper()
	c := module.NewContext(module.ContextOptions{}).Enter(target, s)
	if err := c.BindExecutor(x); err != nil {
		t.Fatal(err)
	}
	return module.WithContext(t.Context(), c)
}
