package registry

import (
	"context"
	"fmt"
	"reflect"
	"time"

	"github.com/apbus/apbus/module"
	"github.com/apbus/apbus/schema"
)

// emit hands an event over; there may be nobody who wants it.
func (r *Registry) emit(typ, severity, id string, at time.Time, data map[string]any) {
	if r.events != nil {
		r.events(module.Event{Type: typ, ModuleID: id, Severity: severity, At: at.UTC(), Data: data})
	}
}

// emitChange tells that a module came or went, exactly once for each. For an
// ephemeral module it also says who did it (protocol §2.5.1), as the Context in
// ctx knows; the identity is null when there is none.
func (r *Registry) emitChange(ctx context.Context, typ, id string) {
	if r.events == nil {
		return
	}
	data := map[string]any{"module_id": id}
	if module.IsEphemeralID(id) {
		caller, identity := externalCaller, any(nil)
		if c := module.FromContext(ctx); c != nil {
			// Whoever registers from inside a call is the module of that call.
			if chain := c.ChainView(); len(chain) > 0 {
				caller = chain[len(chain)-1]
			} else if c.CallerID() != "" {
				caller = c.CallerID()
			}
			if c.Identity() != nil {
				identity = r.masked(c.Identity())
			}
		}
		data["caller_id"], data["identity"], data["namespace_class"] = caller, identity, ephemeral
	}
	r.emit(typ, module.SeverityInfo, id, time.Now(), data)
}

// masked is an identity without what may not be seen; it is rather left out than
// shown unmasked.
func (r *Registry) masked(i *module.Identity) any {
	redactor := r.redactor
	if redactor == nil {
		var err error
		if redactor, err = schema.NewRedactor(schema.RedactOptions{}); err != nil {
			return nil
		}
	}
	return redactor.Redact(nil, i.Map())
}

const (
	ephemeral      = "ephemeral"
	externalCaller = "@external"
)

// typeName is the bare name of an error's Go type; the package it lives in says
// nothing to an operator of another implementation.
func typeName(err error) string {
	t := reflect.TypeOf(err)
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t.Name() == "" {
		return fmt.Sprintf("%T", err)
	}
	return t.Name()
}

// emitLoadFailed tells that OnLoad refused. The type is the error's code where it
// has one.
func (r *Registry) emitLoadFailed(id string, err error, at time.Time) {
	kind := typeName(err)
	if coded := module.AsError(err); coded != nil {
		kind = string(coded.Code)
	}
	r.emit(module.EventModuleLoadFailed, module.SeverityError, id, at, map[string]any{
		"module_id": id, "callback_name": "on_load", "error_type": kind, "error_message": err.Error(),
		"timestamp": at.UTC().Format(timestampForm),
	})
}
