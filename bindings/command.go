package bindings

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/apbus/apbus/module"
)

// passedOn are the environment variables that every command gets, where they are
// set; nothing else of the node's environment reaches it unless pass_env names it.
func passedOn() []string { return []string{"PATH", "HOME", "LANG", "TZ", "TMPDIR"} }

// afterExit is how long a command's output may stay open after it has ended, held
// by children it left behind.
const afterExit = 250 * time.Millisecond

// commandRunner runs a command for each call.
type commandRunner struct {
	Argv   []string
	Source string // path of the program text, "" for none
	Dir    string
	Env    []string // sorted NAME=value
	Limit  int64
	Grace  time.Duration
	Stream bool
	log    *slog.Logger
}

func (l *loader) command(at place, desc module.Descriptor) (runner, error) {
	in, err := at.mapping([]string{"argv", "source", "dir", "env", "pass_env", "max_output", "grace"})
	if err != nil {
		return nil, err
	}
	r := &fieldReader{in: in}
	c := &commandRunner{
		Argv: r.texts("argv"), Source: r.text("source"), Dir: l.path(r.text("dir")), Limit: r.size("max_output", defaultLimit),
		Grace: r.duration("grace", defaultGrace), Stream: desc.Annotations.Streaming, log: l.o.Logger,
	}
	names := append(passedOn(), r.texts("pass_env")...)
	if r.err != nil {
		return nil, r.err
	}
	if len(c.Argv) == 0 || c.Argv[0] == "" {
		if p, ok := in["argv"]; ok {
			at = p
		}
		return nil, at.fault("argv names the program and its arguments, at least the program")
	}
	if strings.ContainsRune(c.Argv[0], '/') {
		c.Argv[0] = l.path(c.Argv[0])
	}
	if err := l.source(at, in, c); err != nil {
		return nil, err
	}
	env := map[string]string{}
	for _, name := range names {
		if v, ok := l.env(name); ok {
			env[name] = v
		}
	}
	if p, ok := r.at("env"); ok {
		set, err := l.secrets(p, envName)
		if err != nil {
			return nil, err
		}
		for name, v := range set {
			env[name] = v
		}
	}
	for name, v := range env {
		c.Env = append(c.Env, name+"="+v)
	}
	slices.Sort(c.Env)
	return c, nil
}

func envName(name string) bool {
	return name != "" && !strings.ContainsAny(name, "=\x00 ")
}

// spec implements runner.
func (r *commandRunner) spec() any {
	c := *r
	c.log = nil
	return c
}

// run implements runner.
func (r *commandRunner) run(c *call, emit func(map[string]any) error) error {
	stdin, err := json.Marshal(c.inputs)
	if err != nil {
		return module.Errorf(module.CodeModuleExecuteError, "module %s: the inputs have no JSON form", c.moduleID)
	}
	if c.ctx.Err() != nil {
		return context.Cause(c.ctx)
	}
	p := &process{r: r, c: c, stop: make(chan struct{}), over: make(chan struct{})}
	out := newOutput(r.Limit, r.Stream, p.end)
	errs := &lineLog{log: r.log, c: c}
	argv := r.argv(c.source)
	cmd := exec.Command(argv[0], argv[1:]...) //nolint:gosec,noctx // the operator wrote it down; how it ends is ours
	cmd.Dir, cmd.WaitDelay = r.Dir, afterExit
	cmd.Env = append(slices.Clone(r.Env), "APBUS_MODULE="+c.moduleID, "APBUS_CALL="+c.callID, "TRACEPARENT="+c.traceparent)
	cmd.Stdin, cmd.SysProcAttr = bytes.NewReader(append(stdin, '\n')), ownGroup()
	p.cmd = cmd
	if err := p.start(out, errs); err != nil {
		r.log.LogAttrs(c.ctx, slog.LevelError, "command not started", c.attrs(slog.String("cause", err.Error()))...)
		return failed(c, ReasonNotStarted, "its command could not be started")
	}
	// The chunks are handed over here, where the caller is.
	emitted := out.each(emit)
	if emitted != nil {
		p.end()
	}
	p.wg.Wait()
	errs.flush()
	return p.outcome(out, emitted, emit)
}

// start starts the command and everything that follows it.
func (p *process) start(out *output, errs *lineLog) error {
	outRead, outWrite, err := os.Pipe()
	if err != nil {
		return err
	}
	errRead, errWrite, err := os.Pipe()
	if err == nil {
		p.cmd.Stdout, p.cmd.Stderr = outWrite, errWrite
		err = p.cmd.Start()
		_ = errWrite.Close() // the command has its own
	}
	_ = outWrite.Close()
	if err != nil {
		_ = outRead.Close()
		if errRead != nil {
			_ = errRead.Close()
		}
		return err
	}
	p.wg.Go(p.watch)
	p.wg.Go(func() {
		drain(outRead, out, p.over)
		out.close()
	})
	p.wg.Go(func() { drain(errRead, errs, p.over) })
	p.wg.Go(func() {
		p.waited = p.cmd.Wait()
		killGroup(p.cmd.Process.Pid) // what it left behind
		close(p.over)
		// Whoever has left the group may hold the other end of the pipes.
		_ = outRead.SetReadDeadline(time.Now().Add(afterExit))
		_ = errRead.SetReadDeadline(time.Now().Add(afterExit))
	})
	return nil
}

// drain reads until there is no more, or to takes no more. Once the command is
// over what it wrote is still read, however slow to is, but not waited for longer
// than afterExit.
func drain(from *os.File, to io.Writer, over <-chan struct{}) {
	defer func() { _ = from.Close() }()
	buf := make([]byte, 32<<10)
	for {
		select {
		case <-over:
			_ = from.SetReadDeadline(time.Now().Add(afterExit))
		default:
		}
		n, err := from.Read(buf)
		if n > 0 {
			if _, err := to.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// process is one command that runs.
type process struct {
	r      *commandRunner
	c      *call
	cmd    *exec.Cmd
	waited error
	once   sync.Once
	stop   chan struct{}
	over   chan struct{} // closed when the command has ended
	wg     sync.WaitGroup
}

// end makes watch end the command.
func (p *process) end() { p.once.Do(func() { close(p.stop) }) }

// watch ends the command's group when its call does, softly first.
func (p *process) watch() {
	select {
	case <-p.over:
		return
	case <-p.c.ctx.Done():
	case <-p.stop:
	}
	pid := p.cmd.Process.Pid
	endGroup(pid)
	grace := time.NewTimer(p.r.Grace)
	defer grace.Stop()
	select {
	case <-p.over:
	case <-grace.C:
		killGroup(pid)
	}
}

// outcome is what the run came to, once everything has ended.
func (p *process) outcome(out *output, emitted error, emit func(map[string]any) error) error {
	c := p.c
	exit, unclean := errors.AsType[*exec.ExitError](p.waited)
	switch {
	case out.tooLarge():
		return tooLarge(c, p.r.Limit)
	case emitted != nil && !errors.Is(emitted, errNotJSON):
		return emitted
	case c.ctx.Err() != nil && (unclean || p.r.Stream):
		return context.Cause(c.ctx)
	case emitted != nil:
		return failed(c, ReasonNotJSON, "its command wrote a line that is no JSON object")
	case unclean && exit.ExitCode() < 0:
		return failed(c, ReasonSignal, "its command was killed")
	case unclean:
		if own := ownError(c, out.rest()); own != nil {
			return own
		}
		return failed(c, ReasonExit, "its command failed").WithDetail("exit_code", int64(exit.ExitCode()))
	case p.r.Stream && out.rest() == nil:
		return nil
	}
	// What it wrote before it ended of its own accord counts, also in the grace of a
	// call whose time is over.
	doc, err := decodeObject(out.rest())
	switch {
	case err == nil:
		return emit(doc)
	case c.ctx.Err() != nil:
		return context.Cause(c.ctx)
	}
	return failed(c, ReasonNotJSON, "its command wrote "+err.Error())
}

func (c *call) attrs(more ...slog.Attr) []slog.Attr {
	attrs := []slog.Attr{slog.String("module_id", c.moduleID)}
	if c.callID != "" {
		attrs = append(attrs, slog.String("call_id", c.callID))
	}
	if c.traceID != "" {
		attrs = append(attrs, slog.String("trace_id", c.traceID))
	}
	return append(attrs, more...)
}
