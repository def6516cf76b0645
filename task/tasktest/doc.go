// Package tasktest owns the contract suites of what package task asks of others:
// [TestLog] for a durable log, [TestStore] for a store of the task manager. An
// adapter calls them in a few lines. It holds no doubles; task has MemLog and MemStore.
package tasktest
