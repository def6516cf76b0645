package module

import (
	"context"
	"math"
	"time"

	"github.com/apbus/apbus/schema"
)

// Module is what a registry holds and an executor runs. Execute may be called
// from many goroutines at once. It must not modify inputs, and it should return
// as soon as it can once ctx is done; context.Cause says why. A nil output is
// MODULE_EXECUTE_ERROR.
//
// A module may also be a [Previewer], a [Preflighter], a [Loader], an
// [Unloader], a [Checker].
type Module interface {
	Descriptor() Descriptor
	Execute(ctx context.Context, inputs map[string]any) (map[string]any, error)
}

// Loader is called once before the module becomes visible; its error stops the
// registration.
type Loader interface {
	OnLoad(ctx context.Context) error
}

// Unloader is called once after the module became invisible and its calls have
// ended or run out of time.
type Unloader interface {
	OnUnload(ctx context.Context) error
}

// Checker is a module that may know at registration that it cannot work, such
// as a typed module whose Go types have no schema.
type Checker interface{ Check() error }

// Descriptor describes a module to callers (protocol §5.2). It is a value;
// its maps and slices must not be modified once a registry has it.
type Descriptor struct {
	ID            string
	Name          string
	Description   string
	Documentation string
	Version       string // "1.0.0" when empty
	Tags          []string
	// InputSchema and OutputSchema are JSON Schema documents, draft 2020-12.
	InputSchema, OutputSchema map[string]any
	Annotations               Annotations
	Examples                  []Example
	Metadata                  map[string]any
	// Timeout is the module's own limit: nil means the executor's default, zero
	// none, negative is refused at the call with GENERAL_INVALID_INPUT. On the
	// wire it is resources.timeout in milliseconds, rounded away from zero.
	Timeout *time.Duration
}

// Example is one sample call. Title and Inputs are required.
type Example struct {
	Title       string
	Inputs      map[string]any
	Output      map[string]any
	Description string
}

// DefaultVersion is the version of a module that declares none.
const DefaultVersion = "1.0.0"

// EffectiveVersion returns the version, [DefaultVersion] when none is declared.
func (d Descriptor) EffectiveVersion() string {
	if d.Version == "" {
		return DefaultVersion
	}
	return d.Version
}

// Map returns the wire form.
func (d Descriptor) Map() map[string]any {
	tags := make([]any, len(d.Tags))
	for i, t := range d.Tags {
		tags[i] = t
	}
	examples := []any{}
	for _, e := range d.Examples {
		m := map[string]any{"title": e.Title, "inputs": orEmpty(e.Inputs)}
		if e.Output != nil {
			m["output"] = e.Output
		}
		if e.Description != "" {
			m["description"] = e.Description
		}
		examples = append(examples, m)
	}
	m := map[string]any{
		"module_id": d.ID, "description": d.Description, "version": d.EffectiveVersion(), "tags": tags,
		"input_schema": orEmpty(d.InputSchema), "output_schema": orEmpty(d.OutputSchema),
		"annotations": d.Annotations.Map(), "examples": examples, "metadata": orEmpty(d.Metadata),
		"name": nullable(d.Name), "documentation": nullable(d.Documentation),
	}
	if d.Timeout != nil {
		m["resources"] = map[string]any{"timeout": wireTimeout(*d.Timeout)}
	}
	return m
}

// wireTimeout is d in milliseconds, away from zero, which means no limit.
func wireTimeout(d time.Duration) int64 {
	ms := d.Milliseconds()
	switch rest := d % time.Millisecond; {
	case rest > 0:
		ms++
	case rest < 0:
		ms--
	}
	return ms
}

func orEmpty(m map[string]any) map[string]any {
	if m == nil {
		return map[string]any{}
	}
	return m
}

func nullable(s string) any {
	if s == "" {
		return nil
	}
	return s
}

// Hash identifies the descriptor by content: lower-case hex SHA-256 of its
// canonical JSON, the same on both sides of a hop; "" when something in it has no
// JSON form.
func (d Descriptor) Hash() string { return schema.ContentHash(d.Map()) }

// DescriptorFromMap reads the wire form. An ill-formed ID is refused with
// INVALID_MODULE_ID; unknown keys are ignored; an absent or malformed optional
// field keeps its default.
func DescriptorFromMap(m map[string]any) (Descriptor, error) {
	text := func(k string) string { s, _ := m[k].(string); return s }
	object := func(k string) map[string]any { o, _ := m[k].(map[string]any); return o }
	d := Descriptor{
		ID: text("module_id"), Name: text("name"), Description: text("description"),
		Documentation: text("documentation"), Version: text("version"), Tags: stringList(m["tags"]),
		InputSchema: object("input_schema"), OutputSchema: object("output_schema"),
		Annotations: AnnotationsFromMap(object("annotations")), Metadata: object("metadata"),
	}
	if err := ValidateID(d.ID); err != nil {
		return Descriptor{}, err
	}
	if ms, ok := wholeNumber(object("resources")["timeout"]); ok {
		const most = math.MaxInt64 / int64(time.Millisecond)
		t := time.Duration(min(max(ms, -most), most)) * time.Millisecond
		d.Timeout = &t
	}
	list, _ := m["examples"].([]any)
	for _, item := range list {
		em, ok := item.(map[string]any)
		if !ok {
			continue
		}
		var e Example
		e.Title, _ = em["title"].(string)
		e.Inputs, _ = em["inputs"].(map[string]any)
		e.Output, _ = em["output"].(map[string]any)
		e.Description, _ = em["description"].(string)
		d.Examples = append(d.Examples, e)
	}
	return d, nil
}
