package contextwire_test

import (
	"strings"
	"testing"
	"time"

	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/module"
	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// drawFrame makes a frame that can be written, or not.
func drawFrame(t *rapid.T) *contextwire.Frame {
	kinds := []contextwire.FrameKind{
		contextwire.FrameAccept, contextwire.FrameProgress, contextwire.FrameTrace, contextwire.FrameData,
		contextwire.FrameEnd, contextwire.FrameResult, contextwire.FrameResult, contextwire.FrameError, "other",
	}
	f := &contextwire.Frame{
		Kind: rapid.SampledFrom(kinds).Draw(t, "kind"), CallID: callID, Boot: "b1",
		Node: rapid.SampledFrom([]string{"n1", "n2", "N"}).Draw(t, "node"),
		Seq:  rapid.Uint64Range(0, 3).Draw(t, "seq"), Grace: time.Duration(rapid.IntRange(0, 1).Draw(t, "grace")) * time.Second,
		Body:     map[string]any{"v": strings.Repeat("x", rapid.SampledFrom([]int{0, 10, 600, 300_000}).Draw(t, "size"))},
		Progress: &module.ProgressReport{Done: 1},
		Err:      module.Errorf("CODE", "%s", rapid.SampledFrom([]string{"", "text"}).Draw(t, "text")),
	}
	if rapid.Bool().Draw(t, "unexecuted") {
		f.Err = f.Err.NotExecuted()
	}
	if rapid.IntRange(0, 9).Draw(t, "broken") == 0 {
		f.Body["v"] = "\xff"
	}
	return f
}

// What an Encoder made before shows nowhere in what it makes next.
func TestEncoderIsAsGoodAsNew(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var e contextwire.Encoder
		for range rapid.IntRange(1, 8).Draw(t, "messages") {
			ct := rapid.SampledFrom(codecs).Draw(t, "type")
			var h, wantH contextwire.Header
			var body, want []byte
			var err, wantErr error
			if rapid.IntRange(0, 3).Draw(t, "request") == 0 {
				r := &contextwire.Request{
					CallID: callID, Attempt: rapid.IntRange(0, 3).Draw(t, "attempt"),
					Bare: rapid.Bool().Draw(t, "bare"), Stream: rapid.Bool().Draw(t, "stream"), Root: rapid.SampledFrom([]string{"", rootID, "x"}).Draw(t, "root"),
					Inputs:      map[string]any{"v": "y"},
					TraceParent: &module.TraceParent{TraceID: traceID, ParentID: spanID},
				}
				r.Context = module.RestoreContext(module.ContextWire{TraceID: traceID})
				h, body, err = e.Request(r, ct)
				wantH, want, wantErr = contextwire.EncodeRequest(r, ct)
				if r.Bare {
					ct = contextwire.JSON
				}
			} else {
				f := drawFrame(t)
				h, body, err = e.Frame(f, ct)
				wantH, want, wantErr = contextwire.EncodeFrame(f, ct)
			}
			if diff := cmp.Diff(wantH, h); diff != "" {
				t.Fatalf("headers (-new +used):\n%s", diff)
			}
			if module.CodeOf(err) != module.CodeOf(wantErr) {
				t.Fatalf("error %v, want %v", err, wantErr)
			}
			v, gotErr := contextwire.Decode(ct, body, contextwire.Limits{})
			wantV, _ := contextwire.Decode(ct, want, contextwire.Limits{})
			if diff := cmp.Diff(wantV, v); diff != "" || (gotErr != nil && len(want) > 0) {
				t.Fatalf("body (-new +used): %v\n%s", gotErr, diff)
			}
		}
	})
}

// What a message costs that is made in the room of one like it.
func TestEncoderAllocatesNearlyNothing(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates too")
	}
	var e contextwire.Encoder
	frame := &contextwire.Frame{Kind: contextwire.FrameResult, CallID: callID, Node: "n1", Boot: "b1", Body: map[string]any{"sum": int64(3)}}
	if n := testing.AllocsPerRun(100, func() { _, _, _ = e.Frame(frame, contextwire.MsgPack) }); n > 0 {
		t.Errorf("a result allocates %v times", n)
	}
	request := &contextwire.Request{CallID: callID, Attempt: 1, Budget: time.Second, Inputs: map[string]any{"a": int64(1)},
		Context: module.RestoreContext(module.ContextWire{TraceID: traceID})}
	// The text of traceparent and of the budget.
	if n := testing.AllocsPerRun(100, func() { _, _, _ = e.Request(request, contextwire.MsgPack) }); n > 2 {
		t.Errorf("a request allocates %v times", n)
	}
}
