// Package natstest owns embedded nats-servers with JetStream for tests: one
// server in this process, restarted on its data or on a copy of it, and clusters
// of three. It does not own the server that the router embeds; that is package
// bus.
//
// A server is reached without a socket, and works in a testing/synctest bubble
// that Bubble opened: redelivery, leases and expiry then cost no time.
package natstest
