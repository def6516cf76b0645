package module

import (
	"maps"
	"strings"
	"sync"
)

// Data is the state that the calls of one tree share inside one process
// (protocol §5.7). It is safe for concurrent use. Keys that start with "_" stay
// in the process; everything else is copied outwards with a call that crosses
// to another node, where later writes do not come back.
type Data struct {
	mu     sync.RWMutex
	values map[string]any
}

// NewData copies the top level of values.
func NewData(values map[string]any) *Data { return &Data{values: maps.Clone(values)} }

// Get returns the value under key and whether there is one.
func (d *Data) Get(key string) (any, bool) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	v, ok := d.values[key]
	return v, ok
}

// Set stores a value.
func (d *Data) Set(key string, value any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.values == nil {
		d.values = map[string]any{}
	}
	d.values[key] = value
}

// Delete removes key.
func (d *Data) Delete(key string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.values, key)
}

// Len returns the number of keys.
func (d *Data) Len() int {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return len(d.values)
}

// All returns a copy of the map; the values themselves are shared.
func (d *Data) All() map[string]any {
	d.mu.RLock()
	defer d.mu.RUnlock()
	if d.values == nil {
		return map[string]any{}
	}
	return maps.Clone(d.values)
}

// Public returns a copy of what may leave the process: every key that does not
// start with "_".
func (d *Data) Public() map[string]any {
	out := d.All()
	for k := range out {
		if strings.HasPrefix(k, localPrefix) {
			delete(out, k)
		}
	}
	return out
}

// localPrefix begins the keys that stay in the process.
const localPrefix = "_"

// Keys that the framework keeps in [Data].
const (
	DataTraceFlags = "_apcore.trace.flags"
	DataTraceState = "_apcore.trace.state"
	// DataDeadline holds an absolute time in Unix seconds that crosses processes
	// and that the deadline middleware reads (core-executor seed, global_deadline
	// distributed semantics).
	DataDeadline = "x-deadline"
)
