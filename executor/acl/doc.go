// Package acl decides who may call what (protocol §6). It owns the rule format,
// its loader, and the [Policy] that answers one question per call: allowed or
// not, by which rule, and does the rule ask for approval.
//
// # Evaluation
//
// Rules are walked in order; the first whose patterns and conditions match
// decides, otherwise the default effect does. A condition that cannot be
// evaluated (an unregistered key, a malformed value, a handler that fails) is
// not the same as one that is false: an allow rule with one never grants, a deny
// rule with one denies. Faults that can be seen without a call gate the whole
// rule; faults of a running handler go through three-valued logic, so that a
// satisfied $or branch still wins.
//
// # Concurrency
//
// A Policy is safe for concurrent use. A check works on an immutable snapshot
// and holds no lock, so handlers and sinks may call the Policy.
//
// # What is not here
//
// The package runs no call and raises no ACL_DENIED: the executor does, and it
// builds the argument projection. Whether approval is given belongs to approval.
package acl
