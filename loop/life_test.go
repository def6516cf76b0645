package loop_test

import (
	"testing"

	"github.com/apbus/apbus/loop"
)

func TestLifeOfALesson(t *testing.T) {
	w := newWorld(t, proposing(lesson("Cancel before refunding.")))
	w.failing(12)
	r := w.run(pinned(), loop.RunOptions{})
	t.Logf("%+v funnel %+v", r, r.Funnel)
	cases := w.llm()
	if len(cases) != 1 {
		t.Fatalf("%d drafts stored", len(cases))
	}
	c := cases[0]
	w.approve(c.Hash)
	w.apply(pinned(), c.Hash)
	g := w.guidance("pay.refund")
	if len(g) != 1 || g[0].Text != "Cancel before refunding." || g[0].Rec != c.Hash {
		t.Errorf("guidance %+v", g)
	}
	if _, err := w.engine.Rollback(t.Context(), pinned(), rex(), c.Hash, "no"); err != nil {
		t.Fatal(err)
	}
	if g := w.guidance("pay.refund"); len(g) != 0 {
		t.Errorf("guidance after rollback %+v", g)
	}
}
