package registry

import (
	"context"
	"errors"
	"fmt"
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
}

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
	if l, ok := m.(module.Loader); ok {
		if err := load(ctx, l, id); err != nil {
			r.unreserve(id)
			at := time.Now()
			r.log.LogAttrs(ctx, levelError, "module load failed",
				moduleAttr(id), causeAttr(err), timeAttr(at))
			r.emitLoadFailed(id, err, at)
			return err
		}
	}
	r.publish(e)
	r.changed()
	r.emitChange(ctx, module.EventModuleRegistered, id)
	return nil
}

// prepare makes the checks that concern the module alone, before those that
// concern the others (decision D-86).
func (r *Registry) prepare(m module.Module, d Declaration, internal bool) (*Entry, error) {
	desc := m.Descriptor()
	if err := module.ValidateID(desc.ID); err != nil {
		return nil, err
	}
	isEphemeral := module.FirstSegment(desc.ID) == ephemeral
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
	e := &Entry{Module: m, Descriptor: &desc, idle: make(chan struct{})}
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

func load(ctx context.Context, l module.Loader, id string) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = module.Wrap(module.CodeModuleLoadError, &panicError{debug.Stack()},
				fmt.Sprintf("module %s panicked while loading", id))
		}
	}()
	return l.OnLoad(ctx)
}

// panicError keeps the stack for the log. The value of the panic is dropped,
// since it may hold anything.
type panicError struct{ stack []byte }

func (p *panicError) Error() string { return "panic" }
