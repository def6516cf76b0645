// Command apbus is the command line for people and scripts. It owns the
// commands, how arguments become inputs and how answers are shown; it speaks to
// a router over HTTP or, with --nats, to the bus itself.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/apbus/apbus/internal/settings"
)

// version is set by the linker.
var version = "dev"

func main() {
	ctx, release := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// The first signal cancels the remote work, the next one ends the process.
	context.AfterFunc(ctx, release)
	err := run(ctx, settings.Spec{
		Name: "apbus", Description: "Call, check, watch and stop governed modules.", Version: version,
		Args: os.Args[1:], Env: os.LookupEnv, Stdout: os.Stdout, Stderr: os.Stderr,
	}, os.Stdin)
	os.Exit(settings.ExitCode(err))
}
