// Package bindings makes modules of what is no Go: a command that reads JSON and
// writes JSON, or an HTTP endpoint that does, declared in YAML files together with
// schemas, annotations, time limit and approval. It owns the files' format, running
// the commands and asking the endpoints. What governs their calls belongs to
// executor, which modules a node hosts to its registry, and when a file is read
// again to the program.
//
// # Failures
//
// A failure is MODULE_EXECUTE_ERROR with details.reason: not_started, exit (with
// exit_code), signal, not_json, too_large (with limit), unreachable, status (with
// status), or redirect. Neither what a command wrote to standard error nor the body
// of a refusal reaches a caller; a command that wants to say more ends with another
// status than 0 after it wrote {"error": {"code", "message"}} to standard output,
// and an endpoint answers with that.
//
// # The end of a call
//
// A command runs in a process group of its own. When its call ends early the group
// gets SIGTERM, and after the binding's grace SIGKILL. When the command has ended,
// what it left behind in its group is killed too. The connection of a request to an
// endpoint is closed.
package bindings
