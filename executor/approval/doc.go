// Package approval decides what needs a person and keeps what that person said
// (protocol §7). It owns the [Handler] contract and its simple handlers, the
// execution [Policy], the life of one request as a pure state machine
// ([Record]), and [Memory], which runs that machine in this process.
//
// # Two phases
//
// A handler may answer at once or after a wait (phase A). Or it answers pending
// with an approval ID; the caller repeats the same call with that ID as
// "_approval_token", and the gate asks CheckApproval instead (phase B). A token
// is used once, expires, and is bound to module, version, caller, identity and
// the digest of the inputs.
//
// # What is not here
//
// The gate itself is a step of the executor: it strips the token on every path,
// builds the request and turns results into errors with [Result.Err]. Who may
// decide is checked by whoever exposes Decide; only self-approval is refused
// here. Durable storage belongs to jetstream.
package approval
