// Package cancel owns why and how a call stops: causes with a closed list of
// reasons, tokens that form a tree, the table of calls in flight, and the
// tombstones left by a cancel that arrives before its call. It does not own
// timers, transport or error codes: the executor decides when a call has run
// out of time, the bus carries notices between processes, and package module
// turns a cause into a coded error.
//
// # One call
//
// Every call gets its own token. [Join] ties the token to the call's
// context.Context in both directions, so that code which knows only one of the
// two sees the same answer:
//
//	ctx, tok := cancel.Join(ctx, parent)
//	defer tok.Release()
//
// Cancelling goes down only. A call that times out cancels its own token and
// everything it started, never its caller (core-executor seed, Cooperative
// cancellation; protocol decision D-133).
//
// # Concurrency
//
// Everything here may be used from many goroutines at once. When
// [Token.Cancel] returns, every descendant of the token and every joined
// context is cancelled, whichever goroutine won. Functions given to
// [Token.AfterFunc] run in goroutines of their own, as with context.AfterFunc.
// No other goroutine is started and no lock is held while foreign code runs.
//
// # Ending
//
// A token costs nothing once released. Whoever makes one for a call must
// release it when the call ends; [Entry.End] does the same for the table.
package cancel
