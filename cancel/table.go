package cancel

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// TableOptions sets the limits of a [Table]. Zero values mean the defaults.
type TableOptions struct {
	// TombstoneTTL is how long a tombstone is kept when the cancel request
	// names no time of its own. Default 2 minutes.
	TombstoneTTL time.Duration
	// TombstonesPerIssuer caps the tombstones of one issuer; beyond it the
	// oldest goes, counted in Stats. Default 10,000.
	TombstonesPerIssuer int
}

// Table holds the calls in flight in one process, and the tombstones of
// cancels that came before their call. One lock covers both, so a cancel finds
// the call running or leaves a tombstone the call will meet; it is never lost
// between the two (wire protocol, Ends other than success).
//
// All methods may be called from several goroutines at once.
type Table struct {
	mu      sync.Mutex
	calls   map[Key]*Entry
	index   [fieldCount]map[string]*Entry // first entry of each list
	graves  graveyard
	empty   chan struct{} // made by WaitEmpty, closed when the last call ends
	begun   uint64
	refused uint64
}

// NewTable returns an empty table.
func NewTable(opts TableOptions) *Table {
	t := &Table{
		calls: make(map[Key]*Entry),
		graves: newGraveyard(
			cmp.Or(max(opts.TombstoneTTL, 0), 2*time.Minute),
			cmp.Or(max(opts.TombstonesPerIssuer, 0), 10_000),
		),
	}
	for f := range t.index {
		t.index[f] = make(map[string]*Entry)
	}
	return t
}

// Entry is one call in flight.
type Entry struct {
	table      *Table
	call       Call // does not change after Begin
	cancelling atomic.Bool

	// Guarded by table.mu.
	ended bool
	lists [fieldCount]struct{ prev, next *Entry }
}

// Begin enters a call. It returns an error wrapping [ErrInFlight] when the same
// call and attempt is running, and a [*Tombstoned] when a cancel came first:
// one that named this call (and attempt), its root, parent or trace, and was
// asked by the call's own issuer or a privileged one.
//
// The caller must End the entry.
func (t *Table) Begin(c Call) (*Entry, error) {
	now := time.Now()
	if c.StartedAt.IsZero() {
		c.StartedAt = now
	}
	if c.Token == nil {
		c.Token = NewToken()
	}
	e := &Entry{table: t, call: c}

	t.mu.Lock()
	defer t.mu.Unlock()
	if cause := t.graves.match(&c, now); cause != nil {
		t.refused++
		return nil, &Tombstoned{Cause: cause}
	}
	if _, running := t.calls[c.Key]; running {
		return nil, fmt.Errorf("begin call %q attempt %d: %w", c.Call, c.Attempt, ErrInFlight)
	}
	t.calls[c.Key] = e
	t.begun++
	t.linkLocked(e)
	return e, nil
}

// Call returns the call as it was begun.
func (e *Entry) Call() Call { return e.call }

// Cancelling reports whether the call was told to stop, through the table or
// through its token.
func (e *Entry) Cancelling() bool {
	return e.cancelling.Load() || e.call.Token.IsCancelled()
}

// End takes the call out of the table. It does not release the token. End may
// be called more than once.
func (e *Entry) End() {
	t := e.table
	t.mu.Lock()
	defer t.mu.Unlock()
	if e.ended {
		return
	}
	e.ended = true
	delete(t.calls, e.call.Key)
	t.unlinkLocked(e)
	if len(t.calls) == 0 && t.empty != nil {
		close(t.empty)
		t.empty = nil
	}
}

// CancelRequest says who cancels, why, and what to do when nothing matches.
type CancelRequest struct {
	// Issuer asks; it may cancel the calls it issued itself.
	Issuer string
	// Privileged lifts that restriction.
	Privileged bool
	// Cause becomes the cause of the tokens; nil stands for Because(Remote,
	// Issuer, "").
	Cause *Cause
	// TTL is how long a tombstone is kept, at best the budget of the call that
	// is expected. 0 is the default of the table.
	TTL time.Duration
	// Bury leaves a tombstone when nothing matches.
	Bury bool
}

// Cancel cancels the tokens of the calls sel names, as far as the request may,
// and returns those calls, the already cancelling ones included. When there are
// none and Bury is set it leaves a tombstone and returns buried true; the two
// are one step as seen by Begin. A selector by issuer leaves no tombstone, since
// it speaks of calls that run, and an invalid selector does nothing.
//
// A tombstone stops the calls its request could have cancelled: those of the
// same issuer, or of everybody when privileged.
func (t *Table) Cancel(sel Selector, by CancelRequest) (matched []Call, buried bool) {
	if sel.Valid() != nil {
		return nil, false
	}
	if by.Cause == nil {
		by.Cause = Because(Remote, by.Issuer, "")
	}
	matched, buried = t.decide(sel, by)
	for _, c := range matched {
		c.Token.Cancel(by.Cause)
	}
	return matched, buried
}

// decide is the critical section of Cancel.
func (t *Table) decide(sel Selector, by CancelRequest) (matched []Call, buried bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	f := sel.field()
	for e := t.index[f][sel.value(f)]; e != nil; e = e.lists[f].next {
		if sel.Attempt != 0 && sel.Attempt != e.call.Attempt {
			continue
		}
		if !by.Privileged && by.Issuer != e.call.Issuer {
			continue
		}
		e.cancelling.Store(true)
		matched = append(matched, e.call)
	}
	if len(matched) > 0 || !by.Bury || f == fieldIssuer {
		return matched, false
	}
	t.graves.bury(sel, by, time.Now())
	return nil, true
}

// List returns the calls in flight, oldest first.
func (t *Table) List() []CallView {
	views := make([]CallView, 0, t.Len())
	for _, e := range t.entries() {
		state := StateRunning
		if e.Cancelling() {
			state = StateCancelling
		}
		views = append(views, CallView{Call: e.call, State: state})
	}
	slices.SortFunc(views, func(a, b CallView) int { return compareCalls(a.Call, b.Call) })
	return views
}

// entries exists so that List asks tokens, which have locks of their own,
// without holding the lock of the table.
func (t *Table) entries() []*Entry {
	t.mu.Lock()
	defer t.mu.Unlock()
	entries := make([]*Entry, 0, len(t.calls))
	for _, e := range t.calls {
		entries = append(entries, e)
	}
	return entries
}

// Len returns how many calls are in flight.
func (t *Table) Len() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.calls)
}

// Has reports whether the call is in flight.
func (t *Table) Has(k Key) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	_, ok := t.calls[k]
	return ok
}

// ByIssuer returns the calls of one issuer, oldest first.
func (t *Table) ByIssuer(issuer string) []Call {
	t.mu.Lock()
	defer t.mu.Unlock()
	var calls []Call
	for e := t.index[fieldIssuer][issuer]; e != nil; e = e.lists[fieldIssuer].next {
		calls = append(calls, e.call)
	}
	slices.SortFunc(calls, compareCalls)
	return calls
}

// WaitEmpty waits until no call is in flight. It returns nil when that is so,
// even for an instant, and otherwise an error wrapping the cause of ctx.
func (t *Table) WaitEmpty(ctx context.Context) error {
	empty := t.emptied()
	if empty == nil {
		return nil
	}
	select {
	case <-empty:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for %d calls in flight: %w", t.Len(), context.Cause(ctx))
	}
}

// emptied returns a channel that is closed when the last call ends, nil when
// there is none now.
func (t *Table) emptied() <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.calls) == 0 {
		return nil
	}
	if t.empty == nil {
		t.empty = make(chan struct{})
	}
	return t.empty
}

// Stats counts what a table did since it was made.
type Stats struct {
	InFlight   int    // calls in the table now
	Tombstones int    // tombstones now, those past their time and not yet swept included
	Begun      uint64 // calls that began
	Refused    uint64 // calls refused because of a tombstone
	Buried     uint64 // tombstones left
	Evicted    uint64 // tombstones that went early because of the cap
	Expired    uint64 // tombstones that were swept after their time
}

// Stats returns the counters.
func (t *Table) Stats() Stats {
	t.mu.Lock()
	defer t.mu.Unlock()
	return Stats{
		InFlight:   len(t.calls),
		Tombstones: len(t.graves.byKey),
		Begun:      t.begun,
		Refused:    t.refused,
		Buried:     t.graves.buried,
		Evicted:    t.graves.evicted,
		Expired:    t.graves.expired,
	}
}

// linkLocked puts e at the head of the list of each of its fields. The lists run
// through the entries themselves, so a call costs no further allocation.
func (t *Table) linkLocked(e *Entry) {
	for f := range fieldCount {
		v := e.call.value(f)
		if v == "" {
			continue // it matches no selector
		}
		head := t.index[f][v]
		e.lists[f].next = head
		if head != nil {
			head.lists[f].prev = e
		}
		t.index[f][v] = e
	}
}

func (t *Table) unlinkLocked(e *Entry) {
	for f := range fieldCount {
		at := &e.lists[f]
		if at.next != nil {
			at.next.lists[f].prev = at.prev
		}
		switch v := e.call.value(f); {
		case v == "":
		case at.prev != nil:
			at.prev.lists[f].next = at.next
		case at.next != nil:
			t.index[f][v] = at.next
		default:
			delete(t.index[f], v)
		}
		at.prev, at.next = nil, nil
	}
}

func compareCalls(a, b Call) int {
	return cmp.Or(
		a.StartedAt.Compare(b.StartedAt),
		cmp.Compare(a.Call, b.Call),
		cmp.Compare(a.Attempt, b.Attempt),
	)
}
