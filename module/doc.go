// Package module is the vocabulary of a governed call: what a module is, what
// a call knows about itself, and how it fails. It is all that the author of a
// module imports.
//
// A module is a named, schema-described function. Most are made with [New]
// from a Go function whose types give the schemas:
//
//	add := module.New("math.add", "Add two numbers",
//		func(ctx context.Context, in AddIn) (AddOut, error) {
//			return AddOut{Sum: in.A + in.B}, nil
//		}, module.WithAnnotations(module.Annotations{Readonly: true, Idempotent: true}))
//
// One that gives its output in parts is made with [NewStream] from a function that
// sends chunks; merged in order they are its output (see [Merge]).
//
// Inside a module, [FromContext] gives the call's [Context] (trace, caller,
// identity, shared data) and [Call] makes a nested call, whether the target
// lives in this process or on another node.
//
// # Values
//
// Inputs and outputs are values of the JSON data model: nil, bool, int64,
// uint64 (only above the range of int64), float64, string, []any and
// map[string]any. [Normalize] brings other Go numbers into that form. An
// integral float64 stays a float64.
//
// # Concurrency
//
// Descriptors, identities and contexts may be read by any number of
// goroutines. A [Data] map is guarded and shared by every call of one tree
// inside one process; across processes it is copied one way, outwards.
//
// # What is not here
//
// The package runs nothing and speaks to nobody: running a call belongs to
// executor, carrying it to bus, its bytes to contextwire.
package module
