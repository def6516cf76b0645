// Package events tells subscribers what happened: it takes the module.Event values
// that the executor, the registry and middlewares hand to a function, and delivers
// each to whom its type matters (protocol §9.16). It owns queues, retries, dead
// letters and the circuit breakers of subscribers, and the built-in subscribers.
//
//	e := events.New(events.Options{})
//	sub, err := e.Subscribe(events.Stdout(os.Stdout, events.StdoutOptions{}), events.SubscribeOptions{Pattern: "apcore.acl.*"})
//	…
//	x, err := executor.New(reg, cfg, executor.WithEvents(e.Emit))
//	…
//	err = e.Shutdown(ctx)
//
// # Delivery
//
// [Emitter.Emit] never blocks and never fails. Each subscription has a queue of its
// own and one goroutine, so a subscriber gets its events one at a time and in order,
// and a slow one holds up nobody else. An event that finds the queue full, or that
// failed in every try, becomes a dead letter: the subscription's OnFailure hears of
// it and so does whoever subscribed to apcore.event.delivery_failed. Nothing is lost
// without a word, except by a subscriber that the breaker has given up on for a
// while, and what is emitted after Shutdown.
//
// # Subscribers
//
// A [Subscriber] must return when its context ends. Events and their data are shared
// and must not be changed.
//
// # What is not here
//
// The package makes no events but those about delivery. It keeps nothing across a
// restart.
package events
