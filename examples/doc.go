// Package examples holds the built-in example modules: what a newcomer calls
// first, what the documentation uses and what other tools test with. Their IDs
// and schemas are a contract. It does not host or serve them; apbus-node does.
//
// The groups are
//
//   - math, text: pure functions;
//   - demo: what a call sees of itself, sleeping, failing, chains of calls, and
//     an effect that can be counted;
//   - near, far: the demo modules chain, sleep and whoami under two more names,
//     for hosting on one node each, so that a path of calls crosses for certain;
//   - orders, inventory, payments: a small shop whose order reserves stock and
//     charges a card, and gives the stock back when the charge fails.
//
// All state is in memory, belongs to one call of [Modules] and is bounded. The
// modules are safe for concurrent use.
package examples
