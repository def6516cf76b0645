package main

import (
	"context"
	"io"
	"log/slog"
	"time"

	"github.com/alecthomas/kong"

	"github.com/apbus/apbus/internal/settings"
)

// cli is the grammar: the flags of every command and the commands.
type cli struct {
	Router  string   `default:"http://127.0.0.1:8420" placeholder:"URL" help:"Router to speak to."`
	Token   string   `secret:"" placeholder:"TOKEN" help:"Bearer token for the router."`
	NATS    []string `name:"nats" placeholder:"URL" help:"Speak to the bus itself, without a router: modules, nodes, call, check, cancel, doctor."`
	NS      string   `name:"ns" default:"default" placeholder:"NAME" help:"Namespace on the bus, with --nats."`
	Creds   string   `placeholder:"FILE" help:"NATS credentials file, with --nats."`
	MaxBody int      `default:"67108864" placeholder:"BYTES" help:"Largest inputs and output of a call, with --nats."`
	JSON    bool     `name:"json" local:"" help:"Print one JSON document."`

	Modules    modulesCmd    `cmd:"" help:"List the modules, or show one."`
	Nodes      nodesCmd      `cmd:"" help:"List the nodes, or drain one."`
	Call       callCmd       `cmd:"" help:"Call a module and print its output."`
	Check      checkCmd      `cmd:"" help:"Check a call without making it, and show what it would change."`
	Cancel     cancelCmd     `cmd:"" help:"Stop calls, wherever they run."`
	Bench      benchCmd      `cmd:"" help:"Make load and measure it."`
	Approvals  approvalsCmd  `cmd:"" help:"Look at calls that wait for a person, and decide."`
	Doctor     doctorCmd     `cmd:"" help:"Look for misconfigurations of the bus, and say how to mend them."`
	Evidence   evidenceCmd   `cmd:"" help:"Show what happened: calls, denials, decisions."`
	Top        topCmd        `cmd:"" help:"Watch what modules and nodes do: calls and errors a second, latencies, load."`
	Tasks      tasksCmd      `cmd:"" help:"Submit, watch and steer calls that outlive who made them."`
	Recs       recsCmd       `cmd:"" help:"Look at what the loop proposes, decide, apply, roll back."`
	Loop       loopCmd       `cmd:"" help:"Show or run the loop that learns from what happened."`
	Version    versionCmd    `cmd:"" help:"Print the version."`
	Completion completionCmd `cmd:"" help:"Print a completion script for a shell."`
	Complete   completeCmd   `cmd:"" hidden:"" passthrough:"" help:"Print the completions of a command line."`
	DemoModel  demoModelCmd  `cmd:"" hidden:"" help:"Answer one request of the loop from a transcript."`
	Dev        devCmd        `cmd:"" hidden:"" help:"Run a router and two nodes with the example modules on this machine."`
}

// session is what the commands work with.
type session struct {
	ctx    context.Context
	flags  *cli
	model  *kong.Application
	spec   settings.Spec
	stdin  io.Reader
	stdout *printer
	log    *slog.Logger
}

// connectLimit bounds reaching the bus; a router is reached by each request.
const connectLimit = 5 * time.Second

// open returns the way to the modules that the flags ask for. Close it.
func (s *session) open() (backend, error) {
	if len(s.flags.NATS) > 0 {
		return newBusBackend(s.ctx, s.flags, s.log)
	}
	return newHTTPBackend(s.flags.Router, s.flags.Token, s.spec.Version)
}

// with opens the way to the modules for the time of f.
func (s *session) with(f func(backend) error) error {
	b, err := s.open()
	if err != nil {
		return err
	}
	defer b.Close()
	return f(b)
}
