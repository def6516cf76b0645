package main

import (
	"context"
	"errors"
	"log/slog"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/apbus/apbus/bus"
	"github.com/apbus/apbus/executor/registry"
	"github.com/apbus/apbus/loop/plan"
	"github.com/apbus/apbus/module"
	"github.com/apbus/apbus/schema"
)

// discreet hides what its inputs say.
type discreet struct{ module.Module }

func (discreet) SensitiveInputs(inputs map[string]any) []string {
	name, _ := inputs["hide"].(string)
	return []string{name}
}

// The schemas of a module are its owner's if that is this node, else those of the
// catalogue, also while the module is away; what nobody knows is not known.
func TestKnownSchemas(t *testing.T) {
	reg := registry.New(registry.Options{})
	plain := module.New("own.plain", "p", func(context.Context, struct {
		Card string `json:"card" sensitive:"true"`
	}) (struct{}, error) {
		return struct{}{}, nil
	})
	odd := module.New("own.odd", "o", func(context.Context, map[string]any) (struct{}, error) { return struct{}{}, nil })
	for _, m := range []module.Module{plain, discreet{odd}} {
		if err := reg.Register(m); err != nil {
			t.Fatal(err)
		}
	}
	remote := bus.ModuleInfo{Hash: "h1", Descriptor: module.Descriptor{
		ID: "far.pay", InputSchema: map[string]any{"properties": map[string]any{"card": map[string]any{"x-sensitive": true}}}, OutputSchema: map[string]any{},
	}}
	there := true
	k := &knownSchemas{own: reg, compiled: map[string]schemaPair{}, catalogue: func(id string) (bus.ModuleInfo, bool) { return remote, there && id == "far.pay" }}
	redactor, err := schema.NewRedactor(schema.RedactOptions{})
	if err != nil {
		t.Fatal(err)
	}
	shows := func(id string, want map[string]any) {
		t.Helper()
		inputs := map[string]any{"card": "4111", "pin": "0000", "hide": "pin"}
		in, _, known := k.of(id, inputs)
		if known != (want != nil) {
			t.Errorf("%s is known: %v", id, known)
		} else if known {
			if diff := cmp.Diff(want, redactor.Redact(in, inputs)); diff != "" {
				t.Errorf("%s: %s", id, diff)
			}
		}
	}
	const mask = schema.DefaultReplacement
	shows("own.plain", map[string]any{"card": mask, "pin": "0000", "hide": "pin"})
	shows("own.odd", map[string]any{"card": "4111", "pin": mask, "hide": "pin"})
	if _, _, known := k.of("own.odd", nil); known {
		t.Error("it is known what a discreet module hides of any inputs")
	}
	shows("far.pay", map[string]any{"card": mask, "pin": "0000", "hide": "pin"})
	shows("far.none", nil)
	remote.Hash, remote.Descriptor.InputSchema = "h2", map[string]any{"properties": map[string]any{"pin": map[string]any{"x-sensitive": true}}}
	shows("far.pay", map[string]any{"card": "4111", "pin": mask, "hide": "pin"})
	there = false
	shows("far.pay", map[string]any{"card": "4111", "pin": mask, "hide": "pin"})
}

// A run does not fail by its journal, whatever happens there.
func TestAJournalDoesNotPanic(t *testing.T) {
	redactor, err := schema.NewRedactor(schema.RedactOptions{})
	if err != nil {
		t.Fatal(err)
	}
	j := &journal{log: slog.New(slog.DiscardHandler), hide: &plan.Redaction{Redactor: redactor, Schemas: func(string, map[string]any) (in, out *schema.Compiled, known bool) {
		panic("no")
	}}}
	p := &plan.Plan{Nodes: []plan.Node{{ID: "a", Tool: "m.a"}}}
	res, err := plan.Run(t.Context(), p, nil, func(context.Context, string, map[string]any) (map[string]any, error) { return nil, errors.New("no") }, plan.Options{Trace: true})
	j.Ran(p, plan.RunAbout{Plan: "plan.x"}, res, err)
	if of := (*journal)(nil).of(); of != nil {
		t.Error("a node without a journal has one")
	}
}
