package schema

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// maxOddRefs bounds references to places that are no schema by themselves, such
// as "#/components/x". The library copies its whole index for each of them.
const maxOddRefs = 256

// intake prepares a document for the library, before anything quadratic runs.
type intake struct {
	root        map[string]any
	slashIsRoot bool // no property has the empty name, so "#/" means the document
	schemas     int
	oddRefs     map[string]bool
}

func takeIn(doc map[string]any) error {
	_, emptyName := doc[""]
	in := &intake{root: doc, slashIsRoot: !emptyName, oddRefs: map[string]bool{}}
	in.schema(doc)
	switch {
	case in.schemas > MaxSubschemas:
		return &ParseError{Code: CodeMaxDepthExceeded, Message: fmt.Sprintf("more than %d subschemas", MaxSubschemas)}
	case len(in.oddRefs) > maxOddRefs:
		return &ParseError{Code: CodeMaxDepthExceeded, Message: fmt.Sprintf("more than %d references to places outside $defs", maxOddRefs)}
	}
	return nil
}

// schema rewrites what the library and the protocol read differently: "#/" is the
// document itself, and counts beyond the machine's int stay huge.
func (in *intake) schema(doc map[string]any) {
	if in.schemas++; in.schemas > MaxSubschemas {
		return
	}
	for _, k := range []string{"minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties", "minContains", "maxContains"} {
		switch n := doc[k].(type) {
		case int64:
			doc[k] = min(n, math.MaxInt32)
		case uint64:
			doc[k] = int64(math.MaxInt32)
		case float64:
			if n > math.MaxInt32 {
				doc[k] = int64(math.MaxInt32)
			}
		}
	}
	if ref, ok := doc["$ref"].(string); ok {
		if ref == "#/" && in.slashIsRoot {
			doc["$ref"] = "#"
		} else if path, ok := strings.CutPrefix(ref, "#/"); ok && !in.isPlaced(path) {
			in.oddRefs[ref] = true
		}
	}
	for sub := range subschemas(doc) {
		in.schema(sub)
	}
}

// isPlaced reports whether path leads from the root to a schema through keywords
// alone.
func (in *intake) isPlaced(path string) bool {
	var at any = in.root
	toks := strings.Split(path, "/")
	for i := 0; i < len(toks); i++ {
		doc, ok := at.(map[string]any)
		if !ok {
			return false
		}
		sh := keywordShape(toks[i])
		at = doc[toks[i]]
		_, isList := at.([]any)
		switch {
		case sh == holdsSchema, sh == holdsEither && !isList:
			continue
		case sh == holdsData:
			return false
		}
		if i++; i == len(toks) {
			return false
		}
		switch v := at.(type) {
		case map[string]any:
			at = v[unescapePointer(toks[i])]
		case []any:
			n, err := strconv.Atoi(toks[i])
			if err != nil || n < 0 || n >= len(v) {
				return false
			}
			at = v[n]
		default:
			return false
		}
	}
	return true
}
