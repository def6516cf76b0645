// Package schema owns what Apbus knows about JSON Schema: inferring a schema
// from Go types, compiling one once, validating values against it, masking
// what it marks as sensitive, strict conversion and export, canonical JSON and
// content hashes, and the two wildcard matchers that share a home with
// redaction. It does not own modules, errors on the wire or configuration:
// callers turn *ValidationError and *ParseError into their own coded errors.
//
// # Value model
//
// Values are the JSON data model in Go: nil, bool, int64, uint64 (only above
// math.MaxInt64), float64, string, []any and map[string]any. Integers keep 64
// bits; 1.0 is a float64 and stays one, and still counts as an integer where a
// schema asks for one, as JSON Schema demands. [Normalize] brings any other Go
// value into this model; [Compiled.Validate] and [Redactor.Redact] do so by
// themselves where they meet one.
//
// # Validation
//
// Documents are draft 2020-12 unless $schema names an older draft. There is no
// coercion, format and content keywords are annotations, references outside
// the document are refused, and a pattern that cannot be enforced is an error
// when the schema is compiled, never silence. Patterns are ECMA-262
// approximated by RE2: look-around and back-references are refused.
//
// Messages never quote the value that failed. A violation's path does name the
// properties that lead to it.
//
// # Hostile input
//
// Schemas and values may come from other processes, so both are bounded:
// nesting ([MaxDepth]), subschemas, reference hops, and the work one
// validation may cost even where a recursive schema would multiply it.
//
// # Concurrency
//
// [Compiled], [Redactor] and [Cache] are safe for concurrent use. Functions
// that take documents or values read them only, and never keep them.
package schema
