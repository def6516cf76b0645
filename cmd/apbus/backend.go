package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/apbus/apbus/cancel"
	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/internal/settings"
	"github.com/apbus/apbus/module"
)

// backend is a way to the modules: a router, or the bus itself. Maps are in the
// form of the HTTP API, so that --json prints the same either way. Errors of
// the far side are coded.
type backend interface {
	Modules(ctx context.Context) ([]map[string]any, error)
	Module(ctx context.Context, id string) (map[string]any, error)
	Nodes(ctx context.Context) ([]map[string]any, error)
	// Stats asks every node what it does and has done.
	Stats(ctx context.Context) ([]contextwire.NodeStats, error)
	// Drain tells a node to take nothing new and to finish within grace.
	Drain(ctx context.Context, node string, grace time.Duration) (map[string]any, error)
	// Call waits for the end. When ctx is cancelled it cancels the remote work and
	// returns an *interruptedError. A call that failed has a result beside its error
	// when a trace was asked for.
	Call(ctx context.Context, r *callRequest) (*callResult, error)
	// Start makes a call that goes on without us and returns its ID.
	Start(ctx context.Context, r *callRequest) (call string, err error)
	Check(ctx context.Context, r *callRequest) (*module.PreflightResult, error)
	// Cancel stops calls; nobody knowing them is the state "unknown".
	Cancel(ctx context.Context, sel cancel.Selector, reason string) (*cancelled, error)
	Close()
}

// callRequest is one call or check.
type callRequest struct {
	id string
	// inputs are the inputs unless raw holds them as JSON text, which then is
	// read once; size is its length, -1 when unknown.
	inputs map[string]any
	raw    io.Reader
	size   int64
	// timeout is the budget, zero for none.
	timeout time.Duration
	// approval is the token of an approval that was granted, "" for none.
	approval string
	// node is the only one that may have the call, "" for any.
	node string
	// trace asks for the pipeline trace.
	trace bool
	// progress hears how far the module is, unless it is nil.
	progress func(module.ProgressReport)
	// chunk takes each part of the output as it comes, counted from 0; nil asks for
	// the whole. An error of it ends the call. Neither is called twice at once.
	chunk func(seq uint64, chunk map[string]any) error
}

// callResult is what a call came to.
type callResult struct {
	output map[string]any
	// chunks is how many parts came.
	chunks uint64
	// trace is nil unless it was asked for and given.
	trace map[string]any
}

// cancelled says who stops what.
type cancelled struct {
	nodes, calls []string
	state        string
}

// stateUnknown is the state of calls that nobody knows.
const stateUnknown = "unknown"

func (c *cancelled) document() map[string]any {
	return map[string]any{"nodes": anyList(c.nodes), "calls": anyList(c.calls), "state": c.state}
}

func anyList(list []string) []any {
	out := make([]any, len(list))
	for i, s := range list {
		out[i] = s
	}
	return out
}

// cancelLimit bounds cancelling the remote work after Ctrl-C.
const cancelLimit = 2 * time.Second

// interruptedError says what became of the remote work after Ctrl-C.
type interruptedError struct {
	result *cancelled
	err    error // why the cancel is not confirmed, nil when it is
}

func (e *interruptedError) Error() string {
	switch {
	case e.err != nil:
		return fmt.Sprintf("interrupted: the call was given up, but its end is not confirmed: %v", e.err)
	case e.result.state == stateUnknown:
		return "interrupted: the call was given up; it had not begun or was over already"
	}
	return fmt.Sprintf("interrupted: cancelled call %s on %s", strings.Join(e.result.calls, ", "), strings.Join(e.result.nodes, ", "))
}

// Unwrap makes the process exit as interrupted.
func (e *interruptedError) Unwrap() error { return settings.ErrInterrupted }
