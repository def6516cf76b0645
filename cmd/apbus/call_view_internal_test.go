package main

import (
	"bytes"
	"errors"
	"io"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/module"
)

func TestProgressBar(t *testing.T) {
	for _, tt := range []struct {
		name string
		r    module.ProgressReport
		want string
	}{
		{"nothing", module.ProgressReport{Total: 4}, "demo.sleep [                        ]   0%"},
		{"half", module.ProgressReport{Done: 2, Total: 4, Note: "two of four"}, "demo.sleep [============            ]  50% two of four"},
		{"all", module.ProgressReport{Done: 4, Total: 4}, "demo.sleep [========================] 100%"},
		{"more than all", module.ProgressReport{Done: 9, Total: 4}, "demo.sleep [========================] 100%"},
		{"less than nothing", module.ProgressReport{Done: -9, Total: 4}, "demo.sleep [                        ]   0%"},
		{"no number", module.ProgressReport{Done: math.Inf(1), Total: 4}, "demo.sleep [========================] 100%"},
		{"no total", module.ProgressReport{Done: 12.5}, "demo.sleep 12.5"},
		{"long note", module.ProgressReport{Done: 1, Note: strings.Repeat("x", 100)}, "demo.sleep 1 " + strings.Repeat("x", 23) + "…"},
		{"note with controls", module.ProgressReport{Done: 1, Note: "a\x1b[2J\nb"}, "demo.sleep 1 a[2J b"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var out bytes.Buffer
			bar := &progressBar{w: &out, name: "demo.sleep"}
			bar.clear() // nothing is shown yet
			bar.report(tt.r)
			if diff := cmp.Diff(eraseLine+tt.want, out.String()); diff != "" {
				t.Error(diff)
			}
			bar.clear()
			bar.clear()
			if got := strings.Count(out.String(), eraseLine); got != 2 {
				t.Errorf("erased %d times, want 2", got)
			}
		})
	}
	var none *progressBar
	none.clear()
	long := &progressBar{w: io.Discard, name: strings.Repeat("n", 200)}
	if got := len([]rune(long.text(module.ProgressReport{Done: 1, Total: 3, Note: strings.Repeat("x", 200)}))); got > 79 {
		t.Errorf("the line is %d characters long and may wrap", got)
	}
}

func TestTextOfAChunk(t *testing.T) {
	for _, tt := range []struct {
		name  string
		chunk map[string]any
		text  string
		ok    bool
	}{
		{"word", map[string]any{"index": int64(3), "word": "be"}, "be", true},
		{"only text", map[string]any{"text": ""}, "", true},
		{"two texts", map[string]any{"a": "x", "b": "y"}, "", false},
		{"no text", map[string]any{"count": int64(1)}, "", false},
		{"nested", map[string]any{"a": "x", "b": []any{}}, "", false},
		{"empty", map[string]any{}, "", false},
	} {
		if text, ok := textOf(tt.chunk); ok != tt.ok || ok && text != tt.text {
			t.Errorf("%s: %q, %v", tt.name, text, ok)
		}
	}
}

func TestTraceTreeOnATerminal(t *testing.T) {
	for name, raw := range map[string]string{"ok": tracedAdd, "failed": tracedFail, "nested": tracedNested} {
		trace, err := contextwire.DecodeMap(contextwire.JSON, []byte(raw), contextwire.Limits{})
		if err != nil {
			t.Fatal(err)
		}
		golden(t, "trace-tree-"+name, strings.Join(traceTree(&printer{terminal: true}, trace), "\n")+"\n")
	}
}

// A trace comes from another process: whatever is in it, it is shown as far as it
// goes, and ends.
func FuzzTraceTree(f *testing.F) {
	f.Add([]byte(tracedAdd))
	f.Add([]byte(tracedFail))
	f.Add([]byte(tracedNested))
	f.Add([]byte(`{"steps":[1,{"name":2}],"hooks":{},"remote":{"remote":{}}}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		trace, err := contextwire.DecodeMap(contextwire.JSON, raw, contextwire.Limits{})
		if err != nil {
			return
		}
		for _, line := range traceTree(&printer{}, trace) {
			if strings.ContainsAny(line, "\n\r\x1b") {
				t.Errorf("line %q", line)
			}
		}
	})
}

func FuzzEvents(f *testing.F) {
	f.Add([]byte("event: data\nid: 0\ndata: {\"a\":1}\n\n: c\n\nevent: end\r\nid: 1\r\ndata: {}\r\n\r\n"))
	f.Add([]byte("data: {\ndata: }\n\n"))
	f.Add([]byte("data\n\nid\n\n"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		events := newEventReader(bytes.NewReader(raw))
		for range len(raw) + 1 {
			e, err := events.next()
			if err != nil {
				if !errors.Is(err, io.EOF) && module.AsError(err) == nil {
					t.Errorf("error %v is neither the end nor coded", err)
				}
				return
			}
			if e.data == nil {
				t.Error("an event without data")
			}
		}
		t.Error("more events than bytes")
	})
}
