package registry

import (
	"maps"

	"github.com/apbus/apbus/module"
	"github.com/apbus/apbus/schema"
)

// Marks is the schema by which the inputs of a call are masked: the input schema,
// and for a module.Discreet one with more marks where these inputs need them.
func (e *Entry) Marks(inputs map[string]any) *schema.Compiled {
	if e.discreet == nil {
		return e.Input
	}
	return e.marks(inputs)
}

func (e *Entry) marks(inputs map[string]any) *schema.Compiled {
	var names []string
	err := guard(module.CodeInternal, e.Descriptor.ID, "naming its secrets", func() error {
		names = e.discreet.SensitiveInputs(inputs)
		return nil
	})
	if err == nil && len(names) == 0 {
		return e.Input
	}
	doc := e.Input.Doc()
	properties, _ := doc["properties"].(map[string]any)
	marked := maps.Clone(properties)
	if marked == nil {
		marked = map[string]any{}
	}
	for _, name := range names {
		property, _ := marked[name].(map[string]any)
		property = maps.Clone(property)
		if property == nil {
			property = map[string]any{}
		}
		property[sensitiveKeyword] = true
		marked[name] = property
	}
	doc["properties"] = marked
	var compiled *schema.Compiled
	if err == nil {
		compiled, err = schema.Compile(doc)
	}
	if err != nil { // rather everything than one secret
		compiled, _ = schema.Compile(map[string]any{"additionalProperties": map[string]any{sensitiveKeyword: true}})
	}
	return compiled
}

const sensitiveKeyword = "x-sensitive"
