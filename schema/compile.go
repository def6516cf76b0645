package schema

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// Codes of a *ParseError.
const (
	CodeParseError       = "SCHEMA_PARSE_ERROR"        // not a schema, or a keyword that cannot be enforced
	CodeCircularRef      = "SCHEMA_CIRCULAR_REF"       // references that loop without consuming any data
	CodeNotFound         = "SCHEMA_NOT_FOUND"          // a reference to nothing, or outside the document
	CodeMaxDepthExceeded = "SCHEMA_MAX_DEPTH_EXCEEDED" // nesting, reference hops or cost beyond the limits
)

const (
	// MaxRefHops is how many references may follow each other at one place of the
	// data (schema.max_ref_depth).
	MaxRefHops = 32
	// MaxSubschemas bounds the schemas of one document.
	MaxSubschemas = 5_000
	// maxDocNodes bounds the JSON values of one document.
	maxDocNodes = 200_000
	// docURL is the base of references; it is never loaded from anywhere.
	docURL = "apbus:///schema"
)

// ParseError says why a document is not a usable schema. Schemas are not secret,
// so the message may quote the document.
type ParseError struct {
	Code    string
	Message string
	// RefPath is the loop of references, for CodeCircularRef.
	RefPath []string
	Err     error
}

// Error says what is wrong with the document.
func (e *ParseError) Error() string { return "compile schema: " + e.Message }

// Unwrap returns the cause, nil when there is none.
func (e *ParseError) Unwrap() error { return e.Err }

// Compiled is a schema ready to validate and redact. It is immutable and safe for
// concurrent use; a nil *Compiled accepts everything and marks nothing.
type Compiled struct {
	doc   map[string]any
	root  *jsonschema.Schema // nil accepts everything
	fast  *rule              // nil when only the library can judge
	marks markSet            // nil when nothing is marked sensitive
}

// Compile checks doc and prepares it. The document is copied: later changes to
// doc have no effect. Values of Go types outside the value model ([]string for
// required, typed maps, structs) are accepted. A nil or empty document accepts
// every value. format, contentEncoding and contentMediaType never fail a value.
//
// The error is a *ParseError: SCHEMA_NOT_FOUND for a reference that leads
// nowhere or out of the document, SCHEMA_CIRCULAR_REF for references that loop
// without descending into the data, SCHEMA_MAX_DEPTH_EXCEEDED beyond the limits
// of this package, SCHEMA_PARSE_ERROR for everything else.
func Compile(doc map[string]any) (*Compiled, error) {
	c, err := prepare(doc)
	if err != nil {
		return nil, err
	}
	if err := c.compile(); err != nil {
		return nil, err
	}
	return c, nil
}

// prepare copies the document and checks its size.
func prepare(doc map[string]any) (*Compiled, error) {
	n := newNormalizer(maxDocNodes)
	v, err := n.value(doc, 0)
	if err != nil {
		code := CodeParseError
		if errors.Is(err, errTooDeep) || errors.Is(err, errTooLarge) {
			code = CodeMaxDepthExceeded
		}
		return nil, &ParseError{Code: code, Message: err.Error(), Err: err}
	}
	m, _ := v.(map[string]any)
	return &Compiled{doc: m}, nil
}

func (c *Compiled) compile() (err error) {
	if len(c.doc) == 0 {
		return nil
	}
	defer func() {
		// The library panics on a few malformed documents (odd $id values); a
		// document from another process must not take this one down.
		if p := recover(); p != nil {
			err = &ParseError{Code: CodeParseError, Message: fmt.Sprintf("malformed document: %v", p)}
		}
	}()
	source := clone(c.doc).(map[string]any)
	if err := takeIn(source); err != nil {
		return err
	}
	compiler := jsonschema.NewCompiler()
	compiler.DefaultDraft(jsonschema.Draft2020)
	compiler.UseLoader(refuseLoader{})
	compiler.UseRegexpEngine(compileRegexp)
	if err := compiler.AddResource(docURL, source); err != nil {
		return parseError(err, nil)
	}
	root, err := compiler.Compile(docURL)
	if err != nil {
		return parseError(err, source["$schema"])
	}
	g, err := survey(root, source)
	if err != nil {
		return err
	}
	c.root = root
	c.marks = g.marks()
	c.fast = g.rules()
	return nil
}

// refuseLoader keeps compilation inside the document.
type refuseLoader struct{}

var errRemoteRef = errors.New("references outside the document are refused")

func (refuseLoader) Load(string) (any, error) { return nil, errRemoteRef }

// parseError gives the library's error a code; dialect is the document's $schema,
// an unknown one being a malformed document rather than a lost reference.
func parseError(err error, dialect any) *ParseError {
	code := CodeParseError
	var (
		pointer *jsonschema.JSONPointerNotFoundError
		anchor  *jsonschema.AnchorNotFoundError
	)
	switch {
	case errors.As(err, &pointer), errors.As(err, &anchor), errors.Is(err, errRemoteRef):
		code = CodeNotFound
	}
	var load *jsonschema.LoadURLError
	if errors.As(err, &load) {
		if d, ok := dialect.(string); ok && strings.TrimSuffix(d, "#") == load.URL {
			return &ParseError{Code: CodeParseError, Message: fmt.Sprintf("unknown $schema %q", d), Err: err}
		}
		return &ParseError{Code: CodeNotFound, Message: fmt.Sprintf("%q: %v", load.URL, errRemoteRef), Err: err}
	}
	var invalid *jsonschema.SchemaValidationError
	if errors.As(err, &invalid) {
		return &ParseError{Code: code, Message: metaMessage(invalid), Err: err}
	}
	return &ParseError{Code: code, Message: err.Error(), Err: err}
}

// metaMessage names the first few keywords the metaschema rejects.
func metaMessage(err *jsonschema.SchemaValidationError) string {
	var ve *jsonschema.ValidationError
	if !errors.As(err.Err, &ve) {
		return err.Error()
	}
	r := reporter{}
	r.visit(ve)
	out := r.result()
	msg := "not a valid schema"
	for i, v := range out.Violations[:min(3, len(out.Violations))] {
		sep := "; "
		if i == 0 {
			sep = ": "
		}
		msg += fmt.Sprintf("%sat %q: %s", sep, v.Path, v.Message)
	}
	return msg
}

// Doc returns a copy of the document as it was given to Compile, in the value
// model of this package; never nil.
func (c *Compiled) Doc() map[string]any {
	if c == nil || c.doc == nil {
		return map[string]any{}
	}
	return clone(c.doc).(map[string]any)
}

// HasSensitive reports whether any schema reachable from the document is marked
// x-sensitive.
func (c *Compiled) HasSensitive() bool { return c != nil && c.marks != nil }

// Properties lists the properties declared at the top of the document, sorted;
// those of branches and references are included.
func (c *Compiled) Properties() []string {
	if c == nil || c.root == nil {
		return nil
	}
	names := map[string]bool{}
	for _, s := range inPlaceClosure(c.root) {
		for name := range s.Properties {
			names[name] = true
		}
	}
	out := make([]string, 0, len(names))
	for name := range names {
		out = append(out, name)
	}
	slices.Sort(out)
	return out
}
