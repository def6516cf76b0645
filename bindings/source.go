package bindings

import (
	"os"
	"slices"
	"strings"
)

// sourceMark stands in argv for the path of the program text.
const sourceMark = "{source}"

// Revisable reports whether the binding names its program text, so that another one
// can be run in its place.
func (m *Module) Revisable() bool {
	c, ok := (*m.run.Load()).(*commandRunner)
	return ok && c.Source != ""
}

// RunSource makes m run the program text in a file from the next call on; with ""
// that of the binding again. It does nothing unless m is Revisable.
func (m *Module) RunSource(path string) { m.source.Store(&path) }

// WithSource is a module of its own that is m but runs the program text in a file:
// to try it out.
func (m *Module) WithSource(path string) *Module {
	other := newModule(m.desc, *m.run.Load(), m.file)
	other.RunSource(path)
	return other
}

// source reads where the program text is. argv must say where its path goes.
func (l *loader) source(at place, in fields, c *commandRunner) error {
	marked := slices.ContainsFunc(c.Argv, func(a string) bool { return strings.Contains(a, sourceMark) })
	p, ok := in["source"]
	switch {
	case !ok && marked:
		return at.fault("argv names %s, but the key source is missing", sourceMark)
	case !ok:
		return nil
	case !marked:
		return p.fault("source is not used: argv does not hold %s", sourceMark)
	}
	c.Source = l.path(c.Source)
	if _, err := os.Stat(c.Source); err != nil {
		return p.fault("source: %w", err)
	}
	return nil
}

// argv is the command line for a program text, that of the binding when path is "".
func (r *commandRunner) argv(path string) []string {
	if r.Source == "" {
		return r.Argv
	}
	if path == "" {
		path = r.Source
	}
	list := make([]string, len(r.Argv))
	for i, a := range r.Argv {
		list[i] = strings.ReplaceAll(a, sourceMark, path)
	}
	return list
}
