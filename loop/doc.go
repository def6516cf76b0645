// Package loop is how a fleet learns from what it did: evidence in, reviewed
// improvements out, nothing self-applied. It owns the stages of one pass
// ([Engine.Run]), the analyzers, the wire protocol of the model ([Backend]), the
// life of a recommendation, and knowledge, which is what applied
// recommendations leave behind.
//
// # Who may do what
//
// Analyzers read and answer with drafts; they hold a [Reader] and cannot write.
// A model answers four closed questions (discover, ground, verify, enrich) and
// is believed in nothing: the engine parses its answers strictly, checks each
// citation against what it was shown, has every draft judged twice in calls of
// their own, and stores what is left as a pending recommendation. A person
// decides, with a reason; applying is a second, separate step; what was applied
// can be rolled back and is measured afterwards.
//
// # Determinism
//
// A pass is a function of the reader, the store, the parameters and now, which
// is always an argument: nothing here reads a clock. Without a backend, and with
// one that always fails, the bytes that are stored are the same.
//
// # Concurrency
//
// An [Engine] is safe for concurrent use, also by several processes over one
// [Store]: every write is a compare-and-set, a pass holds a lock, and what a
// crash leaves half done is finished by [Engine.Recover].
//
// # What is not here
//
// No network, no process, no storage: backends are in loop/backend, durable
// stores are adapters that pass looptest.TestStore, and the condition grammar
// and the execution of plans are in loop/plan.
package loop
