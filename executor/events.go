package executor

import (
	"log/slog"
	"runtime/debug"
	"time"

	"github.com/apbus/apbus/module"
)

// emit hands an event of this call to whoever was given with [WithEvents]. data
// belongs to the event; the module and the trace are added.
func (p *Pipeline) emit(typ, severity string, data map[string]any) {
	if p.x.events == nil {
		return
	}
	defer func() {
		if v := recover(); v != nil {
			p.x.log.LogAttrs(p.ctx, levelError, "event hook panicked",
				p.attrs(slog.String("event", typ), slog.String("stack", string(debug.Stack())))...)
		}
	}()
	data["module_id"], data["trace_id"] = p.moduleID, p.mctx.TraceID()
	p.x.events(module.Event{Type: typ, ModuleID: p.moduleID, Severity: severity, At: time.Now().UTC(), Data: data})
}

// nullable is s, or null for an empty one.
func nullable(s string) any {
	if s == "" {
		return nil
	}
	return s
}
