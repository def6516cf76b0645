// Package approval decides what needs a person and keeps what that person said
// (protocol §7). It owns the [Handler] contract and its simple handlers, the
// execution [Policy], the life of one request as a pure state machine
// ([Record]), the [Store] contract with [MemStore], and [Durable], which runs
// that machine over any store.
//
// # Two phases
//
// A handler may answer at once or after a wait (phase A). Or it answers pending
// with an approval ID; the caller repeats the same call with that ID as
// "_approval_token", and the gate asks CheckApproval instead (phase B). A token
// is used once, expires, and is bound to module, version, caller, identity and
// the digest of the inputs.
//
// # Learning of a decision
//
// A process that wants to be told when somebody has decided watches the store:
//
//	for e, err := range store.Watch(ctx, "", lastSeen) {
//		if err != nil {
//			break // watch again after the last revision seen
//		}
//		lastSeen = e.Revision
//		if e.Record.State != approval.StatePending {
//			wake(e.Record.ID)
//		}
//	}
//
// Nothing is missed, however late the watch begins, since it starts with what
// was stored after lastSeen; 0 starts with everything. That a request expires is
// no change of its record: set a timer to ExpiresAt. What happens in the deciding
// process itself is told to [Options].OnDecision.
//
// # What is not here
//
// The gate itself is a step of the executor: it strips the token on every path,
// builds the request and turns results into errors with [Result.Err]. Who may
// decide is checked by whoever exposes Decide; only self-approval is refused
// here. Durable storage belongs to jetstream.
package approval
