package schema

import (
	"errors"
	"fmt"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// Codes of a *ValidationError.
const (
	CodeValidationError = "SCHEMA_VALIDATION_ERROR"
	CodeUnionNoMatch    = "SCHEMA_UNION_NO_MATCH"  // anyOf or oneOf, and no branch fits
	CodeUnionAmbiguous  = "SCHEMA_UNION_AMBIGUOUS" // oneOf, and more than one branch fits
)

// MaxViolations is how many violations one error lists at most.
const MaxViolations = 100

// Violation is one check that failed.
type Violation struct {
	// Path is the RFC 6901 pointer to the value that failed, "" for the root. A
	// missing or superfluous property is located at the object concerned.
	Path string `json:"path"`
	// Keyword is the JSON Schema keyword, as the schema spells it.
	Keyword string `json:"keyword"`
	// Message says what was expected. It never quotes the value.
	Message string `json:"message"`
}

// ValidationError lists what is wrong with a value, sorted by path and keyword.
// Code is a union code when unions are all that failed, and
// SCHEMA_VALIDATION_ERROR otherwise.
type ValidationError struct {
	Code       string
	Violations []Violation
}

// Error lists where the value breaks which keyword, and never the value.
func (e *ValidationError) Error() string {
	if len(e.Violations) == 0 {
		return "value does not fit its schema"
	}
	var b strings.Builder
	b.WriteString("value does not fit its schema: ")
	for i, v := range e.Violations[:min(3, len(e.Violations))] {
		if i > 0 {
			b.WriteString("; ")
		}
		if v.Path != "" {
			b.WriteString(v.Path + ": ")
		}
		b.WriteString(v.Message)
	}
	if n := len(e.Violations) - 3; n > 0 {
		fmt.Fprintf(&b, " (and %d more)", n)
	}
	return b.String()
}

const (
	// fastSteps bounds the quick check; running out of it only means asking the
	// library.
	fastSteps = 1 << 22
	// librarySteps bounds what the library may be asked to evaluate, next to
	// stepsPerNode for each element of the value.
	librarySteps = 1 << 18
	stepsPerNode = 16
)

// Validate returns nil when v fits the schema, and otherwise a *ValidationError.
// v is only read. Go types outside the value model are judged by their
// normalised form (see [Normalize]); a value without one fails with keyword
// "type". Parts of v that no keyword speaks about are not inspected.
//
// A value that fits is accepted without conversion and, for common schemas,
// without allocation. A recursive schema with several branches can multiply the
// work by the depth of the value; where that exceeds a fixed bound the value is
// refused with keyword "$ref".
func (c *Compiled) Validate(v any) error {
	if c == nil || c.root == nil {
		return nil
	}
	if c.fast != nil {
		j := judge{left: fastSteps}
		switch j.value(c.fast, v, 0) {
		case fits:
			return nil
		case unsure:
			// Perhaps only because of a Go type outside the value model.
			return c.explain(v, j.left > 0)
		}
	}
	return c.explain(v, false)
}

// explain asks the library, which has the last word on everything the quick
// check did not accept; again tries that check once more on the normalised value.
func (c *Compiled) explain(v any, again bool) error {
	n := newNormalizer(maxValueNodes)
	nv, err := n.value(v, 0)
	switch {
	case errors.Is(err, errTooDeep):
		return single("type", errTooDeep.Error())
	case errors.Is(err, errTooLarge):
		return single("type", errTooLarge.Error())
	case err != nil:
		// Not err itself: a type's own MarshalJSON may quote the value.
		return single("type", "value has no JSON form")
	}
	if again {
		j := judge{left: fastSteps}
		if j.value(c.fast, nv, 0) == fits {
			return nil
		}
	}
	a := allowance{left: librarySteps + stepsPerNode*(maxValueNodes-n.left)}
	if !a.covers(c.root, nv) {
		return single("$ref", "value is nested too deeply for the branches of its recursive schema")
	}
	return c.ask(nv)
}

func (c *Compiled) ask(v any) (err error) {
	defer func() {
		if p := recover(); p != nil {
			// Dynamic references that loop make the library slice out of range
			// while it describes the loop.
			err = single("$ref", "references loop without descending into the data")
		}
	}()
	err = c.root.Validate(v)
	if err == nil {
		return nil
	}
	var ve *jsonschema.ValidationError
	if !errors.As(err, &ve) {
		return single("type", "value does not fit its schema")
	}
	var r reporter
	r.visit(ve)
	return r.result()
}

func single(keyword, message string) *ValidationError {
	return &ValidationError{Code: CodeValidationError, Violations: []Violation{{Keyword: keyword, Message: message}}}
}

// allowance counts the evaluations the library would make, every branch taken.
type allowance struct{ left int }

func (a *allowance) covers(s *jsonschema.Schema, v any) bool {
	if a.left--; a.left < 0 {
		return false
	}
	for _, next := range inPlace(s) {
		if !a.covers(next, v) {
			return false
		}
	}
	switch v := v.(type) {
	case map[string]any:
		for name, e := range v {
			if !a.coversMember(s, name, e) {
				return false
			}
		}
	case []any:
		for i, e := range v {
			if !a.coversItem(s, i, e) {
				return false
			}
		}
	}
	return true
}

func (a *allowance) coversMember(s *jsonschema.Schema, name string, v any) bool {
	if sub := s.Properties[name]; sub != nil && !a.covers(sub, v) {
		return false
	}
	for re, sub := range s.PatternProperties {
		if re.MatchString(name) && !a.covers(sub, v) {
			return false
		}
	}
	if sub, ok := s.AdditionalProperties.(*jsonschema.Schema); ok && !a.covers(sub, v) {
		return false
	}
	return s.UnevaluatedProperties == nil || a.covers(s.UnevaluatedProperties, v)
}

func (a *allowance) coversItem(s *jsonschema.Schema, i int, v any) bool {
	for _, sub := range []*jsonschema.Schema{s.Items2020, s.Contains, s.UnevaluatedItems} {
		if sub != nil && !a.covers(sub, v) {
			return false
		}
	}
	if i < len(s.PrefixItems) && !a.covers(s.PrefixItems[i], v) {
		return false
	}
	switch items := s.Items.(type) {
	case *jsonschema.Schema:
		return a.covers(items, v)
	case []*jsonschema.Schema:
		if i < len(items) && !a.covers(items[i], v) {
			return false
		}
	}
	if sub, ok := s.AdditionalItems.(*jsonschema.Schema); ok {
		return a.covers(sub, v)
	}
	return true
}
