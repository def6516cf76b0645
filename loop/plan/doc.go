// Package plan is a procedure as a graph of module calls: its frozen condition
// grammar, its validation, edits of single fields, its execution, what a run leaves in
// a journal, and the replay of such runs. It does not own where plans come from or who
// approved them (loop), where the journal is, nor how a call is made: a plan runs over
// an [Invoke] function, so its calls are governed as any other.
//
// # Execution
//
// A run begins at the first node. Every out-edge whose condition holds fires, not
// only the first. A node waits until all its in-edges are resolved and runs when
// at least one of them fired; otherwise it is dead, and so are the edges that
// leave it. Nodes on a cycle run in generations: an edge that leads back begins
// the next one, an edge that has fired max_cycles times is exhausted, and what
// lies behind the cycle waits until the cycle has come to rest. Nodes that are
// ready together run at the same time. The first failed node, by position, fails
// the run and stops the others.
//
// # Replay
//
// A [RunRecord] says of each attempt of a node which outputs of others its inputs were
// made of, and what it came to, redacted. [Replay] runs another revision of the plan
// over it: what was recorded stands in where the node would be given outputs of the same
// nodes and generations, and all else is not known.
//
// A [Plan] is a value that must not be modified once it is shared; running one is
// safe from many goroutines.
package plan
