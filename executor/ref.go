package executor

import (
	"context"
	"fmt"
	"log/slog"
	"reflect"
	"runtime/debug"
	"slices"

	"github.com/apbus/apbus/executor/registry"
	"github.com/apbus/apbus/module"
)

// callRef is what a goroutine that may be abandoned knows of its call. It is a
// copy: the pipeline goes on without it.
type callRef struct {
	x        *Executor
	moduleID string
	mctx     *module.Context
	entry    *registry.Entry
	raw      map[string]any // the inputs as they came
	inputs   map[string]any
}

func (p *Pipeline) ref() callRef {
	return callRef{x: p.x, moduleID: p.moduleID, mctx: p.mctx, entry: p.entry, raw: p.raw, inputs: p.inputs}
}

// attrs are the fixed log keys of the call.
func (r *callRef) attrs(more ...slog.Attr) []slog.Attr {
	attrs := append(make([]slog.Attr, 0, 3+len(more)), moduleAttr(r.moduleID))
	if r.mctx != nil {
		attrs = append(attrs, slog.String("trace_id", r.mctx.TraceID()))
		if id := r.mctx.Call().ID; id != "" {
			attrs = append(attrs, slog.String("call_id", id))
		}
	}
	return append(attrs, more...)
}

// secrets lists how the sensitive values of the call's inputs read in a text. It
// walks the inputs, so only failures and introspection pay for it.
func (r *callRef) secrets() []string {
	if r.entry == nil {
		return nil
	}
	list := r.x.redactor.Values(r.entry.Marks(r.raw), r.raw)
	if !sameMap(r.inputs, r.raw) {
		for _, secret := range r.x.redactor.Values(r.entry.Marks(r.inputs), r.inputs) {
			if !slices.Contains(list, secret) {
				list = append(list, secret)
			}
		}
	}
	return list
}

// sameMap reports whether a and b are one map, not merely equal.
func sameMap(a, b map[string]any) bool {
	return reflect.ValueOf(a).UnsafePointer() == reflect.ValueOf(b).UnsafePointer()
}

// panicked logs the stack and keeps both it and the value out of the error.
func (r *callRef) panicked(ctx context.Context, where string, v any, code module.Code) *module.Error {
	r.x.log.LogAttrs(ctx, levelError, "call panicked", r.attrs(
		slog.String("step", where),
		slog.String("panic", r.x.redactor.Scrub(fmt.Sprint(v), r.secrets())),
		slog.String("stack", string(debug.Stack())))...)
	if code == module.CodeModuleExecuteError {
		return module.Errorf(code, "module %s panicked", r.moduleID)
	}
	return module.Errorf(code, "step %s panicked", where)
}

func moduleAttr(id string) slog.Attr { return slog.String("module_id", id) }
