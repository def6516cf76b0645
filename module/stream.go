package module

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"reflect"
	"sync"

	"github.com/apbus/apbus/cancel"
	"github.com/apbus/apbus/schema"
)

// Chunk is one part of a stream: an object of the JSON data model. The values of
// a stream's chunks, merged in order (see [Merge]), are the call's output.
type Chunk = map[string]any

// Streamer is a [Module] that can also give its output in parts. Stream must
// yield from the goroutine that ranges over it or take turns, must stop when
// yield returns false, and should stop when ctx is done; context.Cause says why.
// An error ends the stream. A chunk belongs to whoever received it and must not
// be modified after it was yielded. Execute stays mandatory: it is what a plain
// call runs.
type Streamer interface {
	Stream(ctx context.Context, inputs map[string]any) iter.Seq2[Chunk, error]
}

// StreamNotObject is details.code of the GENERAL_INVALID_INPUT that refuses a
// chunk which is no object (decision D-58); details chunk_index and actual_type
// say which one and what it is instead.
const StreamNotObject = "STREAM_CHUNK_NOT_OBJECT"

// StreamFunc is a streaming module made from a Go function by [NewStream].
type StreamFunc struct {
	*Func
	run func(ctx context.Context, inputs map[string]any, send func(any) error) error

	// bindings holds what was learnt of the struct types that were sent, a
	// *schema.Binding by reflect.Type: studying one anew for each chunk would cost
	// more than the chunk.
	bindings sync.Map
}

var (
	_ Module   = (*StreamFunc)(nil)
	_ Streamer = (*StreamFunc)(nil)
	_ Checker  = (*StreamFunc)(nil)
)

// NewStream makes a module that streams. In gives the input schema; Out is the
// whole output, which the merged chunks must fit, and gives the output schema. fn
// passes each chunk, a struct, a map or a pointer to one, to send. The annotation
// streaming is set whatever the options say. Everything else is as in [New].
//
// send hands one chunk over and blocks until the reader takes it, so that a module
// is never more than one chunk ahead of a slow reader; over the bus it may be ahead
// by the reader's window and a few chunks more. It returns nil when the chunk
// was taken, and an error when it was not: the cause of ctx once the call has
// ended, its time is over or the reader has left, or GENERAL_INVALID_INPUT for
// what is no object. After an error every further send fails too; fn should clean
// up and return. send may be called from several goroutines as long as fn has not
// returned; the chunks then arrive in the order of the calls that got through.
//
// A plain call runs fn to its end and returns its merged chunks.
func NewStream[In, Out any](id, description string, fn func(ctx context.Context, in In, send func(chunk any) error) error, opts ...Option) *StreamFunc {
	var unary func(context.Context, In) (Out, error)
	if fn != nil {
		unary = func(context.Context, In) (o Out, err error) { return o, nil } // replaced below
	}
	s := &StreamFunc{Func: New(id, description, unary, opts...)}
	s.desc.Annotations.Streaming = true
	in := bind[In]()
	s.run = func(ctx context.Context, inputs map[string]any, send func(any) error) error {
		v, err := in.decode(inputs)
		if err != nil {
			return err
		}
		return fn(ctx, v, send)
	}
	s.exec = s.whole
	return s
}

// Stream runs the function and yields what it sends.
func (s *StreamFunc) Stream(ctx context.Context, inputs map[string]any) iter.Seq2[Chunk, error] {
	return func(yield func(Chunk, error) bool) {
		o := &outlet{ctx: ctx, form: s.chunkOf, yield: yield}
		// Closed also when fn panics: a goroutine it left behind must not yield.
		defer o.close()
		err := s.run(ctx, inputs, o.send)
		o.finish(err)
	}
}

// whole is Execute: the stream, merged.
func (s *StreamFunc) whole(ctx context.Context, inputs map[string]any) (map[string]any, error) {
	merged := NewMerge(DefaultMergeDepth)
	for chunk, err := range s.Stream(ctx, inputs) {
		if err != nil {
			return nil, err
		}
		merged.Add(chunk)
	}
	if out := merged.Value(); out != nil {
		return out, nil
	}
	return map[string]any{}, nil
}

// outlet is where the function of a stream sends to.
type outlet struct {
	ctx  context.Context
	form func(v any, index int) (Chunk, error)

	mu    sync.Mutex // held while the reader has the chunk
	yield func(Chunk, error) bool
	sent  int
	err   error // why nothing can be sent any more
	left  bool  // the reader has left or knows the error
}

var errStreamOver = errors.New("the stream is over")

func (o *outlet) send(v any) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err != nil {
		return o.err
	}
	if o.ctx.Err() != nil {
		o.err = context.Cause(o.ctx)
		return o.err
	}
	chunk, err := o.form(v, o.sent)
	if err != nil {
		o.err = err
		return err
	}
	if !o.yield(chunk, nil) {
		o.left = true
		if o.err = context.Cause(o.ctx); o.err == nil {
			o.err = cancel.Because(cancel.Caller, "", "the reader of the stream has left")
		}
		return o.err
	}
	o.sent++
	return nil
}

// finish tells the reader how the stream failed: as the function says, or, when it
// says nothing, because of what could not be sent.
func (o *outlet) finish(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if err == nil {
		err = o.err
	}
	if err != nil && !o.left {
		o.left = true
		o.yield(nil, err)
	}
}

func (o *outlet) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err == nil {
		o.err = errStreamOver
	}
}

// chunkOf brings what was sent into the form of a chunk.
func (s *StreamFunc) chunkOf(v any, index int) (Chunk, error) {
	normal, ok := s.encode(v)
	if !ok {
		var err error
		if normal, err = Normalize(v); err != nil {
			return nil, err
		}
	}
	if chunk, ok := normal.(map[string]any); ok {
		return chunk, nil
	}
	return nil, ChunkNotObject(index, normal)
}

// encode brings a struct into the form of a chunk; false leaves it to Normalize, which
// takes everything and tells what is wrong.
func (s *StreamFunc) encode(v any) (normal any, ok bool) {
	from := reflect.ValueOf(v)
	if from.Kind() == reflect.Pointer && !from.IsNil() {
		from = from.Elem()
	}
	if from.Kind() != reflect.Struct {
		return nil, false
	}
	if !from.CanAddr() { // methods of the pointer may make its JSON
		to := reflect.New(from.Type()).Elem()
		to.Set(from)
		from = to
	}
	b, known := s.bindings.Load(from.Type())
	if !known {
		b, _ = s.bindings.LoadOrStore(from.Type(), schema.Bind(from.Type()))
	}
	normal, err := b.(*schema.Binding).Encode(from, schema.MaxDepth)
	return normal, err == nil
}

// ChunkNotObject is the error of a chunk, counted from 0, that is no object; v is
// what it is instead, in the JSON data model. The error does not quote it.
func ChunkNotObject(index int, v any) *Error {
	kind := jsonType(v)
	return Errorf(CodeInvalidInput, "chunk %d of the stream is not an object but %s", index, kind).
		WithDetails(map[string]any{"code": StreamNotObject, "chunk_index": int64(index), "actual_type": kind})
}

// jsonType names the type of a value of the JSON data model, a nil map being null.
func jsonType(v any) string {
	switch v := v.(type) {
	case bool:
		return "boolean"
	case string:
		return "string"
	case int64, uint64, float64:
		return "number"
	case []any:
		return "array"
	case map[string]any:
		if v != nil {
			return "object"
		}
	case nil:
	default:
		return fmt.Sprintf("%T", v)
	}
	return "null"
}
