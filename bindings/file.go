package bindings

import (
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"time"

	"github.com/apbus/apbus/module"
	"github.com/apbus/apbus/schema"
)

// Options is what files may refer to.
type Options struct {
	// Env looks up the environment variables that bindings name; nil finds none.
	Env func(string) (string, bool)
	// Logger gets what commands write to standard error, a record for each line,
	// with module_id, call_id and trace_id; slog.Default() when nil.
	Logger *slog.Logger
}

// Load reads binding files and makes their modules, in order. Anything wrong is
// BINDING_FILE_INVALID that names file, line and key; then there are no modules at
// all. A module ID may be in the files only once.
func Load(files []string, o Options) ([]*Module, error) {
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	var all []*Module
	seen := map[string]place{}
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			return nil, module.Errorf(module.CodeBindingFileInvalid, "read bindings: %w", err)
		}
		l := &loader{o: o, dir: filepath.Dir(file), seen: seen}
		mods, err := l.file(file, raw)
		if err != nil {
			return nil, err
		}
		all = append(all, mods...)
	}
	return all, nil
}

// loader reads one file.
type loader struct {
	o    Options
	dir  string // what relative paths in the file are relative to
	seen map[string]place
}

func (l *loader) file(name string, raw []byte) ([]*Module, error) {
	root, err := parse(name, raw)
	if err != nil {
		return nil, err
	}
	top, err := root.mapping([]string{"bindings"})
	if err != nil {
		return nil, err
	}
	list, ok := top["bindings"]
	if !ok {
		return nil, root.fault("the key bindings is missing")
	}
	items, err := list.items()
	if err != nil {
		return nil, err
	}
	mods := make([]*Module, 0, len(items))
	for _, item := range items {
		m, err := l.binding(item)
		if err != nil {
			return nil, err
		}
		mods = append(mods, m)
	}
	return mods, nil
}

func bindingKeys() []string {
	return []string{
		"module_id", "name", "description", "documentation", "version", "tags", "input_schema", "output_schema",
		"annotations", "metadata", "timeout", "command", "http",
	}
}

func (l *loader) binding(at place) (*Module, error) {
	in, err := at.mapping(bindingKeys())
	if err != nil {
		return nil, err
	}
	r := &fieldReader{in: in}
	desc := module.Descriptor{
		ID: r.text("module_id"), Name: r.text("name"), Description: r.text("description"), Documentation: r.text("documentation"),
		Version: r.text("version"), Tags: r.texts("tags"), Metadata: r.object("metadata"),
	}
	if _, ok := r.at("timeout"); ok {
		desc.Timeout = new(r.duration("timeout", 0))
	}
	if r.err != nil {
		return nil, r.err
	}
	if err := l.identify(at, in, &desc); err != nil {
		return nil, err
	}
	if desc.InputSchema, err = schemaOf(in, "input_schema"); err != nil {
		return nil, err
	}
	if desc.OutputSchema, err = schemaOf(in, "output_schema"); err != nil {
		return nil, err
	}
	if desc.Annotations, err = annotationsOf(in); err != nil {
		return nil, err
	}
	run, err := l.runner(at, in, desc)
	if err != nil {
		return nil, err
	}
	return newModule(desc, run, at.file), nil
}

// identify checks the module ID, which nobody else may have.
func (l *loader) identify(at place, in fields, desc *module.Descriptor) error {
	id, ok := in["module_id"]
	if !ok {
		return at.fault("the key module_id is missing")
	}
	if err := module.ValidateID(desc.ID); err != nil {
		return id.fault("%w", err)
	}
	if module.IsReservedID(desc.ID) {
		return id.fault("module id %s begins with a reserved word", desc.ID)
	}
	if first, twice := l.seen[desc.ID]; twice {
		return id.fault("module %s is bound already at %s:%d", desc.ID, first.file, first.line)
	}
	l.seen[desc.ID] = id
	if desc.Description == "" {
		return at.fault("the key description is missing")
	}
	return nil
}

// schemaOf reads an inline schema; absent it admits every object.
func schemaOf(in fields, key string) (map[string]any, error) {
	p, ok := in[key]
	if !ok || p.isNull() {
		return map[string]any{"type": "object"}, nil
	}
	doc, err := p.object()
	if err != nil {
		return nil, err
	}
	if _, err := schema.Compile(doc); err != nil {
		return nil, p.fault("%w", err)
	}
	return doc, nil
}

func annotationKeys() []string {
	return []string{
		"readonly", "destructive", "idempotent", "requires_approval", "streaming", "cacheable", "cache_ttl", "cache_key_fields",
		"paginated", "pagination_style", "discoverable", "open_world", "extra",
	}
}

// annotationsOf reads annotations by their names on the wire, strictly.
func annotationsOf(in fields) (module.Annotations, error) {
	p, ok := in["annotations"]
	if !ok || p.isNull() {
		return module.Annotations{}, nil
	}
	keys, err := p.mapping(annotationKeys())
	if err != nil {
		return module.Annotations{}, err
	}
	wire := map[string]any{}
	defaults := module.Annotations{}.Map()
	for key, at := range keys {
		v, err := at.value()
		if err != nil {
			return module.Annotations{}, err
		}
		if want := defaults[key]; want != nil && reflect.TypeOf(v) != reflect.TypeOf(want) {
			return module.Annotations{}, at.fault("want a value like %v", want)
		}
		wire[key] = v
	}
	return module.AnnotationsFromMap(wire), nil
}

// runner is what a module runs.
type runner interface {
	// run passes every object that comes out to emit, until there are no more. Not
	// streaming there is exactly one. An error of emit ends it.
	run(c *call, emit func(map[string]any) error) error
	// spec is what it was declared as, to be compared.
	spec() any
}

func (l *loader) runner(at place, in fields, desc module.Descriptor) (runner, error) {
	command, isCommand := in["command"]
	endpoint, isHTTP := in["http"]
	switch {
	case isCommand && isHTTP:
		return nil, endpoint.fault("a binding is a command or an HTTP endpoint, not both")
	case isCommand:
		return l.command(command, desc)
	case isHTTP:
		return l.http(endpoint, desc)
	}
	return nil, at.fault("neither command nor http says what the module runs")
}

// secret reads a text, {env: NAME} or {file: PATH}.
func (l *loader) secret(p place) (string, error) {
	if s, err := p.text(); err == nil {
		return s, nil
	}
	in, err := p.mapping([]string{"env", "file"})
	if err != nil || len(in) != 1 {
		return "", p.fault("want a text, {env: NAME} or {file: PATH}")
	}
	r := &fieldReader{in: in}
	name, path := r.text("env"), r.text("file")
	if r.err != nil {
		return "", r.err
	}
	if _, ok := in["env"]; ok {
		if v, ok := l.env(name); ok {
			return v, nil
		}
		return "", in["env"].fault("the environment variable %s is not set", name)
	}
	raw, err := os.ReadFile(l.path(path))
	if err != nil {
		return "", in["file"].fault("%w", err)
	}
	return strings.TrimRight(string(raw), "\r\n"), nil
}

func (l *loader) env(name string) (string, bool) {
	if l.o.Env == nil {
		return "", false
	}
	return l.o.Env(name)
}

// path makes a path of the file absolute.
func (l *loader) path(p string) string {
	if !filepath.IsAbs(p) {
		p = filepath.Join(l.dir, p)
	}
	if abs, err := filepath.Abs(p); err == nil {
		return abs
	}
	return p
}

// secrets reads a mapping of names and secrets.
func (l *loader) secrets(p place, valid func(name string) bool) (map[string]string, error) {
	in, err := p.mapping(nil)
	if err != nil {
		return nil, err
	}
	out := map[string]string{}
	for name, at := range in {
		if !valid(name) {
			return nil, at.fault("%q is no name for this", name)
		}
		if out[name], err = l.secret(at); err != nil {
			return nil, err
		}
		if strings.ContainsAny(out[name], "\x00\r\n") {
			return nil, at.fault("the value holds a line break or a NUL")
		}
	}
	return out, nil
}

// defaultGrace is how long a command may take to end after SIGTERM.
const defaultGrace = 2 * time.Second

// defaultLimit bounds what a run may put out, in bytes.
const defaultLimit = 16 << 20
