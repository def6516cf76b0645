package system

import (
	"context"
	"log/slog"
	"runtime/debug"
	"strings"
	"time"

	"github.com/apbus/apbus/module"
)

const (
	externalCaller = "@external"
	maskedAttr     = "<redacted>"
)

// actor is who made a control call, as events and audit entries show it.
type actor struct {
	caller   string
	identity *module.Identity
	trace    string
}

func actorOf(ctx context.Context) actor {
	a := actor{caller: externalCaller}
	if c := module.FromContext(ctx); c != nil {
		a.identity, a.trace = c.Identity(), c.TraceID()
		if c.CallerID() != "" {
			a.caller = c.CallerID()
		}
	}
	return a
}

// entry begins an audit entry.
func (a actor) entry(action, target, reason string) AuditEntry {
	e := AuditEntry{
		At: time.Now().UTC(), Action: action, Target: target, Reason: reason, TraceID: a.trace,
		ActorID: a.caller, ActorType: "module",
	}
	switch {
	case a.identity != nil:
		e.ActorID, e.ActorType = a.identity.ID(), a.identity.Type()
	case a.caller == externalCaller:
		e.ActorType = "unknown"
	}
	return e
}

// sign adds the actor to an event's data. An absent identity is left out, not
// null.
func (a actor) sign(data map[string]any) map[string]any {
	data["caller_id"] = a.caller
	if a.identity == nil {
		return data
	}
	i := a.identity.Map()
	if roles, _ := i["roles"].([]any); len(roles) == 0 {
		delete(i, "roles")
	}
	attrs, _ := i["attrs"].(map[string]any)
	if delete(i, "attrs"); len(attrs) > 0 {
		i["attrs"] = maskAttrs(attrs)
	}
	data["identity"] = i
	return data
}

// maskAttrs masks what may be a credential by its name, at any depth.
func maskAttrs(attrs map[string]any) map[string]any {
	out := make(map[string]any, len(attrs))
	for name, v := range attrs {
		out[name] = maskAttr(name, v)
	}
	return out
}

func maskAttr(name string, v any) any {
	if credential(name) {
		return maskedAttr
	}
	switch x := v.(type) {
	case map[string]any:
		return maskAttrs(x)
	case []any:
		list := make([]any, len(x))
		for i, e := range x {
			list[i] = maskAttr("", e)
		}
		return list
	}
	return v
}

func credential(name string) bool {
	name = strings.ToLower(name)
	for _, word := range []string{"token", "secret", "password", "passwd", "key", "auth", "credential", "cookie", "session", "bearer"} {
		if strings.Contains(name, word) {
			return true
		}
	}
	return false
}

// emit hands an event over; one that nobody takes, or that its taker chokes on,
// stops nothing.
func (m *Modules) emit(typ, severity, moduleID string, data map[string]any) {
	if m.emitTo == nil {
		return
	}
	defer func() {
		if p := recover(); p != nil {
			m.log.Error("event hook panicked", slog.String("event", typ), slog.String("stack", string(debug.Stack())))
		}
	}()
	m.emitTo(module.Event{Type: typ, Severity: severity, ModuleID: moduleID, At: time.Now().UTC(), Data: data})
}

// reasonOf insists on a reason.
func reasonOf(reason string) (string, error) {
	if reason = strings.TrimSpace(reason); reason == "" {
		return "", required("reason")
	}
	return reason, nil
}

func required(name string) error {
	return module.Errorf(module.CodeInvalidInput, "%s is required and must not be empty", name)
}
