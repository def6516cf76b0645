package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/apbus/apbus/module"
)

// devCmd runs a small installation on this machine: a router with the embedded
// server, and two nodes. It is what "make run" starts.
//
// The router admits callers on this machine without a token unless --tokens is
// given, so that the CLI, curl and a browser work at once. Reviewing approvals
// needs the reviewer's token either way.
type devCmd struct {
	Bin        string `local:"" placeholder:"DIR" help:"Directory of apbus-router and apbus-node; that of apbus when absent."`
	Data       string `local:"" default:".apbus" placeholder:"DIR" help:"Where the installation keeps its state."`
	Listen     string `local:"" default:"127.0.0.1:8420" placeholder:"HOST:PORT" help:"Address of the HTTP API; port 0 picks a free one."`
	NATSListen string `name:"nats-listen" local:"" default:"127.0.0.1:4222" placeholder:"HOST:PORT" help:"Address of the embedded NATS server; port 0 picks a free one."`
	DemoLoop   bool   `local:"" help:"Make calls for the loop to learn from, and a pass with a recorded model, and show what waits for a person."`
	Once       bool   `local:"" help:"With --demo-loop: stop when that is done."`
	Tokens     bool   `local:"" help:"Make the router ask for the tokens."`
}

// devNode is one node of the installation and the example groups it hosts, so
// that an order and a chain cross between processes.
type devNode struct{ id, groups string }

func devNodes() []devNode {
	return []devNode{
		{"n1", "math,text,demo,near,orders"},
		{"n2", "math,demo,far,inventory,payments"},
	}
}

const (
	// readyLimit is how long a process may take to become ready, and the probe
	// call to pass.
	readyLimit = 20 * time.Second
	// stopLimit is how long a process may take to stop before it is killed; the
	// nodes' own drain grace is below it.
	stopLimit = 15 * time.Second
)

// Run starts everything, waits for Ctrl-C or for a process that ends by itself,
// and stops everything.
func (c *devCmd) Run(s *session) (err error) {
	bin := c.Bin
	if bin == "" {
		self, err := os.Executable()
		if err != nil {
			return fmt.Errorf("find the programs: %w", err)
		}
		bin = filepath.Dir(self)
	}
	if err := os.MkdirAll(c.Data, 0o700); err != nil {
		return fmt.Errorf("make the data directory: %w", err)
	}
	tokens, err := writeTokens(c.Data)
	if err != nil {
		return err
	}

	// Where the system can tie a child to its parent's life, it ties it to the
	// thread that started it, which therefore must not end early.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()

	ctx, stop := context.WithCancelCause(s.ctx)
	defer stop(nil)
	sup := newSupervisor(s.spec.Stderr, stop)
	defer func() { err = errors.Join(err, sup.stopAll(stopLimit)) }()

	api, err := c.start(ctx, sup, bin, tokens)
	if err != nil {
		return startError(s.ctx, ctx, err)
	}
	if err := probe(ctx, api, tokens.caller, s.spec.Version); err != nil {
		return startError(s.ctx, ctx, fmt.Errorf("the probe call did not pass: %w", err))
	}
	sup.settle()
	if err := c.welcome(s.stdout, api, tokens); err != nil {
		return err
	}
	if c.DemoLoop {
		if err := runLoopDemo(ctx, s.stdout, c.program(), api, tokens, s.spec.Version); err != nil {
			return startError(s.ctx, ctx, fmt.Errorf("the demonstration of the loop: %w", err))
		}
		if c.Once {
			return nil
		}
	}
	<-ctx.Done()
	if s.ctx.Err() != nil {
		return s.stdout.line("\nstopping")
	}
	return context.Cause(ctx) // a process ended by itself
}

// startError tells Ctrl-C and the end of a process from a failure of our own.
func startError(outer, inner context.Context, err error) error {
	switch {
	case outer.Err() != nil:
		return nil
	case inner.Err() != nil:
		return context.Cause(inner)
	}
	return err
}

// start starts the processes, each when the one before is ready, and returns the
// address of the API.
func (c *devCmd) start(ctx context.Context, sup *supervisor, bin string, tokens *devTokens) (api string, err error) {
	args := []string{"--listen", c.Listen, "--embed-listen", c.NATSListen, "--data", filepath.Join(c.Data, "nats")}
	args = append(args, "--tokens", tokens.file)
	if !c.Tokens {
		args = append(args, "--admit-local")
	}
	more, err := c.demoFlags(bin)
	if err != nil {
		return "", err
	}
	args = append(args, more.router...)
	line, err := sup.start(ctx, &child{name: "router"}, filepath.Join(bin, "apbus-router"), args, "apbus-router:")
	if err != nil {
		return "", err
	}
	facts := factsOf(line)
	if facts["http"] == "" || facts["nats"] == "" {
		return "", fmt.Errorf("the router's ready line %q does not name http and nats", line)
	}
	for _, n := range devNodes() {
		_, err := sup.start(ctx, &child{name: n.id, optional: true}, filepath.Join(bin, "apbus-node"), append([]string{
			"--nats", facts["nats"], "--id", n.id, "--examples=" + n.groups,
			"--effect-log", filepath.Join(c.Data, "effects.log"),
		}, more.node...), "apbus-node:")
		if err != nil {
			return "", err
		}
	}
	return facts["http"], nil
}

// factsOf reads the key=value words of a ready line.
func factsOf(line string) map[string]string {
	facts := map[string]string{}
	for word := range strings.FieldsSeq(line) {
		if key, value, ok := strings.Cut(word, "="); ok {
			facts[key] = value
		}
	}
	return facts
}

// probe waits until a call from the router to one node, from there to the other
// and back has passed.
func probe(ctx context.Context, api, token, version string) error {
	ctx, stop := context.WithTimeoutCause(ctx, readyLimit, errors.New("not ready in time"))
	defer stop()
	b, err := newHTTPBackend(api, token, version)
	if err != nil {
		return err
	}
	defer b.Close()
	for {
		_, err := b.Call(ctx, &callRequest{
			id: "near.chain", timeout: 2 * time.Second,
			inputs: map[string]any{"path": []any{"far.chain", "near.sleep"}, "input": map[string]any{"ms": int64(1)}},
		})
		if err == nil || !worthAnotherProbe(err) {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w (last: %w)", context.Cause(ctx), err)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// worthAnotherProbe reports whether an error means that the nodes are not known
// everywhere yet.
func worthAnotherProbe(err error) bool {
	switch module.CodeOf(err) {
	case module.CodeModuleNotFound, module.CodeBusNoResponders, module.CodeBusDisconnected,
		module.CodeBusNodeLost, module.CodeModuleTimeout, module.CodeBusBudgetExhausted:
		return true
	}
	return false
}

// program is this program as people are told to start it.
func (c *devCmd) program() string {
	if c.Bin != "" {
		return filepath.Join(c.Bin, "apbus")
	}
	return "apbus"
}

func (c *devCmd) welcome(p *printer, api string, tokens *devTokens) error {
	apbus := c.program()
	prefix, authorization, need := "", "", "Calling needs no token here unless you start with --tokens; reviewing does. The tokens are in"
	if api != "http://127.0.0.1:8420" {
		prefix = "APBUS_ROUTER=" + api + " "
	}
	if c.Tokens {
		need = "The router asks for a token. The tokens are in"
		prefix += "APBUS_TOKEN=$(cat " + tokens.callerFile + ") "
		authorization = `-H "Authorization: Bearer $(cat ` + tokens.callerFile + `)" `
	}
	return p.line(`
%s at %s
Two nodes host the example modules; an order crosses between them.

Try in another terminal:
  %s%s call math.add a=1 b=2
  %s%s call orders.place customer=ana card=4111111111111111 items='[{"sku":"tea","qty":2}]'
  curl -s %s%s/v1/modules/near.chain/call -d '{"path":["far.chain","near.whoami"]}' -H 'Content-Type: application/json'

%s
  %s (calls, cancels, operates)
  %s (also reviews and applies)
Use one with: export APBUS_TOKEN=$(cat %s)
A call of payments.refund waits for a person, and says how to go on.
Ctrl-C stops everything.`,
		p.bold("Apbus is running"), p.bold(api), prefix, apbus, prefix, apbus, authorization, api, need, tokens.callerFile, tokens.reviewerFile, tokens.callerFile)
}
