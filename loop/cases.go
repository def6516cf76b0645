package loop

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"github.com/apbus/apbus/module"
)

// Case is a recommendation with its state.
type Case struct {
	Hash   string
	Rec    *Recommendation
	Status Status
}

// Cases reads every recommendation, in the order of the queue: severity
// descending, oldest first, then key and hash. A body or a log that breaks a rule
// is left out and counted in bad; it can be decided by nobody.
func (e *Engine) Cases(ctx context.Context) (cases []*Case, bad int, err error) {
	byHash := make(map[string]*Case)
	for entry, err := range e.store.List(ctx, BucketRecs) {
		if err != nil {
			return nil, 0, storeError("reading recommendations", err)
		}
		r, err := DecodeRecommendation(entry.Key, entry.Value)
		if err != nil {
			bad++
			continue
		}
		byHash[entry.Key] = &Case{Hash: entry.Key, Rec: r, Status: Status{State: StatePending}}
	}
	broken := make(map[string]bool)
	for entry, err := range e.store.Log(ctx, "") {
		if err != nil {
			return nil, 0, storeError("reading the audit log", err)
		}
		c := byHash[entry.Key]
		if c == nil || broken[entry.Key] {
			continue
		}
		broken[entry.Key] = c.Status.read(entry, entry.Key) != nil
	}
	for hash, c := range byHash {
		if broken[hash] {
			bad++
			continue
		}
		cases = append(cases, c)
	}
	slices.SortFunc(cases, func(a, b *Case) int {
		return cmp.Or(cmp.Compare(b.Rec.Severity.Rank(), a.Rec.Severity.Rank()), cmp.Compare(a.Rec.CreatedAtMS, b.Rec.CreatedAtMS),
			cmp.Compare(a.Rec.DedupKey, b.Rec.DedupKey), cmp.Compare(a.Hash, b.Hash))
	})
	return cases, bad, nil
}

// Case reads one recommendation by its hash. LOOP_NOT_FOUND when there is none, or
// none that can be read.
func (e *Engine) Case(ctx context.Context, hash string) (*Case, error) {
	if len(hash) != 64 || !isHex(hash) {
		return nil, notFound()
	}
	entry, err := e.store.Get(ctx, BucketRecs, hash)
	if err != nil {
		return nil, storeError("reading a recommendation", err)
	}
	if entry.Rev == 0 {
		return nil, notFound()
	}
	r, err := DecodeRecommendation(hash, entry.Value)
	if err != nil {
		return nil, err
	}
	c := &Case{Hash: hash, Rec: r, Status: Status{State: StatePending}}
	for entry, err := range e.store.Log(ctx, hash) {
		if err != nil {
			return nil, storeError("reading the audit log", err)
		}
		if err := c.Status.read(entry, hash); err != nil {
			return nil, err
		}
	}
	return c, nil
}

func notFound() error { return module.Errorf(module.CodeLoopNotFound, "no such recommendation") }

func (s *Status) read(entry Entry, rec string) error {
	a, hash, err := decodeAudit(entry.Value)
	if err != nil {
		return err
	}
	if a.Rec != rec {
		return module.Errorf(module.CodeLoopInvalid, "audit entry is of another recommendation")
	}
	return s.take(a, entry.Rev, hash)
}

// record appends an entry to the log of c and takes it. Of two that do so at once
// one gets LOOP_CONFLICT.
func (e *Engine) record(ctx context.Context, c *Case, who Actor, a AuditEntry) error {
	if !c.Status.may(a.Event) {
		return illegal(c.Status.State, a.Event)
	}
	a.V, a.Rec, a.Actor, a.Observer, a.Prev = 1, c.Hash, who.ID, who.Observer, c.Status.LastHash
	a.From, a.To = c.Status.State, a.Event.state(c.Status.State)
	if a.Event == EventPending {
		a.From = ""
	}
	raw, err := encodeAudit(a)
	if err != nil {
		return err
	}
	seq, err := e.store.Append(ctx, c.Hash, raw, c.Status.Last)
	switch {
	case errors.Is(err, ErrConflict):
		return module.Errorf(module.CodeLoopConflict, "somebody else has changed this recommendation meanwhile")
	case err != nil:
		return storeError("writing the audit log", err)
	}
	stored, hash, err := decodeAudit(raw)
	if err != nil {
		return err
	}
	return c.Status.take(stored, seq, hash)
}
