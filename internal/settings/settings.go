// Package settings reads what a binary was told: flags, then the environment,
// then one YAML file, in that order of strength, over the defaults of the flag
// definitions. It also prints the effective settings, makes the logger and
// says which exit code an error means. It does not exit, does not read the
// process environment and knows no binary's settings: each main declares its
// own struct and hands in its arguments, environment and outputs.
package settings

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"

	"github.com/alecthomas/kong"
)

// Spec says which program is started and with what.
type Spec struct {
	Name, Description, Version string
	// Args are the arguments without the program's name.
	Args []string
	// Env looks up the environment, as os.LookupEnv does. Nil is an empty one.
	Env func(string) (string, bool)
	// Stdout gets help, the version and the printed settings; Stderr gets logs.
	// Nil discards.
	Stdout, Stderr io.Writer
	// Options are passed to kong after the package's own, such as named mappers
	// or help groups.
	Options []kong.Option
}

// Result is what Parse found besides the settings themselves.
type Result struct {
	// Done is true when --help, --version or --print-config was answered, so
	// that nothing is left to run.
	Done bool
	// Command is the selected command as kong names it, such as "call <id>";
	// empty for a program without commands.
	Command string
	// Context is kong's own result, for programs with commands that run them
	// through it. It is nil when Done.
	Context *kong.Context
	// Logger writes to Spec.Stderr; see [NewLogger].
	Logger *slog.Logger
}

// common are the flags every binary has.
type common struct {
	Config      string           `help:"Read settings from this YAML file; its keys are the flags' names." placeholder:"FILE"`
	LogLevel    string           `help:"Least severe log record that is written: ${enum}." enum:"debug,info,warn,error" default:"info"`
	PrintConfig bool             `help:"Print the effective settings as YAML, secrets masked, and stop."`
	Version     kong.VersionFlag `help:"Print the version and stop."`
}

// Parse fills *cfg, a struct with kong tags (`help`, `default`, `enum`,
// `placeholder`, …), and adds --config, --log-level, --print-config, --version
// and --help to it. Every flag may also be given as APBUS_<FLAG>, upper case
// with underscores, and as the YAML key of the flag's own name; an empty
// environment variable counts as absent. Two further tags:
//
//	secret:""  the value is masked by --print-config
//	local:""   the flag is taken from the command line only
//
// With commands, one variable or key serves every command that has a flag of
// the name. Everything the user got wrong is a [*UsageError]; a wrong YAML key
// names its file, line and the nearest known key.
func Parse[T any](spec Spec, cfg *T) (*Result, error) { return parse(spec, cfg) }

func parse(spec Spec, cfg any) (*Result, error) {
	if spec.Env == nil {
		spec.Env = func(string) (string, bool) { return "", false }
	}
	if spec.Stdout == nil {
		spec.Stdout = io.Discard
	}
	if spec.Stderr == nil {
		spec.Stderr = io.Discard
	}
	var (
		base     common
		answered bool
		answer   bytes.Buffer
		external = &sources{env: spec.Env, origin: map[*kong.Flag]string{}}
	)
	options := []kong.Option{
		kong.Name(spec.Name), kong.Description(spec.Description),
		kong.Vars{"version": spec.Name + " " + spec.Version},
		kong.Writers(&answer, spec.Stderr),
		kong.Exit(func(int) { answered = true }),
		kong.Embed(&base),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, WrapUpperBound: 100}),
		kong.ValueFormatter(describeFlag),
		kong.WithBeforeResolve(external.load),
	}
	app, err := kong.New(cfg, append(options, spec.Options...)...)
	if err != nil {
		return nil, fmt.Errorf("declare the flags of %s: %w", spec.Name, err)
	}
	kctx, err := app.Parse(spec.Args)
	switch {
	case answered: // help or version; kong carries on after, what it finds then is moot
		_, err := spec.Stdout.Write(answer.Bytes())
		return &Result{Done: true}, err
	case err != nil:
		return nil, &UsageError{Program: spec.Name, Err: err}
	case base.PrintConfig:
		return &Result{Done: true}, printSettings(spec.Stdout, kctx, external.origin)
	}
	return &Result{
		Command: kctx.Command(), Context: kctx,
		Logger: NewLogger(spec.Stderr, level(base.LogLevel)),
	}, nil
}

// level maps a name that the enum of --log-level admitted.
func level(name string) slog.Level {
	var l slog.Level
	if err := l.UnmarshalText([]byte(name)); err != nil {
		return slog.LevelInfo
	}
	return l
}
