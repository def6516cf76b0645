// Package registry owns the modules of this process: it admits them, compiles
// their schemas once, loads them before anybody can see them, hands them out to
// calls and lets them go when their calls have ended. It does not own who may
// call a module, how a call runs, or modules of other processes.
//
// # Order of a registration
//
// The ID, the module's own check and its schemas are judged first, then whether
// the ID is taken by a visible module or by one on its way in or out. OnLoad runs
// outside every lock, and only when it has returned without error does the module
// become visible, at once and complete. A failed OnLoad leaves nothing behind and
// its error is returned unchanged (protocol §12.7, decision D-123).
//
// # Calls and unregistration
//
// A call holds its [Entry] from lookup until the module's code has really
// returned. [Registry.SafeUnregister] makes the module invisible, waits for those
// calls, and then unloads it (algorithm A21).
//
// [Registry.Reload] does the same and then brings the module's successor, made by
// the factory that was declared for it, through the order of a registration; a
// successor that fails gives way to the old module again. [Registry.SetEnabled]
// switches a module off for calls without unloading it.
//
// # Dependencies and versions
//
// [LoadOrder] and [Registry.RegisterAll] load modules after those they depend on
// (algorithm A07), [MatchVersion] judges constraints and [Negotiate] protocol
// versions (A14). One ID has one version at a time.
//
// # Concurrency
//
// Everything here may be used from several goroutines at once. Looking a module
// up takes no lock. Functions of modules and functions given to
// [Registry.OnChange] run in the goroutine that registers or unregisters, and
// never under a lock, so they may use the registry themselves. No goroutine is
// started.
package registry
