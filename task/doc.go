// Package task owns what a durable task is and how it moves: one module call that
// outlives its submitter. It holds the rules of submitting, claiming, leases,
// retries, timeouts, cancelling, schedules and retention as pure functions over a
// record, the one [Writer] that applies them and keeps the index, the [Worker] that
// runs attempts on a node, and the apcore task manager over a small [Store].
//
// It does not own storage, election or transport: a [Log] keeps what a writer
// commits, and whatever carries requests to the writer and to nodes lives in
// adapters. It runs no module itself; a worker is given something that can.
//
// # One writer
//
// A namespace has one writer at a time. Every change of a task is decided by it, in
// memory, and shown to nobody before the log has it: a method of Writer returns
// after the commit that holds what it tells. Changes of many callers share a commit;
// one commit is in flight at a time and the next takes whatever came meanwhile. A
// writer that was deposed stores nothing more, and answers TASK_STORE_UNAVAILABLE
// to everybody.
//
// # Ownership
//
// A grant names the task, the attempt and an epoch, a number that never repeats.
// Every later word of the worker carries the three; when they are not the record's,
// the answer is TASK_LEASE_LOST and the run must stop (durable design, rule 3).
// Claims are kept in memory only: a task that was granted and not started is as good
// as queued. [Writer.Start] makes an attempt durable before its module may run;
// attempts of modules that are idempotent or readonly need not ask first
// ([Grant].Confirm is false) and are written when they last.
//
// # Numbers
//
// Every transition of a task has a number, larger than all before it, also across
// writers. Numbers are not consecutive. A reader that resumes from the last number it
// saw gets what came later, or an event that says that something is missing, with
// the present state.
//
// # Values
//
// Inputs, outputs, contexts and checkpoints are kept as JSON text and never
// reinterpreted on the way. Times in records are Unix seconds, durations are
// milliseconds, as their names say. Records that readers get are redacted; raw
// inputs are a separate right ([Writer.RawInputs]).
//
// # Concurrency
//
// All methods of Writer, Worker, Manager and MemLog may be called from any number of
// goroutines. Records, grants and answers belong to whoever got them.
package task
