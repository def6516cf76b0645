// Package system owns the modules by which an executor tells of itself and is
// controlled: system.health.*, system.manifest.*, system.usage.* and
// system.control.* (protocol §6.6, §6.7), with the settings, overrides and audit
// trail behind the last. It does not own what they report: calls and errors are
// counted by executor/middleware, modules belong to executor/registry, and events
// go to whoever takes them.
//
// The modules are called like any other: over the bus they answer for the process
// that runs them, and ACL and approval apply. The control modules all require an
// approval and a reason.
//
// Everything exported here is safe for concurrent use. No goroutine is started.
package system
