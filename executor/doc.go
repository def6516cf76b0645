// Package executor governs one call: it runs a module through the eleven steps
// of the protocol (context, call-chain guard, lookup, ACL, approval, middleware
// before, input validation, execution, output validation, middleware after,
// result), checks a call without running it, and says who is told how it ended.
// It owns the order of the steps, the time a call may take and what becomes of
// it when that is over. It does not own modules (registry), rules (acl),
// decisions of people (approval), wrapping behaviour (middleware) or the way to
// other processes: a module that is not registered here is reached through a
// [Remote].
//
// # Owner and caller
//
// The process that owns a module enforces everything. Where a module lives on
// another node, this side runs context creation, guard, lookup, execution (which
// is the Remote) and return, and nothing else: no ACL, approval, validation,
// middleware, redaction or observer, and the inputs travel untouched. [Executor.Invoke]
// is the owner's door for calls that came over the bus; it never forwards one.
//
// # Time
//
// The module's own limit counts from the first before hook; the global deadline
// from the first step of the root call. Whichever ends first cancels the call's
// token with cause timeout. The module then has the grace period to clean up, and
// the call fails with MODULE_TIMEOUT as soon as it has returned or the grace is
// over. What it returned late stands, redacted, in details.partial.
//
// A call that is stopped from outside, because its caller cancelled, left, timed
// out or is shutting down, does not get that grace, since nobody waits for its
// result: after a short settling time of 10 ms, in which a module that obeys its
// context has long returned, the call ends with EXECUTION_CANCELLED, or
// MODULE_TIMEOUT when a deadline of the caller's context was the reason.
//
// A module that has not returned by then is abandoned: its goroutine is counted
// by [Executor.Debt] and keeps its registry entry until it really returns, and
// what it returns is dropped and logged once. A result that landed before the
// end came is always the result.
//
// # Streams
//
// [Executor.Stream] and, for the bus, [Executor.InvokeStream] run steps 1 to 7 as
// any call, then hand every chunk of a module.Streamer on at once, and then run the
// rest once on the chunks' merged value. A failure before the first chunk may be
// recovered, which gives one chunk; a later one ends the stream; one after the last
// chunk is logged and told as an event and changes nothing for the reader. The
// module waits while the reader works, and ends when the reader leaves.
//
// # Strategies
//
// A [Strategy] is the list of steps: a preset, one put together in code, one
// registered for the process with [RegisterStrategy], or what a configuration says
// ([StrategyFromConfig]). Gates cannot be weakened by configuration, only removed,
// and [Executor.GovernanceState] tells what really stands in front of the modules.
// What was approved is what runs: inputs that changed after the gate are refused,
// unless only a declared enricher changed them.
//
// # What operators and callers are told
//
// [WithObserver] hears how every call ended, [WithEvents] what operators should
// know, and [Executor.CallWithTrace] tells its caller every step and every hook. A
// trace also crosses the bus with the reply.
//
// # Errors
//
// Every failure is one coded *module.Error, found with module.AsError. A failure
// inside the pipeline is wrapped in a [StepError] that names the step. Text that
// came from a module or a middleware is scrubbed of the sensitive values of the
// call's inputs before it leaves. Panics become coded errors, their stacks go to
// the log.
//
// # Concurrency
//
// An [Executor] may be used from several goroutines at once. Its strategy must
// be finished before the first call, and may be swapped for another at any time. It
// starts a goroutine for a module that
// something could stop, and waits for it; [Executor.Settle] waits for the
// abandoned ones.
package executor
