// Package conformance runs the published cases of the protocol against the public
// Go API, and keeps docs/conformance.md true. It holds tests only.
//
// The cases are not part of this repository: the folder named by APBUS_CONFORMANCE
// (../../shared/conformance when unset) holds one JSON file per topic. The drivers
// that read it carry the build tag conformance, so that everybody else's tests need
// no data; make conformance runs them. What needs no data, the table of exceptions
// and the tests that documentation names, is checked by the ordinary tests.
package conformance
