// Package middleware wraps calls: hooks that run before a module, after it, or
// when something failed (protocol §11). It owns the hooks, their order, the
// immutable [Chain] that a call runs on, the [List] that builds chains, and the
// built-in middlewares. None is installed by itself.
//
//   - [Deadline] and [Retry] decide how long and how often a module is tried;
//     [CircuitBreaker] keeps calls away from one that keeps failing.
//   - [Logging], [Tracing] and [Metrics] tell the systems that operators have.
//   - [Usage], [RecordErrors] and [PlatformNotify] feed what the process knows about
//     itself: [UsageCollector], [ErrorHistory] and health events.
//
// Where a result needs telling, a middleware takes a function for [module.Event];
// who subscribes is none of its business. None shows inputs or outputs other than
// as the Context's redacted copies.
//
// # Order
//
// Higher priorities come first in before; equal ones keep their registration
// order. After runs in reverse and stops at the first error. OnError runs in
// reverse over what was entered, the one whose before failed included; it does not
// see cancellation. End comes once for each run, however it ended.
//
// # Concurrency
//
// A middleware instance serves many calls at once and must be safe for that.
// The hooks of one call run one after the other. State of one call belongs on
// its [Call] (SetState), or in Context.Data when the whole call tree shares it.
//
// # What is not here
//
// The package runs no module, unwraps no error for callers and decides no
// timeout: that is the executor's. Middleware around single pipeline steps is
// the executor's too.
package middleware
