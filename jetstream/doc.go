// Package jetstream makes durable work durable on NATS JetStream: the log of the
// tasks, who may write it, and how nodes and front doors reach the writer. It
// decides nothing about tasks; package task does, and hears of nothing here but
// its Log. It does not carry calls, and sets no handler on a connection it was
// given.
//
// # Layout
//
// A namespace has one stream. Every key of the log is a subject of its own that
// holds one message, the last; one more subject names who leads. What is not in
// the stream is rebuilt from it. The subjects are listed in docs/tasks.md.
//
// # One writer
//
// Elect gives the lead to one process at a time by compare-and-set on the lead
// subject. Each renewal of the lead is a new message there, and every commit
// names the sequence of the last one: the server refuses whatever a deposed
// leader still sends, however late. A leader that cannot renew gives up before
// its time is over, and others wait that time, by their own clocks, from the last
// renewal they saw. No two clocks are compared.
//
// # What a commit promises
//
// Commit returns nil only after the server has stored everything. When an answer
// is lost, it renews the lead, which makes the lost attempt impossible from then
// on, reads what is there, and sends again what is not: the outcome is found out,
// never guessed.
//
// # Concurrency
//
// All types may be used by any number of goroutines. Everything that a function
// starts has ended when it returns.
package jetstream
