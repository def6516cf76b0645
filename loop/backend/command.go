package backend

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/apbus/apbus/loop"
	"github.com/apbus/apbus/module"
)

// Defaults of the limits of one request.
const (
	DefaultTimeout = 120 * time.Second
	// waitDelay is how long output is awaited after the command has ended or was
	// killed, which bounds what a process it left behind can hold.
	waitDelay = 2 * time.Second
)

// CommandOptions configure a [Command]. The zero value works.
type CommandOptions struct {
	// Model names the model; when empty the probe's answer does.
	Model string
	// Timeout bounds one request, default [DefaultTimeout].
	Timeout time.Duration
	// MaxRequest and MaxResponse are in bytes, by default those of the protocol.
	MaxRequest, MaxResponse int
	// Env is the environment of the command, as os.Environ gives it; empty for none.
	// Variables named in Scrub are left out.
	Env   []string
	Scrub []string
	// Dir is the working directory, the current one when empty.
	Dir string
	// Stderr gets what the command writes there; discarded when nil.
	Stderr io.Writer
}

// Command is a model behind a command: one process a request, the request on its
// standard input, the response on its standard output. The command line is split at
// white space; there is no shell, no quoting and no globbing. Processes run one at a
// time, in a group of their own that is killed as a whole. It is safe for concurrent
// use.
type Command struct {
	argv  []string
	model string
	env   []string
	o     CommandOptions
	turn  chan struct{}
}

var _ loop.Backend = (*Command)(nil)

// NewCommand makes the backend and probes it, so that a command that cannot work
// fails here and not in the middle of a run. The error is LOOP_BACKEND.
func NewCommand(ctx context.Context, cmd string, o CommandOptions) (*Command, error) {
	c := &Command{argv: strings.Fields(cmd), model: o.Model, o: o, turn: make(chan struct{}, 1), env: []string{}}
	if len(c.argv) == 0 {
		return nil, failed("the command is empty", nil)
	}
	if c.o.Timeout <= 0 {
		c.o.Timeout = DefaultTimeout
	}
	if c.o.MaxRequest <= 0 {
		c.o.MaxRequest = loop.MaxRequestBytes
	}
	if c.o.MaxResponse <= 0 {
		c.o.MaxResponse = loop.MaxResponseBytes
	}
	scrub := make(map[string]bool, len(o.Scrub))
	for _, name := range o.Scrub {
		scrub[name] = true
	}
	for _, v := range o.Env {
		if name, _, ok := strings.Cut(v, "="); ok && !scrub[name] {
			c.env = append(c.env, v)
		}
	}
	answer, err := c.Complete(ctx, loop.ProbeRequest)
	if err != nil {
		return nil, failed("the probe failed", err)
	}
	probed, err := loop.ParseProbe(answer)
	if err != nil {
		return nil, failed("the probe did not return JSON with a model", err)
	}
	if c.model == "" {
		c.model = probed
	}
	if c.model == "" {
		c.model = "unspecified"
	}
	return c, nil
}

// failed makes the coded error of a backend.
func failed(what string, cause error) error {
	return module.Wrap(module.CodeLoopBackend, cause, what)
}

var errTooLarge = errors.New("response_too_large")

// Model returns the name of the model.
func (c *Command) Model() string { return c.model }

// Complete runs the command once. A spawn error, a non-zero exit, the timeout,
// output over the limit, output that is not UTF-8 and a process left behind that
// holds the output are LOOP_BACKEND.
func (c *Command) Complete(ctx context.Context, request string) (string, error) {
	if len(request) > c.o.MaxRequest {
		return "", failed(fmt.Sprintf("request of %d bytes is over the limit", len(request)), nil)
	}
	select {
	case c.turn <- struct{}{}:
		defer func() { <-c.turn }()
	case <-ctx.Done():
		return "", failed("gave up waiting for the command before", context.Cause(ctx))
	}
	ctx, stop := context.WithTimeoutCause(ctx, c.o.Timeout, errors.New("timed out"))
	defer stop()
	ctx, kill := context.WithCancelCause(ctx)
	defer kill(nil)

	out := &capped{limit: c.o.MaxResponse, full: func() { kill(errTooLarge) }}
	cmd := exec.CommandContext(ctx, c.argv[0], c.argv[1:]...) //nolint:gosec // the operator's own flag
	cmd.Env, cmd.Dir, cmd.WaitDelay = c.env, c.o.Dir, waitDelay
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(request), out, c.o.Stderr
	ownGroup(cmd)
	err := cmd.Run()
	killGroup(cmd)
	switch {
	case out.over:
		return "", failed(fmt.Sprintf("response is over the limit of %d bytes", c.o.MaxResponse), errTooLarge)
	case ctx.Err() != nil:
		return "", failed("the command was stopped", context.Cause(ctx))
	case err != nil:
		return "", failed("the command failed", err)
	case !utf8.Valid(out.buf.Bytes()):
		return "", failed("the response is not UTF-8", nil)
	}
	return out.buf.String(), nil
}

// capped takes output up to a limit; past it the rest is dropped, so that the
// writer never blocks on us, and full is called. Used by one goroutine.
type capped struct {
	buf   bytes.Buffer
	limit int
	over  bool
	full  func()
}

func (c *capped) Write(p []byte) (int, error) {
	room := c.limit - c.buf.Len()
	if len(p) > room {
		if !c.over {
			c.over = true
			c.full()
		}
		c.buf.Write(p[:max(0, room)])
		return len(p), nil
	}
	return c.buf.Write(p)
}
