package middleware

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/apbus/apbus/module"
)

// Namespaces of [Storage] (decision D-113).
const (
	StorageMetrics      = "metrics"
	StorageUsage        = "usage"
	StorageErrorHistory = "error_history"
)

// Storage keeps what collectors want to find again after a restart: JSON objects
// under keys in namespaces that do not see each other (protocol, StorageBackend).
// It is safe for concurrent use. Values are copies on both ways.
type Storage interface {
	// Save stores value, replacing what was there.
	Save(ctx context.Context, namespace, key string, value map[string]any) error
	// Get returns nil without an error when there is nothing.
	Get(ctx context.Context, namespace, key string) (map[string]any, error)
	// List returns what has a key that begins with prefix, all for "", sorted by key.
	List(ctx context.Context, namespace, prefix string) ([]StorageEntry, error)
	// Delete removes a value; one that is not there is no error.
	Delete(ctx context.Context, namespace, key string) error
}

// StorageEntry is one value of a namespace.
type StorageEntry struct {
	Key   string
	Value map[string]any
}

// MemoryStorage is a [Storage] for as long as the process lives.
type MemoryStorage struct {
	mu     sync.RWMutex
	spaces map[string]map[string]map[string]any
}

var _ Storage = (*MemoryStorage)(nil)

// NewMemoryStorage makes an empty one.
func NewMemoryStorage() *MemoryStorage {
	return &MemoryStorage{spaces: map[string]map[string]map[string]any{}}
}

// Save stores a copy. A missing namespace or key, or a value without a JSON form,
// is GENERAL_INVALID_INPUT.
func (s *MemoryStorage) Save(_ context.Context, namespace, key string, value map[string]any) error {
	if namespace == "" || key == "" || value == nil {
		return module.Errorf(module.CodeInvalidInput, "storage needs a namespace, a key and an object")
	}
	normal, err := module.NormalizeMap(value)
	if err != nil {
		return module.Wrap(module.CodeInvalidInput, err, "storage value has no json form")
	}
	own := copyValue(normal).(map[string]any)
	s.mu.Lock()
	defer s.mu.Unlock()
	space := s.spaces[namespace]
	if space == nil {
		space = map[string]map[string]any{}
		s.spaces[namespace] = space
	}
	space[key] = own
	return nil
}

// Get returns a copy, or nil.
func (s *MemoryStorage) Get(_ context.Context, namespace, key string) (map[string]any, error) {
	s.mu.RLock()
	v := s.spaces[namespace][key]
	s.mu.RUnlock()
	if v == nil {
		return nil, nil // an absent value is not an error
	}
	return copyValue(v).(map[string]any), nil // stored values never change
}

// List returns copies, sorted by key.
func (s *MemoryStorage) List(_ context.Context, namespace, prefix string) ([]StorageEntry, error) {
	s.mu.RLock()
	found := maps.Clone(s.spaces[namespace])
	s.mu.RUnlock()
	var out []StorageEntry
	for k, v := range found {
		if strings.HasPrefix(k, prefix) {
			out = append(out, StorageEntry{Key: k, Value: copyValue(v).(map[string]any)})
		}
	}
	slices.SortFunc(out, func(a, b StorageEntry) int { return cmp.Compare(a.Key, b.Key) })
	return out, nil
}

// Delete removes a value if there is one.
func (s *MemoryStorage) Delete(_ context.Context, namespace, key string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.spaces[namespace], key)
	return nil
}

func copyValue(v any) any {
	switch v := v.(type) {
	case map[string]any:
		out := make(map[string]any, len(v))
		for k, e := range v {
			out[k] = copyValue(e)
		}
		return out
	case []any:
		out := make([]any, len(v))
		for i, e := range v {
			out[i] = copyValue(e)
		}
		return out
	}
	return v
}
