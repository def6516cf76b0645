// Command apbus-router is the front door: the HTTP API and, by default, an
// embedded nats-server with JetStream. It owns flags, configuration, wiring and
// signals; what is served belongs to gateway, how calls travel to bus.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/apbus/apbus/internal/settings"
)

// version is set by the linker.
var version = "dev"

func main() {
	ctx, release := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// After the first signal has begun the shutdown, the next one ends the process.
	context.AfterFunc(ctx, release)
	err := run(ctx, settings.Spec{
		Name: "apbus-router", Description: "The front door of the bus: HTTP API and embedded server.", Version: version,
		Args: os.Args[1:], Env: os.LookupEnv, Stdout: os.Stdout, Stderr: os.Stderr,
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, "apbus-router:", err)
	}
	os.Exit(settings.ExitCode(err))
}
