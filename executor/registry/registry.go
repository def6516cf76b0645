package registry

import (
	"cmp"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/apbus/apbus/module"
	"github.com/apbus/apbus/schema"
)

// Options configures a [Registry]. The zero value is valid.
type Options struct {
	// Logger receives failed loads and unloads; nil means slog.Default().
	Logger *slog.Logger
	// Validate, when set, is asked about every module before the duplicate check;
	// its error refuses the module with GENERAL_INVALID_INPUT.
	Validate func(m module.Module) error
	// Events, when set, is told of every module that became visible or invisible
	// and of every failed load. It runs in the goroutine that made the change,
	// never under a lock, and must not block.
	Events func(module.Event)
	// Redactor masks the identity in the events of ephemeral modules; nil means
	// the default names.
	Redactor *schema.Redactor
}

// Registry holds the modules of one process. Make one with [New].
type Registry struct {
	log      *slog.Logger
	validate func(m module.Module) error
	schemas  *schema.Cache
	events   func(module.Event)
	redactor *schema.Redactor

	// visible maps an ID to its *Entry. It is written only under mu and read
	// without it.
	visible sync.Map
	// disabled holds the IDs that are switched off, nil for none. The set is
	// replaced under mu and never changed, since every lookup reads it.
	disabled atomic.Pointer[map[string]struct{}]
	warned   sync.Map // deprecation, of those that were told

	mu       sync.Mutex
	reserved map[string]struct{} // IDs being loaded or unloaded
	watchers []*watcher
	visibleN int
	// callbacks by event; a slice is replaced, never changed.
	callbacks map[string][]*callback
}

type watcher struct{ notify func() }

// New returns an empty registry.
func New(opts Options) *Registry {
	return &Registry{
		log:      cmp.Or(opts.Logger, slog.Default()),
		validate: opts.Validate,
		schemas:  schema.NewCache(),
		events:   opts.Events,
		redactor: opts.Redactor,
		reserved: make(map[string]struct{}), callbacks: make(map[string][]*callback),
	}
}

// Get returns the module under id and whether there is one.
func (r *Registry) Get(id string) (*Entry, bool) {
	v, ok := r.visible.Load(id)
	if !ok {
		return nil, false
	}
	return v.(*Entry), true
}

// Lookup returns the module under id for a call when its version fits the
// constraint, "" standing for any version. The errors are MODULE_NOT_FOUND with
// details.module_id, MODULE_DISABLED with the same for one that is switched off,
// VERSION_INCOMPATIBLE with details module_id, required and actual, and
// VERSION_CONSTRAINT_INVALID.
func (r *Registry) Lookup(id, versionConstraint string) (*Entry, error) {
	e, ok := r.Get(id)
	if !ok {
		return nil, NotFound(id)
	}
	if r.disabled.Load() != nil && !r.Enabled(id) {
		return nil, module.Errorf(module.CodeModuleDisabled, "module %s is disabled", id).
			WithDetails(map[string]any{"module_id": id})
	}
	if versionConstraint == "" {
		return e, nil
	}
	actual := e.Descriptor.EffectiveVersion()
	ok, err := MatchVersion(versionConstraint, actual)
	if err != nil {
		return nil, err
	}
	if !ok {
		return nil, module.Errorf(module.CodeVersionIncompatible, "module %s has version %s, which does not fit the constraint", id, actual).
			WithDetails(map[string]any{"module_id": id, "required": versionConstraint, "actual": actual})
	}
	return e, nil
}

// NotFound is the error of a well-formed ID that no module has.
func NotFound(id string) *module.Error {
	return module.Errorf(module.CodeModuleNotFound, "module %s is not registered", id).
		WithDetails(map[string]any{"module_id": id})
}

// Filter selects modules for [Registry.List]. The zero value lists every
// discoverable module.
type Filter struct {
	// Tags must all be among the module's tags, those of its metadata included.
	Tags []string
	// Prefix is a plain prefix of the ID.
	Prefix string
	// Hidden includes modules that are not discoverable.
	Hidden bool
}

// List returns the IDs that pass the filter, sorted.
func (r *Registry) List(f Filter) []string {
	ids := []string{}
	r.visible.Range(func(_, v any) bool {
		d := v.(*Entry).Descriptor
		declared, _ := d.Metadata["tags"].([]any)
		hasTag := func(tag string) bool { return slices.Contains(d.Tags, tag) || slices.Contains(declared, any(tag)) }
		missing := slices.ContainsFunc(f.Tags, func(tag string) bool { return !hasTag(tag) })
		if strings.HasPrefix(d.ID, f.Prefix) && (f.Hidden || !d.Annotations.Hidden) && !missing {
			ids = append(ids, d.ID)
		}
		return true
	})
	slices.Sort(ids)
	return ids
}

// Descriptors returns every module's descriptor, hidden ones included, sorted by
// ID. Their maps and slices must not be modified.
func (r *Registry) Descriptors() []module.Descriptor {
	list := []module.Descriptor{}
	r.visible.Range(func(_, v any) bool {
		list = append(list, *v.(*Entry).Descriptor)
		return true
	})
	slices.SortFunc(list, func(a, b module.Descriptor) int { return strings.Compare(a.ID, b.ID) })
	return list
}

// Len returns how many modules are visible.
func (r *Registry) Len() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.visibleN
}

// OnChange arranges for notify to be called after every module that became
// visible or invisible, in the goroutine that made the change, without arguments
// since several changes may already have happened. Calls may overlap. The
// returned function takes it off again; a call already under way may still end
// after it.
func (r *Registry) OnChange(notify func()) (stop func()) {
	w := &watcher{notify}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.watchers = append(r.watchers, w)
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		// A new slice, because changed iterates over the old one without the lock.
		r.watchers = slices.DeleteFunc(slices.Clone(r.watchers), func(o *watcher) bool { return o == w })
	}
}

func (r *Registry) changed() {
	r.mu.Lock()
	watchers := r.watchers
	r.mu.Unlock()
	for _, w := range watchers {
		w.notify()
	}
}
