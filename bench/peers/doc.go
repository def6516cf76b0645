// Command peers runs the same work through Apbus and through two task queues that
// people use, on this machine, in one go: Asynq on Redis and River on PostgreSQL. It
// is a module of its own, so that their libraries are no dependencies of Apbus.
//
//	make bench-tasks
//
//	make bench-tasks PEERS='-only apbus'
//	make bench-tasks PEERS='-stored 1000000'
//	make bench-tasks PEERS=-recovery
//
// The work is a module that does nothing, called with 512 bytes, whose result is
// kept. A number of submitters each submit a task, wait until it has run, and submit
// the next. The time ends when the queue itself says that every task is completed.
// Servers are started by the program, with their data in a folder of its own, and
// stopped at the end; it needs redis-server, and initdb and postgres.
package main
