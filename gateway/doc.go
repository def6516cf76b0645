// Package gateway is the front door for people and programs that do not speak
// the bus: the HTTP API. It owns routes, authentication of callers by token,
// request headers and limits, the table from error code to HTTP status, what an
// error may tell the outside, and the outcomes of detached calls. It does not
// own how a call travels, who may call what, or where modules run: it reaches
// those through the small interfaces of ports.go.
//
// # Use
//
// [New] gives an http.Handler. [Gateway.Server] wraps it in an http.Server with
// the limits that only a server can enforce. The owner of the listener shuts
// down in two steps: http.Server.Shutdown, which lets requests finish, then
// [Gateway.Close], which ends what is left.
//
// # One table
//
// Everything that is served stands in the route table (routes.go): method,
// pattern, scope, schemas, handler. The OpenAPI document at /openapi.json is
// made from the same table, so that the two cannot differ.
//
// # Calls
//
// The gateway is the root caller of every call it makes. A call ends early when
// its connection closes, when somebody cancels it, or when the gateway closes;
// the cause says which. With "Prefer: respond-async" the connection does not
// matter and the outcome is kept for a while.
//
// # Concurrency
//
// All methods may be called from many goroutines. Handlers run in the server's
// goroutines; detached calls run in goroutines that Close waits for.
package gateway
