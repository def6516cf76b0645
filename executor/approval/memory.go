package approval

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/apbus/apbus/module"
)

// MemoryOptions configures [Memory]. The zero value is usable.
type MemoryOptions struct {
	// Wait is how long a call is held for a decision; 0 answers pending at once.
	Wait time.Duration
	// Expiry is how long a request can be decided, 24 hours by default.
	Expiry time.Duration
	// TokenExpiry is how long an approval can be used, 1 hour by default.
	TokenExpiry time.Duration
	// Max bounds the records kept, 10,000 by default. Finished ones make room,
	// oldest first; open ones never do.
	Max int
	// OnChange, when set, is told of every new state, outside locks and in no
	// particular order across records.
	OnChange func(Record)
	// Logger is slog.Default when nil.
	Logger *slog.Logger
}

// Memory keeps requests in this process (phase B). It is safe for concurrent
// use and needs no shutdown. Everything is lost with the process.
type Memory struct {
	o MemoryOptions

	mu      sync.Mutex
	records map[string]*stored
	order   []string // IDs, oldest first; may name records that are gone
}

type stored struct {
	record Record
	// settled is closed when the record leaves pending.
	settled chan struct{}
}

var _ Handler = (*Memory)(nil)

// NewMemory makes an empty store.
func NewMemory(o MemoryOptions) *Memory {
	if o.Expiry <= 0 {
		o.Expiry = 24 * time.Hour
	}
	if o.TokenExpiry <= 0 {
		o.TokenExpiry = time.Hour
	}
	if o.Max <= 0 {
		o.Max = 10_000
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	return &Memory{o: o, records: map[string]*stored{}}
}

// RequestApproval stores the request and waits up to the configured time. It
// fails with TASK_LIMIT_EXCEEDED when the store is full of open requests. When
// ctx ends first the request is withdrawn and the error is the context's cause.
func (m *Memory) RequestApproval(ctx context.Context, r *Request) (*Result, error) {
	b, err := Bind(r)
	if err != nil {
		return nil, err
	}
	rec := m.newRecord(r, b)
	s := &stored{record: rec, settled: make(chan struct{})}
	if err := m.insert(s); err != nil {
		return nil, err
	}
	m.changed(rec)
	result, err := m.await(ctx, s, b)
	if err != nil {
		m.withdraw(s)
	}
	return result, err
}

// CheckApproval claims the token when its request was approved; while it is
// pending it waits like RequestApproval. Whoever claims first wins.
func (m *Memory) CheckApproval(ctx context.Context, approvalID string, r *Request) (*Result, error) {
	b, err := Bind(r)
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	s := m.records[approvalID]
	m.mu.Unlock()
	if s == nil {
		return &Result{Status: Rejected, Reason: "the approval token is unknown"}, nil
	}
	return m.await(ctx, s, b)
}

// Decide settles a pending request and returns the record as it stands then,
// also with an error, so that a loser sees who won. See [Record.Decide] for the
// errors; an unknown ID is GENERAL_INVALID_INPUT wrapping [ErrNotFound].
func (m *Memory) Decide(_ context.Context, id string, d Decision) (Record, error) {
	rec, err := m.transition(id, func(r Record, now time.Time) (Record, error) { return r.Decide(d, now) })
	if err == nil {
		m.changed(rec)
	}
	return rec, err
}

// Get returns a record.
func (m *Memory) Get(id string) (Record, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.records[id]
	if s == nil {
		return Record{}, false
	}
	return snapshot(s.record.At(time.Now())), true
}

// Filter selects records; zero fields select everything.
type Filter struct {
	State    State
	ModuleID string
	Limit    int
}

// List returns matching records, newest first.
func (m *Memory) List(f Filter) []Record {
	now := time.Now()
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []Record
	for _, id := range slices.Backward(m.order) {
		s := m.records[id]
		if s == nil {
			continue
		}
		r := s.record.At(now)
		if (f.State != "" && r.State != f.State) || (f.ModuleID != "" && r.Binding.ModuleID != f.ModuleID) {
			continue
		}
		if out = append(out, snapshot(r)); len(out) == f.Limit {
			break
		}
	}
	return out
}

func (m *Memory) newRecord(r *Request, b Binding) Record {
	rec := Record{
		ID: module.NewTraceID(), State: StatePending, Binding: b,
		Inputs: r.RedactedArguments(), Description: r.Description, Tags: slices.Clone(r.Tags),
		Enrichers:   slices.Clone(r.Enrichers),
		Annotations: r.Annotations, Reason: r.Reason, TokenExpires: m.o.TokenExpiry,
	}
	if c := r.Context; c != nil {
		rec.TraceID, rec.CallChain = c.TraceID(), c.CallChain()
	}
	rec.Changes, rec.Warnings = m.introspect(r)
	rec.CreatedAt = time.Now().UTC()
	rec.ExpiresAt = rec.CreatedAt.Add(m.o.Expiry)
	return rec
}

// introspect asks the module what would change; its panic must not decide
// anything.
func (m *Memory) introspect(r *Request) (changes []module.Change, warnings []string) {
	guarded := func(f func()) {
		defer func() {
			if recover() != nil {
				m.o.Logger.Warn("preview for an approval request panicked", "module_id", r.ModuleID)
			}
		}()
		f()
	}
	if r.Preview != nil {
		guarded(func() { changes = r.Preview() })
	}
	if r.Preflight != nil {
		guarded(func() { warnings = r.Preflight() })
	}
	return changes, warnings
}

// insert makes room by dropping what is finished.
func (m *Memory) insert(s *stored) error {
	now := time.Now()
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.records) >= m.o.Max && !m.evictLocked(now) {
		return module.Errorf(module.CodeTaskLimitExceeded, "%d approval requests are open, the limit", len(m.records))
	}
	m.records[s.record.ID] = s
	m.order = append(m.order, s.record.ID)
	return nil
}

// evictLocked drops the oldest tenth of the limit, at least one, of the
// finished records, so that a full store does not pay for a walk at every
// request. It reports whether anything went.
func (m *Memory) evictLocked(now time.Time) bool {
	quota := max(1, m.o.Max/10)
	kept := m.order[:0]
	dropped := false
	for _, id := range m.order {
		s := m.records[id]
		if quota > 0 && s.record.At(now).State.Final() {
			delete(m.records, id)
			quota--
			dropped = true
			continue
		}
		kept = append(kept, id)
	}
	clear(m.order[len(kept):])
	m.order = kept
	return dropped
}

// await claims, or waits until the record settles, its time or the configured
// wait is over, or ctx ends.
func (m *Memory) await(ctx context.Context, s *stored, b Binding) (*Result, error) {
	result := m.claim(s, b)
	if result.Status != Pending || m.o.Wait <= 0 {
		return result, nil
	}
	m.mu.Lock()
	wait := min(m.o.Wait, time.Until(s.record.ExpiresAt))
	m.mu.Unlock()
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-s.settled:
	case <-timer.C:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	return m.claim(s, b), nil
}

// claim is the compare-and-set: the lock makes check and store one.
func (m *Memory) claim(s *stored, b Binding) *Result {
	m.mu.Lock()
	before := s.record.State
	rec, result := s.record.Claim(b, time.Now().UTC())
	if result.Status == Approved {
		s.record = rec
	}
	m.mu.Unlock()
	if result.Status == Approved && before == StateApproved {
		m.changed(rec)
	}
	return result
}

func (m *Memory) withdraw(s *stored) {
	m.mu.Lock()
	pending := s.record.At(time.Now()).State == StatePending
	if pending {
		s.record.State = StateWithdrawn
		close(s.settled)
	}
	rec := s.record
	m.mu.Unlock()
	if pending {
		m.changed(rec)
	}
}

func (m *Memory) transition(id string, f func(Record, time.Time) (Record, error)) (Record, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.records[id]
	if s == nil {
		return Record{}, refused(module.CodeInvalidInput, ErrNotFound)
	}
	rec, err := f(s.record, time.Now().UTC())
	if err != nil {
		return snapshot(rec), err
	}
	s.record = rec
	close(s.settled)
	return snapshot(rec), nil
}

func (m *Memory) changed(r Record) {
	if m.o.OnChange != nil {
		m.o.OnChange(snapshot(r))
	}
}

// snapshot copies what a reader could change.
func snapshot(r Record) Record {
	r.Inputs = maps.Clone(r.Inputs)
	r.Changes = slices.Clone(r.Changes)
	r.Warnings = slices.Clone(r.Warnings)
	r.Tags = slices.Clone(r.Tags)
	r.Enrichers = slices.Clone(r.Enrichers)
	r.CallChain = slices.Clone(r.CallChain)
	return r
}
