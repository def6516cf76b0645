package executor_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apbus/apbus/cancel"
	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/module"
)

// A module over the bus may be done while its chunks still wait. When the call ends
// then, it has failed: nobody may take what came for the whole.
func TestStreamEndsBeforeItsChunksAreOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x, _ := setup{modules: []module.Module{streams("m", func(_ context.Context, _ map[string]any, yield func(module.Chunk, error) bool) {
			for i := range int64(10) {
				yield(n(i), nil)
			}
		})}}.build(t)
		ctx, stop := context.WithCancelCause(t.Context())
		defer stop(nil)
		sent := 0
		reply, err := x.InvokeStream(ctx, &contextwire.Request{ModuleID: "m", CallID: "c"}, func(module.Chunk) error {
			if sent++; sent == 3 {
				synctest.Wait() // the module has returned
				stop(cancel.Because(cancel.Remote, "test", ""))
			}
			return nil
		})
		wantCode(t, err, module.CodeExecutionCancelled)
		if sent != 3 || reply != nil {
			t.Errorf("%d chunks, reply %v", sent, reply)
		}
	})
}

// Every chunk arrives and in order, also those that waited when the module was done,
// and the failure of the module comes after them.
func TestStreamAheadOfItsReader(t *testing.T) {
	for _, fails := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			x, _ := setup{modules: []module.Module{streams("m", func(_ context.Context, _ map[string]any, yield func(module.Chunk, error) bool) {
				for i := range int64(100) {
					yield(n(i), nil)
				}
				if fails {
					yield(nil, module.Errorf("OUT_OF_WORDS", "no more"))
				}
			})}}.build(t)
			var got []int64
			_, err := x.InvokeStream(t.Context(), &contextwire.Request{ModuleID: "m", CallID: "c"}, func(c module.Chunk) error {
				time.Sleep(time.Millisecond)
				got = append(got, c["n"].(int64))
				return nil
			})
			if (err != nil) != fails || (fails && module.CodeOf(err) != "OUT_OF_WORDS") {
				t.Errorf("fails %v: %v", fails, err)
			}
			for i, v := range got {
				if v != int64(i) {
					t.Fatalf("chunk %d is %d", i, v)
				}
			}
			if len(got) != 100 {
				t.Errorf("%d chunks", len(got))
			}
		})
	}
}
