package executor_test

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/executor"
	"github.com/apbus/apbus/module"
)

// Progress reaches the caller that asked for it, whether the module lives here or not,
// and nobody else.
func TestProgressOption(t *testing.T) {
	far := &remote{invoke: func(_ context.Context, q *contextwire.Request) (*contextwire.Reply, error) {
		if q.Progress != nil {
			q.Progress(module.ProgressReport{Done: 2})
		}
		return &contextwire.Reply{Output: map[string]any{}}, nil
	}}
	inner := fn("inner", func(ctx context.Context, _ map[string]any) (map[string]any, error) {
		module.Progress(ctx, 1, 0, "inner")
		return map[string]any{}, nil
	})
	outer := fn("outer", func(ctx context.Context, _ map[string]any) (map[string]any, error) {
		if _, err := module.Call(ctx, "inner", nil); err != nil { // asks for none
			return nil, err
		}
		module.Progress(ctx, 1, 3, "outer")
		return map[string]any{}, nil
	})
	x := setup{modules: []module.Module{inner, outer}, opts: []executor.Option{executor.WithRemote(far)}}.executor(t)
	for id, want := range map[string][]module.ProgressReport{
		"outer":    {{Done: 1, Total: 3, Note: "outer"}},
		"far.away": {{Done: 2}},
	} {
		var got []module.ProgressReport
		if _, err := x.Call(t.Context(), id, nil, module.CallProgress(func(r module.ProgressReport) { got = append(got, r) })); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", id, diff)
		}
		if _, err := x.Call(t.Context(), id, nil); err != nil {
			t.Errorf("%s without: %v", id, err)
		}
	}
}

// A call that names its node goes to the bus though the module is here too.
func TestNodeOption(t *testing.T) {
	var nodes []string
	far := &remote{invoke: func(_ context.Context, q *contextwire.Request) (*contextwire.Reply, error) {
		nodes = append(nodes, q.Node)
		return &contextwire.Reply{Output: map[string]any{"far": true}}, nil
	}}
	here := fn("here", func(context.Context, map[string]any) (map[string]any, error) {
		return map[string]any{"far": false}, nil
	})
	x := setup{modules: []module.Module{here}, opts: []executor.Option{executor.WithRemote(far)}}.executor(t)
	if out, err := x.Call(t.Context(), "here", nil, module.CallNode("n2")); err != nil || out["far"] != true {
		t.Errorf("with a node: %v, %v", out, err)
	}
	if out, err := x.Call(t.Context(), "here", nil); err != nil || out["far"] != false {
		t.Errorf("without: %v, %v", out, err)
	}
	if diff := cmp.Diff([]string{"n2"}, nodes); diff != "" {
		t.Errorf("requests' nodes (-want +got):\n%s", diff)
	}
	alone := setup{modules: []module.Module{here}}.executor(t)
	_, err := alone.Call(t.Context(), "here", nil, module.CallNode("n2"))
	if e := module.AsError(err); e == nil || e.Code != module.CodeBusNoResponders || e.Details["node"] != "n2" {
		t.Errorf("without a bus: %v", err)
	}
}
