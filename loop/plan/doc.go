// Package plan is a procedure as a graph of module calls: its frozen condition
// grammar, its validation, edits of single fields, and its execution. It does not
// own where plans come from or who approved them (loop), nor how a call is made:
// a plan runs over an [Invoke] function, so its calls are governed as any other.
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
// A [Plan] is a value that must not be modified once it is shared; running one is
// safe from many goroutines.
package plan
