package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/apbus/apbus/internal/settings"
	"github.com/apbus/apbus/module"
)

// inputArgs name a module and its inputs.
type inputArgs struct {
	ID    string   `arg:"" help:"Module to call, such as math.add."`
	Pairs []string `arg:"" optional:"" sep:"none" name:"k=v" help:"Inputs; the module's schema gives their types. Lists and objects are JSON."`
	Input string   `short:"i" local:"" placeholder:"JSON|@FILE|-" help:"All inputs as a JSON object, from a file or from standard input."`
}

// inputFlags are how a call or check gets its inputs.
type inputFlags struct {
	inputArgs
	Timeout time.Duration `local:"" placeholder:"5s" help:"Time the call may take; none leaves it to the module."`
	Node    string        `local:"" placeholder:"ID" help:"The only node that may have the call."`
}

// request builds the call. close gives back what it reads from.
func (f *inputFlags) request(s *session, b backend) (r *callRequest, closeInput func(), err error) {
	if f.Timeout < 0 {
		return nil, func() {}, settings.Usagef("--timeout must not be negative")
	}
	if r, closeInput, err = f.inputs(s, b); err == nil {
		r.timeout, r.node = f.Timeout, f.Node
	}
	return r, closeInput, err
}

// inputs reads the inputs. close gives back what they are read from.
func (f *inputArgs) inputs(s *session, b backend) (r *callRequest, closeInput func(), err error) {
	closeInput = func() {}
	if err := module.ValidateID(f.ID); err != nil {
		return nil, closeInput, err
	}
	r = &callRequest{id: f.ID}
	switch {
	case f.Input != "" && len(f.Pairs) > 0:
		return nil, closeInput, settings.Usagef("give the inputs as key=value or with --input, not both")
	case f.Input == "-":
		r.raw, r.size = s.stdin, -1
	case strings.HasPrefix(f.Input, "@"):
		file, err := os.Open(f.Input[1:])
		if err != nil {
			return nil, closeInput, settings.Usagef("--input: %w", err)
		}
		closeInput = func() { _ = file.Close() } // it was only read
		r.raw, r.size = io.NopCloser(file), -1
		if info, err := file.Stat(); err == nil && info.Mode().IsRegular() {
			if r.size = info.Size(); r.size == 0 {
				r.raw, r.inputs = nil, map[string]any{}
			}
		}
	case f.Input != "":
		if r.inputs, err = literalInput(f.Input); err != nil {
			return nil, closeInput, err
		}
	case len(f.Pairs) > 0:
		m, err := b.Module(s.ctx, f.ID)
		if err != nil {
			return nil, closeInput, err
		}
		schema, _ := m["input_schema"].(map[string]any)
		if r.inputs, err = inputsFrom(f.ID, schema, f.Pairs); err != nil {
			return nil, closeInput, err
		}
	default:
		r.inputs = map[string]any{}
	}
	return r, closeInput, nil
}

// callCmd calls a module.
type callCmd struct {
	inputFlags
	Approval string `local:"" placeholder:"TOKEN" help:"Token of an approval: the approval ID that the same call was answered with before."`
	Stream   bool   `local:"" help:"Print the output in parts, as they come."`
	Trace    bool   `local:"" help:"Print what the call went through, with times."`
	Detach   bool   `local:"" help:"Print the call's ID and leave; the router stays its caller."`
}

// Help shows calls that work with the built-in examples.
func (*callCmd) Help() string {
	return `Examples:
  apbus call math.add a=1 b=2
  apbus call text.wordcount --input @words.json
  apbus call text.words text="to be or not to be" delay_ms=200 --stream
  apbus call demo.chain path='["near.chain","far.whoami"]' --trace
  apbus call demo.sleep ms=60000 --detach

With --stream --json each part is a line {"seq","data"}, and the last line is
{"count","end"} with the whole output. On a terminal, progress is shown as a bar.`
}

// Run makes the call.
func (c *callCmd) Run(s *session) error {
	if c.Detach && (c.Stream || c.Trace) {
		return settings.Usagef("--detach leaves before there is anything to show; it goes with neither --stream nor --trace")
	}
	return s.with(func(b backend) error {
		r, closeInput, err := c.request(s, b)
		defer closeInput()
		if err != nil {
			return err
		}
		r.approval = c.Approval
		if c.Detach {
			return c.detach(s, b, r)
		}
		r.trace = c.Trace
		view := &callView{s: s, stream: c.Stream}
		view.listen(r)
		result, err := b.Call(s.ctx, r)
		view.bar.clear()
		if err != nil {
			return c.pending(view.failed(result, err))
		}
		return view.finished(result, c.Trace)
	})
}

// pending adds to an error that says that the call waits for a person how to go
// on. Inputs are not repeated: they may be secret.
func (c *callCmd) pending(err error) error {
	coded := module.AsError(err)
	if coded == nil || coded.Code != module.CodeApprovalPending {
		return err
	}
	if advice := c.pendingOnNodes(coded); advice != nil {
		return &advisedError{err: err, advice: advice}
	}
	id := text(coded.Details["approval_id"])
	if id == "" || coded.Details["module_id"] != c.ID {
		return err // a call further down waits; its caller must go on
	}
	return &advisedError{err: err, advice: []string{
		"a reviewer decides with: apbus approvals show " + id,
		"                         apbus approvals approve " + id + " --reason TEXT",
		"then go on with the same call and --approval: apbus call " + c.ID + " … --approval " + id,
	}}
}

// pendingOnNodes says how to go on with a call of a control module that each node of
// the fleet asks a person about by itself; nil for any other.
func (c *callCmd) pendingOnNodes(coded *module.Error) []string {
	var advice []string
	for _, row := range objects(coded.Details["nodes"]) {
		failure, _ := row["error"].(map[string]any)
		details, _ := failure["details"].(map[string]any)
		if id := printable(text(details["approval_id"])); id != "" {
			advice = append(advice, "once "+id+" is approved: apbus call "+c.ID+" … --node "+printable(text(row["node"]))+" --approval "+id)
		}
	}
	if len(advice) == 1 {
		return nil
	}
	return advice
}

func (c *callCmd) detach(s *session, b backend, r *callRequest) error {
	call, err := b.Start(s.ctx, r)
	if err != nil {
		return err
	}
	if s.stdout.json {
		return s.stdout.document(map[string]any{"call": call})
	}
	if s.stdout.terminal {
		defer fmt.Fprintf(s.spec.Stderr, "stop it with: apbus cancel %s\n", call)
	}
	return s.stdout.line("%s", call)
}
