package task

import (
	"context"
	"encoding/json"
	"slices"
	"sync"
)

// Info is apcore's TaskInfo, the record of a [Manager]. Its JSON has exactly these
// keys (protocol §5.8).
type Info struct {
	TaskID      string          `json:"task_id"`
	ModuleID    string          `json:"module_id"`
	Status      Status          `json:"status"`
	SubmittedAt Stamp           `json:"submitted_at"`
	StartedAt   Stamp           `json:"started_at"`
	CompletedAt Stamp           `json:"completed_at"`
	Result      json.RawMessage `json:"result"` // only when completed
	Error       *string         `json:"error"`  // only when failed
	RetryCount  int             `json:"retry_count"`
	MaxRetries  int             `json:"max_retries"`
}

// Store keeps the records of a [Manager]. A backend that cannot be reached fails
// with TASK_STORE_UNAVAILABLE, which the manager passes on; it is never an empty
// answer. The methods may be called from several goroutines, and what they return
// belongs to the caller. tasktest.TestStore says the rest.
type Store interface {
	// Save inserts a record, or replaces the one of the same ID in its place.
	Save(ctx context.Context, t Info) error
	// Get returns one record, nil for an unknown ID.
	Get(ctx context.Context, id string) (*Info, error)
	// List returns the records in the order in which they were first saved, those of
	// one status unless it is empty.
	List(ctx context.Context, status Status) ([]Info, error)
	// Delete removes a record; an unknown ID is no error.
	Delete(ctx context.Context, id string) error
	// ListExpired returns the terminal records that were completed before a time.
	ListExpired(ctx context.Context, before Stamp) ([]Info, error)
}

// MemStore is a [Store] in memory, the default of a [Manager]. It never fails.
type MemStore struct {
	mu    sync.Mutex
	tasks map[string]*memTask
	next  int64
}

type memTask struct {
	Info
	place int64
}

var _ Store = (*MemStore)(nil)

// NewMemStore makes an empty store.
func NewMemStore() *MemStore { return &MemStore{tasks: make(map[string]*memTask)} }

// Save inserts or replaces a record.
func (s *MemStore) Save(_ context.Context, t Info) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if old := s.tasks[t.TaskID]; old != nil {
		old.Info = copyInfo(t)
		return nil
	}
	s.next++
	s.tasks[t.TaskID] = &memTask{copyInfo(t), s.next}
	return nil
}

// Get returns one record, nil for an unknown ID.
func (s *MemStore) Get(_ context.Context, id string) (*Info, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.tasks[id]
	if t == nil {
		return nil, nil
	}
	c := copyInfo(t.Info)
	return &c, nil
}

// List returns the records of a status, all when it is empty.
func (s *MemStore) List(_ context.Context, status Status) ([]Info, error) {
	return s.pick(func(t *memTask) bool { return status == "" || t.Status == status }), nil
}

// Delete removes a record.
func (s *MemStore) Delete(_ context.Context, id string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.tasks, id)
	return nil
}

// ListExpired returns the terminal records that were completed before a time.
func (s *MemStore) ListExpired(_ context.Context, before Stamp) ([]Info, error) {
	return s.pick(func(t *memTask) bool {
		return t.Status.Terminal() && t.CompletedAt != 0 && t.CompletedAt < before
	}), nil
}

func (s *MemStore) pick(want func(*memTask) bool) []Info {
	s.mu.Lock()
	defer s.mu.Unlock()
	var found []*memTask
	for _, t := range s.tasks {
		if want(t) {
			found = append(found, t)
		}
	}
	slices.SortFunc(found, func(a, b *memTask) int { return int(a.place - b.place) })
	list := make([]Info, len(found))
	for i, t := range found {
		list[i] = copyInfo(t.Info)
	}
	return list
}

func copyInfo(t Info) Info {
	t.Result = slices.Clone(t.Result)
	if t.Error != nil {
		e := *t.Error
		t.Error = &e
	}
	return t
}
