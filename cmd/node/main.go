// Command apbus-node hosts modules on the bus. It owns flags, configuration,
// wiring and signals; how a call is governed belongs to executor, how it
// travels to bus, what the example modules do to examples.
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
	// After the first signal has begun the drain, the next one ends the process.
	context.AfterFunc(ctx, release)
	err := run(ctx, settings.Spec{
		Name: "apbus-node", Description: "Host modules on the bus.", Version: version,
		Args: os.Args[1:], Env: os.LookupEnv, Stdout: os.Stdout, Stderr: os.Stderr,
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, "apbus-node:", err)
	}
	os.Exit(settings.ExitCode(err))
}
