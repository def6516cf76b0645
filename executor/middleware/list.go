package middleware

import (
	"fmt"
	"log/slog"
	"path"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/apbus/apbus/module"
)

// List holds the registered middlewares and hands out the current [Chain]. The
// zero value is not usable; see [NewList]. Safe for concurrent use; calls
// already running keep the chain they started on.
type List struct {
	logger *slog.Logger
	chain  atomic.Pointer[Chain]

	mu      sync.Mutex
	entries []entry // registration order
}

// NewList makes an empty list. A nil logger is slog.Default.
func NewList(logger *slog.Logger) *List {
	l := &List{logger: logger}
	if l.logger == nil {
		l.logger = slog.Default()
	}
	l.chain.Store(chainOf(l.logger, nil))
	return l
}

// UseOption changes how one middleware is registered.
type UseOption func(*entry)

// AllowDuplicate registers without the warning about another of its identity.
func AllowDuplicate() UseOption { return func(e *entry) { e.distinct = true } }

// Identified is a middleware with an identity of its own for the duplicate
// warning; without it the identity is the Go type and the name.
type Identified interface{ IdentityKey() string }

// Use registers m. It refuses with GENERAL_INVALID_INPUT: nil, an empty name, a
// priority outside MinPriority and MaxPriority, a middleware without any hook,
// one that cannot be compared, and the second of a [Single] type. A second middleware of one identity is
// registered with a warning that names both places (decision D-114).
func (l *List) Use(m Middleware, opts ...UseOption) error {
	e, err := newEntry(m)
	if err != nil {
		return err
	}
	for _, o := range opts {
		o(&e)
	}
	e.site = callSite()
	first, duplicate, err := l.add(e)
	if err != nil {
		return err
	}
	if duplicate && !e.distinct {
		l.logger.Warn("middleware is registered twice",
			"middleware", e.name, "first", first, "second", e.site)
	}
	return nil
}

// callSite says who called into the executor's packages, as file:line.
func callSite() string {
	own := path.Dir(reflect.TypeFor[List]().PkgPath())
	pcs := make([]uintptr, 16)
	frames := runtime.CallersFrames(pcs[:runtime.Callers(2, pcs)])
	for {
		f, more := frames.Next()
		if !more || !strings.HasPrefix(f.Function, own) || strings.HasSuffix(f.File, "_test.go") {
			return fmt.Sprintf("%s:%d", filepath.Base(f.File), f.Line)
		}
	}
}

func (l *List) add(e entry) (firstSite string, duplicate bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := refuseSecond(l.entries, e); err != nil {
		return "", false, err
	}
	key := identityOf(e)
	for _, other := range l.entries {
		if identityOf(other) == key {
			firstSite, duplicate = other.site, true
			break
		}
	}
	l.entries = append(l.entries, e)
	l.chain.Store(chainOf(l.logger, l.entries))
	return firstSite, duplicate, nil
}

// refuseSecond refuses another middleware of a type that wants to be the only one.
func refuseSecond(entries []entry, e entry) error {
	if _, single := e.m.(Single); !single {
		return nil
	}
	for _, other := range entries {
		if reflect.TypeOf(other.m) == reflect.TypeOf(e.m) {
			return module.Errorf(module.CodeInvalidInput, "there is a middleware %s already, and of its type one is enough", other.name)
		}
	}
	return nil
}

// Remove takes out the first registration of this very instance and reports
// whether there was one.
func (l *List) Remove(m Middleware) bool {
	if m == nil || !reflect.TypeOf(m).Comparable() {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	i := slices.IndexFunc(l.entries, func(e entry) bool { return e.m == m })
	if i < 0 {
		return false
	}
	l.entries = slices.Delete(l.entries, i, i+1) // chains hold copies
	l.chain.Store(chainOf(l.logger, l.entries))
	return true
}

// Chain returns the current chain. It never blocks.
func (l *List) Chain() *Chain { return l.chain.Load() }

func identityOf(e entry) string {
	if k, ok := e.m.(Identified); ok {
		return k.IdentityKey()
	}
	return fmt.Sprintf("%T %s", e.m, e.name)
}

func newEntry(m Middleware) (entry, error) {
	refuse := func(format string, args ...any) (entry, error) {
		return entry{}, module.Errorf(module.CodeInvalidInput, format, args...)
	}
	if m == nil {
		return refuse("middleware is nil")
	}
	if v := reflect.ValueOf(m); v.Kind() == reflect.Pointer && v.IsNil() {
		return refuse("middleware %T is a nil pointer", m)
	}
	if !reflect.TypeOf(m).Comparable() {
		return refuse("middleware %T is not comparable, register a pointer", m)
	}
	e := entry{m: m, name: m.Name(), priority: m.Priority()}
	if e.name == "" {
		return refuse("middleware %T has no name", m)
	}
	if e.priority < MinPriority || e.priority > MaxPriority {
		return refuse("middleware %s has priority %d, want %d to %d", e.name, e.priority, MinPriority, MaxPriority)
	}
	if x, ok := m.(Enricher); ok {
		e.enriches = x.EnrichesInputs()
	}
	e.before, _ = m.(BeforeHook)
	e.after, _ = m.(AfterHook)
	e.onError, _ = m.(ErrorHook)
	e.end, _ = m.(EndHook)
	if _, limits := m.(TimeLimiter); !limits && e.before == nil && e.after == nil && e.onError == nil && e.end == nil {
		return refuse("middleware %s has no hook", e.name)
	}
	return e, nil
}
