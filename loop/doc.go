// Package loop learns from what happened: deterministic analyzers, and a model if
// there is one, read evidence and propose; a person decides. It owns the rules of
// that as pure functions over a [Reader] and a store; it does not own storage,
// network or clock.
package loop
