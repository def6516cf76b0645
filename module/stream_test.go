package module_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/apbus/apbus/cancel"
	"github.com/apbus/apbus/module"
)

type countIn struct {
	N int `json:"n"`
}

type countPart struct {
	I int `json:"i"`
}

type countAll struct {
	I     int `json:"i,omitempty"`
	Total int `json:"total,omitempty"`
}

func counter(send func(ctx context.Context, n int, send func(any) error) error) *module.StreamFunc {
	return module.NewStream[countIn, countAll]("count.up", "Count", func(ctx context.Context, in countIn, s func(any) error) error {
		return send(ctx, in.N, s)
	}, module.WithAnnotations(module.Annotations{Readonly: true}))
}

func upTo(_ context.Context, n int, send func(any) error) error {
	for i := range n {
		if err := send(countPart{i}); err != nil {
			return err
		}
	}
	return send(&countAll{Total: n})
}

// drain reads a stream to its end.
func drain(s iter.Seq2[module.Chunk, error]) (chunks []module.Chunk, err error) {
	for c, e := range s {
		if e != nil {
			return chunks, e
		}
		chunks = append(chunks, c)
	}
	return chunks, nil
}

func TestStreamFunc(t *testing.T) {
	m := counter(upTo)
	if err := m.Check(); err != nil {
		t.Fatal(err)
	}
	d := m.Descriptor()
	if a := d.Annotations; !a.Streaming || !a.Readonly {
		t.Errorf("annotations = %+v", a)
	}
	props, _ := d.OutputSchema["properties"].(map[string]any)
	if props["i"] == nil || props["total"] == nil || d.InputSchema["required"] == nil {
		t.Errorf("schemas = %v, %v", d.InputSchema, d.OutputSchema)
	}
	in := map[string]any{"n": int64(3)}
	got, err := drain(m.Stream(t.Context(), in))
	if err != nil {
		t.Fatal(err)
	}
	want := []module.Chunk{{"i": int64(0)}, {"i": int64(1)}, {"i": int64(2)}, {"total": int64(3)}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("chunks (-want +got):\n%s", diff)
	}
	whole, err := m.Execute(t.Context(), in)
	if diff := cmp.Diff(map[string]any{"i": int64(2), "total": int64(3)}, whole); diff != "" || err != nil {
		t.Errorf("Execute: %v (-want +got):\n%s", err, diff)
	}
	if _, err := drain(m.Stream(t.Context(), map[string]any{"n": "x"})); module.CodeOf(err) != module.CodeInvalidInput {
		t.Errorf("inputs that do not fit: %v", err)
	}
}

func TestStreamFuncWithoutChunks(t *testing.T) {
	m := counter(func(context.Context, int, func(any) error) error { return nil })
	if got, err := drain(m.Stream(t.Context(), nil)); err != nil || got != nil {
		t.Errorf("= %v, %v", got, err)
	}
	if out, err := m.Execute(t.Context(), nil); err != nil || out == nil || len(out) != 0 {
		t.Errorf("Execute = %v, %v; want an empty object", out, err)
	}
	var none func(context.Context, countIn, func(any) error) error
	hasCodeOf(t, module.NewStream[countIn, countAll]("m", "", none).Check(), module.CodeBindingNotCallable)
	hasCodeOf(t, module.NewStream[countIn, []int]("m", "", func(context.Context, countIn, func(any) error) error { return nil }).Check(),
		module.CodeFuncMissingReturnType)
}

func hasCodeOf(t *testing.T, err error, want module.Code) {
	t.Helper()
	if got := module.CodeOf(err); got != want {
		t.Errorf("code %q, want %q (%v)", got, want, err)
	}
}

func TestStreamErrors(t *testing.T) {
	boom := errors.New("boom")
	tests := []struct {
		name   string
		run    func(ctx context.Context, n int, send func(any) error) error
		chunks int
		check  func(err error) bool
	}{
		{"fails after chunks", func(ctx context.Context, n int, send func(any) error) error {
			_ = upTo(ctx, n, send)
			return boom
		}, 3, func(err error) bool { return errors.Is(err, boom) }},
		{"text is no object", func(_ context.Context, _ int, send func(any) error) error {
			_ = send(countPart{1})
			first := send("secret")
			if again := send(countPart{2}); again == nil || again != first {
				return fmt.Errorf("send after a failed send = %v", again) //nolint:errorlint // wrapped it would pass for the one looked for
			}
			return nil // hiding it does not help
		}, 1, notObject(1, "string")},
		{"nil is no object", func(_ context.Context, _ int, send func(any) error) error { return send(nil) }, 0, notObject(0, "null")},
		{"list is no object", func(_ context.Context, _ int, send func(any) error) error { return send([]int{1}) }, 0, notObject(0, "array")},
		{"no json form", func(_ context.Context, _ int, send func(any) error) error {
			return send(map[string]any{"f": func() {}})
		}, 0, func(err error) bool { return module.CodeOf(err) == module.CodeInvalidInput }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := drain(counter(tt.run).Stream(t.Context(), map[string]any{"n": int64(2)}))
			if len(got) != tt.chunks || !tt.check(err) {
				t.Errorf("%d chunks, %v", len(got), err)
			}
		})
	}
}

func notObject(index int64, kind string) func(error) bool {
	return func(err error) bool {
		e := module.AsError(err)
		want := map[string]any{"code": "STREAM_CHUNK_NOT_OBJECT", "chunk_index": index, "actual_type": kind}
		return e != nil && e.Code == module.CodeInvalidInput && cmp.Equal(want, e.Details)
	}
}

func TestStreamEndsWithItsReader(t *testing.T) {
	var sendErr error
	m := counter(func(ctx context.Context, _ int, send func(any) error) error {
		for sendErr == nil {
			sendErr = send(countPart{1})
		}
		return sendErr
	})
	n := 0
	for range m.Stream(t.Context(), nil) {
		if n++; n == 3 {
			break
		}
	}
	if n != 3 || cancel.ReasonOf(sendErr) != cancel.Caller {
		t.Errorf("read %d, send said %v", n, sendErr)
	}

	sendErr, n = nil, 0
	ctx, stop := context.WithCancelCause(t.Context())
	defer stop(nil)
	cause := cancel.Because(cancel.Remote, "ana", "enough")
	for _, err := range m.Stream(ctx, nil) {
		if n++; n == 3 {
			stop(cause)
		}
		if err != nil && !errors.Is(err, cause) {
			t.Errorf("the stream ended with %v", err)
		}
	}
	if n != 4 || !errors.Is(sendErr, cause) {
		t.Errorf("read %d, send said %v, want the cause of its context", n, sendErr)
	}
}

// A goroutine that outlives its stream cannot disturb a reader that has gone on.
func TestSendAfterTheEnd(t *testing.T) {
	var late func(any) error
	m := counter(func(_ context.Context, _ int, send func(any) error) error {
		late = send
		return nil
	})
	if _, err := drain(m.Stream(t.Context(), nil)); err != nil {
		t.Fatal(err)
	}
	if late(countPart{1}) == nil {
		t.Error("a chunk was taken after the end")
	}
}

func TestSendFromManyGoroutines(t *testing.T) {
	m := counter(func(_ context.Context, n int, send func(any) error) error {
		var wg sync.WaitGroup
		for i := range n {
			wg.Go(func() { _ = send(countPart{i}) })
		}
		wg.Wait()
		return nil
	})
	got, err := drain(m.Stream(t.Context(), map[string]any{"n": int64(50)}))
	if err != nil || len(got) != 50 {
		t.Errorf("%d chunks, %v", len(got), err)
	}
}

func TestMerge(t *testing.T) {
	type list = []module.Chunk
	nest := func(levels int, leaf any) any {
		for range levels {
			leaf = map[string]any{"k": leaf}
		}
		return leaf
	}
	tests := []struct {
		name   string
		depth  int
		chunks list
		want   map[string]any
	}{
		{"no chunks", 0, nil, nil},
		{"one", 0, list{{"a": int64(1)}}, obj{"a": int64(1)}},
		{"objects merge", 0, list{{"a": obj{"b": int64(1)}}, {"a": obj{"c": int64(2)}}}, obj{"a": obj{"b": int64(1), "c": int64(2)}}},
		{"lists replace", 0, list{{"a": []any{int64(1), int64(2)}}, {"a": []any{int64(3)}}}, obj{"a": []any{int64(3)}}},
		{"null replaces", 0, list{{"a": obj{"b": int64(1)}}, {"a": nil}}, obj{"a": nil}},
		{"type changes", 0, list{{"a": obj{"b": int64(1)}}, {"a": "x"}, {"a": obj{"c": int64(1)}}}, obj{"a": obj{"c": int64(1)}}},
		{"empty changes nothing", 0, list{{"a": int64(1)}, {}, {"b": int64(2)}}, obj{"a": int64(1), "b": int64(2)}},
		{"empty object stays", 0, list{{"a": obj{}}}, obj{"a": obj{}}},
		{"at the cap the later is taken whole", 2,
			list{{"a": obj{"b": obj{"x": int64(1)}}}, {"a": obj{"b": obj{"y": int64(2)}}}},
			obj{"a": obj{"b": obj{"y": int64(2)}}}},
		{"the default cap", 0,
			list{{"d": nest(31, obj{"x": int64(1)})}, {"d": nest(31, obj{"y": int64(2)})}},
			obj{"d": nest(31, obj{"y": int64(2)})}},
		{"one below it", 0,
			list{{"d": nest(30, obj{"x": int64(1)})}, {"d": nest(30, obj{"y": int64(2)})}},
			obj{"d": nest(30, obj{"x": int64(1), "y": int64(2)})}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m := module.NewMerge(tt.depth)
			for _, c := range tt.chunks {
				m.Add(c)
			}
			if diff := cmp.Diff(tt.want, m.Value()); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// Merging never writes to a chunk, and splitting a stream does not change what it
// comes to.
func TestMergeProperties(t *testing.T) {
	var value func(depth int) *rapid.Generator[any]
	value = func(depth int) *rapid.Generator[any] {
		leaf := rapid.OneOf(rapid.Just[any](nil), rapid.Map(rapid.Int64Range(0, 3), func(n int64) any { return n }))
		if depth == 0 {
			return leaf
		}
		inner := rapid.MapOfN(rapid.SampledFrom([]string{"a", "b", "c"}), value(depth-1), 0, 3)
		return rapid.OneOf(leaf, rapid.Map(inner, func(m map[string]any) any { return m }))
	}
	chunk := rapid.MapOfN(rapid.SampledFrom([]string{"a", "b", "c"}), value(3), 0, 3)
	clone := func(c module.Chunk) module.Chunk { m := module.NewMerge(64); m.Add(c); return m.Value() }
	rapid.Check(t, func(t *rapid.T) {
		chunks := rapid.SliceOfN(chunk, 1, 6).Draw(t, "chunks")
		depth := rapid.IntRange(1, 4).Draw(t, "depth")
		before := make([]module.Chunk, len(chunks))
		for i, c := range chunks {
			before[i] = clone(c)
		}
		all, last := module.NewMerge(depth), chunks[len(chunks)-1]
		for _, c := range chunks {
			all.Add(c)
		}
		if diff := cmp.Diff(before, chunks); diff != "" {
			t.Fatalf("chunks were written to (-want +got):\n%s", diff)
		}
		for k, v := range last {
			got, ok := all.Value()[k]
			if _, isObject := v.(map[string]any); !ok || (!isObject && !cmp.Equal(v, got)) {
				t.Fatalf("the last chunk's %s = %v became %v", k, v, got)
			}
		}
		again := module.NewMerge(depth)
		again.Add(all.Value())
		again.Add(last)
		if diff := cmp.Diff(all.Value(), again.Value()); diff != "" {
			t.Fatalf("merging the last chunk twice changed the value (-want +got):\n%s", diff)
		}
	})
}
