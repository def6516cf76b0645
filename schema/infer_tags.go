package schema

import (
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// applyTags adds the keywords of f's struct tags to doc. Value keywords of a
// list go to its items; annotations always describe the member itself.
func applyTags(doc map[string]any, f field) error {
	target, typ := doc, f.typ
	for typ.Kind() == reflect.Pointer {
		typ = typ.Elem()
	}
	if wrapped, ok := doc["anyOf"].([]any); ok && f.typ.Kind() == reflect.Pointer {
		target = wrapped[0].(map[string]any)
	}
	list, isList := target, false
	if items, ok := target["items"].(map[string]any); ok && (typ.Kind() == reflect.Slice || typ.Kind() == reflect.Array) {
		target, typ, isList = items, typ.Elem(), true
		for typ.Kind() == reflect.Pointer {
			typ = typ.Elem()
		}
	}
	if f.quoted {
		typ = reflect.TypeFor[string]()
	}
	for _, k := range []string{"format", "pattern"} {
		if v, ok := f.tag.Lookup(k); ok {
			target[k] = v
		}
	}
	for _, k := range []string{"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"} {
		if v, ok := f.tag.Lookup(k); ok {
			n, err := number(v)
			if err != nil {
				return fmt.Errorf("tag %s: %w", k, err)
			}
			target[k] = n
		}
	}
	if err := counts(target, f.tag, "minLength", "maxLength"); err != nil {
		return err
	}
	if err := counts(list, f.tag, "minItems", "maxItems", "minProperties", "maxProperties"); err != nil {
		return err
	}
	if v, ok := f.tag.Lookup("enum"); ok {
		values, err := enumValues(v, typ)
		if err != nil {
			return err
		}
		if types, ok := target["type"].([]any); ok && slices.Contains(types, any("null")) {
			values = append(values, nil)
		}
		target["enum"] = values
	}
	if v, ok := f.tag.Lookup("default"); ok {
		d, err := literal(v, typ, isList)
		if err != nil {
			return fmt.Errorf("tag default: %w", err)
		}
		doc["default"] = d
	}
	for _, k := range []string{"description", "title"} {
		if v, ok := f.tag.Lookup(k); ok {
			doc[k] = v
		}
	}
	return flags(doc, list, f.tag)
}

func counts(doc map[string]any, tag reflect.StructTag, keywords ...string) error {
	for _, k := range keywords {
		v, ok := tag.Lookup(k)
		if !ok {
			continue
		}
		n, err := strconv.ParseUint(v, 10, 31)
		if err != nil {
			return fmt.Errorf("tag %s: %w", k, err)
		}
		doc[k] = int64(n)
	}
	return nil
}

func flags(doc, list map[string]any, tag reflect.StructTag) error {
	for _, flag := range []struct {
		tag, keyword string
		doc          map[string]any
	}{
		{"sensitive", "x-sensitive", doc},
		{"deprecated", "deprecated", doc},
		{"uniqueItems", "uniqueItems", list},
	} {
		v, ok := tag.Lookup(flag.tag)
		if !ok {
			continue
		}
		on, err := strconv.ParseBool(v)
		if err != nil {
			return fmt.Errorf("tag %s: %w", flag.tag, err)
		}
		if on {
			flag.doc[flag.keyword] = true
		}
	}
	return nil
}

func isRequired(f field) (bool, error) {
	v, ok := f.tag.Lookup("required")
	if !ok {
		return !f.optional(), nil
	}
	need, err := strconv.ParseBool(v)
	if err != nil {
		return false, fmt.Errorf("tag required: %w", err)
	}
	return need, nil
}

func enumValues(list string, t reflect.Type) ([]any, error) {
	var out []any
	for item := range strings.SplitSeq(list, ",") {
		v, err := literal(strings.TrimSpace(item), t, false)
		if err != nil {
			return nil, fmt.Errorf("tag enum: %w", err)
		}
		out = append(out, v)
	}
	return out, nil
}

// literal reads the text of a tag as a value of t: strings as they are, all else
// as JSON. An array's own default is always JSON.
func literal(text string, t reflect.Type, asList bool) (any, error) {
	if !asList && (t.Kind() == reflect.String || hasOwnForm(t) || isBytes(t)) {
		return text, nil
	}
	v, err := decodeJSON([]byte(text))
	if err != nil {
		return nil, err
	}
	return Normalize(v)
}
