package registry

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"time"

	"github.com/apbus/apbus/module"
	"github.com/apbus/apbus/schema"
)

// Declaration is what stands beside a module without being part of it, such as
// its metadata file.
type Declaration struct {
	// Annotations unite with the module's own in requires_approval and
	// destructive, where a declared false never cancels a true; every other
	// annotation comes from the module (decisions D-96, D-125).
	Annotations module.Annotations
	// Factory makes the module's successor when it is reloaded. Without one the
	// module succeeds itself: its hooks run and its descriptor is read anew.
	Factory Factory
	// Source is where the module's code comes from, as shown to operators; "" is
	// unknown.
	Source string
}

// Factory makes a module. It stands for an entry point, since a Go program does
// not load code at run time.
type Factory func(ctx context.Context) (module.Module, error)

// Register admits a module. The errors, in the order of the checks:
// INVALID_MODULE_ID for an ID that is malformed or begins with a reserved word
// (ephemeral excepted), the module's own complaint, STREAMING_INTERFACE_MISMATCH
// for one that is said to stream and is no module.Streamer, SCHEMA_PARSE_ERROR and its
// relatives for a schema that does not compile, GENERAL_INVALID_INPUT when
// [Options].Validate refuses, DUPLICATE_MODULE_ID when the ID is taken or being
// loaded or unloaded, and the unchanged error of OnLoad.
func (r *Registry) Register(m module.Module) error {
	return r.register(context.Background(), m, Declaration{}, false)
}

// RegisterDeclared is [Registry.Register] with a declaration and a context for
// OnLoad.
func (r *Registry) RegisterDeclared(ctx context.Context, m module.Module, d Declaration) error {
	return r.register(ctx, m, d, false)
}

// RegisterInternal admits a module of the framework, whose ID may begin with a
// reserved word, ephemeral excepted.
func (r *Registry) RegisterInternal(m module.Module) error {
	return r.register(context.Background(), m, Declaration{}, true)
}

func (r *Registry) register(ctx context.Context, m module.Module, d Declaration, internal bool) error {
	if m == nil {
		return module.Errorf(module.CodeInvalidInput, "register: module is nil")
	}
	e, err := r.prepare(m, d, internal)
	if err != nil {
		return err
	}
	id := e.Descriptor.ID
	if err := r.reserve(id); err != nil {
		return err
	}
	if err := r.load(ctx, e); err != nil {
		r.unreserve(id)
		return err
	}
	if module.IsEphemeralID(id) && !e.Descriptor.Annotations.RequiresApproval {
		r.log.LogAttrs(ctx, slog.LevelWarn, "an ephemeral module does not require approval", moduleAttr(id))
	}
	r.show(ctx, e)
	return nil
}

// show makes a loaded module visible and tells of it.
func (r *Registry) show(ctx context.Context, e *Entry) {
	r.publish(e)
	r.changed()
	r.call(CallbackRegister, e)
	r.emitChange(ctx, module.EventModuleRegistered, e.Descriptor.ID)
}

// prepare makes the checks that concern the module alone, before those that
// concern the others (decision D-86).
func (r *Registry) prepare(m module.Module, d Declaration, internal bool) (*Entry, error) {
	desc := m.Descriptor()
	if err := module.ValidateID(desc.ID); err != nil {
		return nil, err
	}
	isEphemeral := module.IsEphemeralID(desc.ID)
	switch {
	case internal && isEphemeral:
		return nil, module.Errorf(module.CodeInvalidModuleID, "module id %s: ephemeral modules are not internal", desc.ID)
	case !internal && !isEphemeral && module.IsReservedID(desc.ID):
		return nil, module.Errorf(module.CodeInvalidModuleID, "module id %s begins with a reserved word", desc.ID)
	}
	if c, ok := m.(module.Checker); ok {
		if err := c.Check(); err != nil {
			return nil, err
		}
	}
	if err := checkStreaming(m, &desc); err != nil {
		return nil, err
	}
	desc.Annotations.RequiresApproval = desc.Annotations.RequiresApproval || d.Annotations.RequiresApproval
	desc.Annotations.Destructive = desc.Annotations.Destructive || d.Annotations.Destructive
	e := &Entry{Module: m, Descriptor: &desc, Source: d.Source, declared: d, internal: internal, idle: make(chan struct{})}
	var err error
	if e.Input, err = r.compile(desc.ID, "input", desc.InputSchema); err != nil {
		return nil, err
	}
	if e.Output, err = r.compile(desc.ID, "output", desc.OutputSchema); err != nil {
		return nil, err
	}
	e.Previewer, _ = m.(module.Previewer)
	e.Preflighter, _ = m.(module.Preflighter)
	e.Streamer, _ = m.(module.Streamer)
	e.discreet, _ = m.(module.Discreet)
	if i, ok := m.(module.Inliner); ok {
		e.inline.Store(i.RunsInline())
	}
	if r.validate != nil {
		if err := r.validate(m); err != nil {
			return nil, module.Errorf(module.CodeInvalidInput, "module %s was refused: %w", desc.ID, err)
		}
	}
	return e, nil
}

func (r *Registry) compile(id, which string, doc map[string]any) (*schema.Compiled, error) {
	c, err := r.schemas.Compile(doc)
	if err == nil {
		return c, nil
	}
	code := module.CodeSchemaParse
	var details map[string]any
	if pe, ok := errors.AsType[*schema.ParseError](err); ok {
		code = module.Code(pe.Code)
		if len(pe.RefPath) > 0 {
			path := make([]any, len(pe.RefPath))
			for i, p := range pe.RefPath {
				path[i] = p
			}
			details = map[string]any{"ref_path": path}
		}
	}
	return nil, module.Errorf(code, "module %s: %s schema: %w", id, which, err).WithDetails(details)
}

func (r *Registry) reserve(id string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, inFlight := r.reserved[id]
	if _, visible := r.visible.Load(id); visible || inFlight {
		return module.Errorf(module.CodeDuplicateModuleID, "module %s is registered already", id).
			WithDetails(map[string]any{"module_id": id})
	}
	r.reserved[id] = struct{}{}
	return nil
}

func (r *Registry) unreserve(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.reserved, id)
}

func (r *Registry) publish(e *Entry) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.reserved, e.Descriptor.ID)
	r.visible.Store(e.Descriptor.ID, e)
	r.visibleN++
}

// load runs OnLoad, where there is one, and tells of its failure.
func (r *Registry) load(ctx context.Context, e *Entry) error {
	l, ok := e.Module.(module.Loader)
	if !ok {
		return nil
	}
	id := e.Descriptor.ID
	err := guard(module.CodeModuleLoadError, id, "loading", func() error { return l.OnLoad(ctx) })
	if err != nil {
		at := time.Now()
		r.log.LogAttrs(ctx, levelError, "module load failed", moduleAttr(id), causeAttr(err), timeAttr(at))
		r.emitLoadFailed(id, err, at)
	}
	return err
}

// guard runs a hook of a module and turns a panic into an error.
func guard(code module.Code, id, what string, hook func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = module.Wrap(code, &panicError{debug.Stack()}, fmt.Sprintf("module %s panicked while %s", id, what))
		}
	}()
	return hook()
}

// panicError keeps the stack for the log. The value of the panic is dropped,
// since it may hold anything.
type panicError struct{ stack []byte }

func (p *panicError) Error() string { return "panic" }
