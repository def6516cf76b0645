package bindings

import (
	"context"
	"errors"
	"iter"
	"reflect"
	"sync/atomic"

	"github.com/apbus/apbus/module"
)

// Module is one binding as a module. Safe for concurrent use.
type Module struct {
	desc module.Descriptor
	run  atomic.Pointer[runner]
	// source is the file whose program text runs in place of the declared one.
	source atomic.Pointer[string]
	file   string
}

var _ module.Module = (*Module)(nil)

func newModule(desc module.Descriptor, run runner, file string) *Module {
	m := &Module{desc: desc, file: file}
	m.run.Store(&run)
	return m
}

// File is where the binding stands.
func (m *Module) File() string { return m.file }

// ID is the module's ID.
func (m *Module) ID() string { return m.desc.ID }

// Descriptor describes the module.
func (m *Module) Descriptor() module.Descriptor { return m.desc }

// Registrable is the module as a registry should get it: one that streams is a
// module.Streamer.
func (m *Module) Registrable() module.Module {
	if m.desc.Annotations.Streaming {
		return streaming{m}
	}
	return m
}

// Adopt makes m run what next runs, from the next call on, when callers would see
// no difference: both have the same descriptor. It reports whether that is so.
func (m *Module) Adopt(next *Module) bool {
	if !reflect.DeepEqual(m.desc, next.desc) {
		return false
	}
	m.run.Store(next.run.Load())
	return true
}

// Same reports whether two modules are declared alike, what they run included.
func (m *Module) Same(other *Module) bool {
	return reflect.DeepEqual(m.desc, other.desc) && reflect.DeepEqual((*m.run.Load()).spec(), (*other.run.Load()).spec())
}

// call is one run.
type call struct {
	ctx    context.Context //nolint:containedctx // a parameter of one call, as in http.Request
	inputs map[string]any
	// These identify the call in logs and to what runs.
	moduleID, callID, traceID string
	traceparent               string
	// source is the program text to run, "" for the declared one.
	source string
}

func (m *Module) begin(ctx context.Context, inputs map[string]any) *call {
	if inputs == nil {
		inputs = map[string]any{}
	}
	c := &call{ctx: ctx, inputs: inputs, moduleID: m.desc.ID}
	if path := m.source.Load(); path != nil {
		c.source = *path
	}
	if mc := module.FromContext(ctx); mc != nil {
		info := mc.Call()
		c.callID, c.traceID = info.ID, mc.TraceID()
		if module.ValidTraceID(c.traceID) {
			tp := module.TraceParent{TraceID: c.traceID, ParentID: module.NewSpanID()}
			if from := info.TraceParent; from != nil && from.TraceID == c.traceID {
				tp.ParentID, tp.Flags = from.ParentID, from.Flags
			}
			c.traceparent = tp.Header()
		}
	}
	return c
}

// Execute runs the command or asks the endpoint once. What a streaming one puts
// out is merged.
func (m *Module) Execute(ctx context.Context, inputs map[string]any) (map[string]any, error) {
	merged, n := module.NewMerge(module.DefaultMergeDepth), 0
	var out map[string]any
	err := (*m.run.Load()).run(m.begin(ctx, inputs), func(chunk map[string]any) error {
		if n++; m.desc.Annotations.Streaming {
			merged.Add(chunk)
		}
		out = chunk
		return nil
	})
	if err != nil {
		return nil, err
	}
	if m.desc.Annotations.Streaming {
		if out = merged.Value(); out == nil {
			out = map[string]any{}
		}
	}
	return out, nil
}

// streaming is a Module that streams.
type streaming struct{ *Module }

var _ module.Streamer = streaming{}

// errLeft ends a run whose reader has left.
var errLeft = errors.New("the reader has left")

// Stream yields each object as it comes.
func (s streaming) Stream(ctx context.Context, inputs map[string]any) iter.Seq2[module.Chunk, error] {
	return func(yield func(module.Chunk, error) bool) {
		left := false
		err := (*s.run.Load()).run(s.begin(ctx, inputs), func(chunk map[string]any) error {
			if left = !yield(chunk, nil); left {
				return errLeft
			}
			return nil
		})
		if err != nil && !left {
			yield(nil, err)
		}
	}
}
