package loop_test

import (
	"testing"

	"github.com/apbus/apbus/loop"
)

func TestHealth(t *testing.T) {
	w := newWorld(t, proposing(lesson("Cancel first.")))
	health := func(after int) *loop.Health {
		t.Helper()
		h, err := w.engine.Health(t.Context(), pinned().Add(day(after)))
		if err != nil {
			t.Fatal(err)
		}
		return h
	}
	if h := health(0); !h.Stale || h.LastRunMS != 0 || h.Model != "m-small" || len(h.Analyzers) != len(loop.Builtin()) {
		t.Errorf("before the first pass %+v", h)
	}
	w.failing(12)
	w.run(pinned(), loop.RunOptions{})
	if h := health(0); h.Stale || h.NewGrains != 0 || h.Watermark != 16 || h.LLMWatermark != 16 || h.Recommendations[loop.StatePending] != 2 {
		t.Errorf("after a pass %+v", h)
	}
	if h := health(7); !h.Stale {
		t.Errorf("after a week %+v", h)
	}
	w.failing(80)
	if h := health(1); !h.Stale || h.NewGrains < 100 {
		t.Errorf("after much evidence %+v", h)
	}
	if err := w.engine.Configure(t.Context(), root(), "exec.module_failure", loop.AnalyzerConfig{Enabled: new(false)}); err != nil {
		t.Fatal(err)
	}
	if h := health(1); h.Analyzers[0].ID != "exec.module_failure/1" || h.Analyzers[0].Runs {
		t.Errorf("switched off %+v", h.Analyzers[0])
	}
	cited, err := w.engine.Cited(t.Context(), w.llm()[0])
	if err != nil || len(cited) != 2 || cited[0].Evidence == nil {
		t.Errorf("cited %v, %v", cited, err)
	}
}

func TestProbeThroughTheEngine(t *testing.T) {
	_, err := newWorld(t, nil).engine.Probe(t.Context())
	wantCode(t, err, "LOOP_BACKEND")
	if _, err := newWorld(t, &fakeModel{}).engine.Probe(t.Context()); err != nil {
		t.Error(err)
	}
	_, err = newWorld(t, &fakeModel{fail: map[string]error{"probe": errDown}}).engine.Probe(t.Context())
	wantCode(t, err, "LOOP_BACKEND")
}
