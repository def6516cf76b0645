package executor_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/executor"
	"github.com/apbus/apbus/module"
)

type previewCase struct {
	ID      string `json:"id"`
	Preview struct {
		Implemented *bool          `json:"implemented"`
		Returns     map[string]any `json:"returns"`
		Raises      string         `json:"raises"`
	} `json:"preview"`
	Expected struct {
		Valid            bool    `json:"valid"`
		PredictedChanges []any   `json:"predicted_changes"`
		Check            bool    `json:"check"`
		Warning          *string `json:"warning"`
	} `json:"expected"`
}

func previewCases(t *testing.T) []previewCase {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("testdata", "preview_method.json"))
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		TestCases []previewCase `json:"test_cases"`
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	if err := dec.Decode(&file); err != nil {
		t.Fatal(err)
	}
	if len(file.TestCases) != 7 {
		t.Fatalf("%d cases, want 7", len(file.TestCases))
	}
	return file.TestCases
}

type previewer struct {
	*mod
	preview func() (*module.PreviewResult, error)
}

func (p previewer) Preview(context.Context, map[string]any) (*module.PreviewResult, error) {
	return p.preview()
}

type streamingPreviewer struct{ previewer }

func (streamingPreviewer) Stream(context.Context, map[string]any) iter.Seq2[module.Chunk, error] {
	return func(func(module.Chunk, error) bool) { panic("validation ran the module") }
}

// build makes the module of a case.
func (c previewCase) build(t *testing.T, streaming bool) module.Module {
	t.Helper()
	base := fn("m", func(context.Context, map[string]any) (map[string]any, error) {
		t.Error("validation ran the module")
		return nil, nil
	})
	base.desc.Annotations.Streaming = streaming
	p := previewer{base, func() (*module.PreviewResult, error) {
		if c.Preview.Raises != "" {
			return nil, errors.New(c.Preview.Raises)
		}
		if c.Preview.Returns == nil {
			return nil, nil
		}
		normal, err := module.NormalizeMap(c.Preview.Returns)
		if err != nil {
			t.Fatal(err)
		}
		return module.PreviewFromMap(normal)
	}}
	implemented := c.Preview.Implemented == nil || *c.Preview.Implemented
	switch {
	case implemented && streaming:
		return streamingPreviewer{p}
	case implemented:
		return p
	case streaming:
		s := yields("m")
		s.desc = base.desc
		return s
	}
	return base
}

func TestPreviewMethod(t *testing.T) {
	hops := map[string]func(t *testing.T, m map[string]any) map[string]any{
		"json":    through(contextwire.JSON),
		"msgpack": through(contextwire.MsgPack),
	}
	for _, c := range previewCases(t) {
		for _, streaming := range []bool{false, true} {
			name := c.ID
			if streaming {
				name += "/streaming"
			}
			t.Run(name, func(t *testing.T) {
				x := setup{modules: []module.Module{c.build(t, streaming)}}.executor(t)
				r := x.Validate(t.Context(), "m", nil)
				c.judge(t, r)
				for hop, send := range hops {
					back, err := module.PreflightFromMap(send(t, r.Map()))
					if err != nil {
						t.Fatalf("%s: %v", hop, err)
					}
					c.judge(t, back)
				}
				// As another node's caller sees it.
				far, err := x.Check(t.Context(), &contextwire.Request{ModuleID: "m"})
				if err != nil {
					t.Fatal(err)
				}
				near := setup{opts: []executor.Option{executor.WithRemote(&remote{
					check: func(context.Context, *contextwire.Request) (*module.PreflightResult, error) {
						return module.PreflightFromMap(hops["msgpack"](t, far.Map()))
					}})}}.executor(t)
				c.judge(t, near.Validate(t.Context(), "m", nil))
			})
		}
	}
}

// through sends a map through a codec of the wire.
func through(ct contextwire.ContentType) func(t *testing.T, m map[string]any) map[string]any {
	return func(t *testing.T, m map[string]any) map[string]any {
		t.Helper()
		raw, err := contextwire.Encode(ct, m)
		if err != nil {
			t.Fatal(err)
		}
		back, err := contextwire.DecodeMap(ct, raw, contextwire.Limits{})
		if err != nil {
			t.Fatal(err)
		}
		return back
	}
}

func (c previewCase) judge(t *testing.T, r *module.PreflightResult) {
	t.Helper()
	want, err := module.Normalize(c.Expected.PredictedChanges)
	if err != nil {
		t.Fatal(err)
	}
	got := r.Map()["predicted_changes"]
	if diff := cmp.Diff(want, got); diff != "" || r.PredictedChanges == nil {
		t.Errorf("predicted_changes (-want +got):\n%s", diff)
	}
	if r.Valid != c.Expected.Valid || slices.Contains(verdicts(r), "module_preview") != c.Expected.Check {
		t.Errorf("valid %v, checks %v", r.Valid, verdicts(r))
	}
	warnings := strings.Join(r.Warnings(), "\n")
	if c.Expected.Warning == nil && warnings != "" || c.Expected.Warning != nil && !strings.Contains(warnings, *c.Expected.Warning) {
		t.Errorf("warnings = %q", warnings)
	}
}
