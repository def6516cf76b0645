package approval

import (
	"cmp"
	"context"
	"encoding/base64"
	"iter"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/apbus/apbus/module"
)

// Store keeps records. It knows nothing of their life: every rule is in
// [Record], and a compare-and-set makes its transitions safe between processes.
// Implementations are safe for concurrent use, return what ctx's cause says when
// it ends, and report a store that cannot be reached as TASK_STORE_UNAVAILABLE.
// approvaltest.TestStore says the same as tests.
type Store interface {
	// Create stores a record of a new ID, else [ErrExists]. A store that is full is
	// TASK_LIMIT_EXCEEDED, a record it cannot hold BUS_PAYLOAD_TOO_LARGE.
	Create(ctx context.Context, r Record) (revision uint64, err error)
	// Get returns a record as it was stored last, else [ErrNotFound]. It may be a
	// moment behind other processes, never behind this one's own writes.
	Get(ctx context.Context, id string) (Entry, error)
	// Update replaces the record of r.ID if revision is still its revision, else
	// [ErrConflict]. After any other error the record may have been replaced.
	Update(ctx context.Context, r Record, revision uint64) (next uint64, err error)
	// List returns one page, as of now; see [Filter].
	List(ctx context.Context, f Filter) (Page, error)
	// Watch yields what is stored with a revision above after, oldest first, and
	// then every change as it comes, until ctx is done, which ends the sequence
	// without an error. Of several changes of one record in quick succession only the
	// last is certain to be seen. id "" watches every record. An error is the last
	// element; watch again after the last revision that was seen. Time passing is
	// no change: that a record expires is for the reader to see ([Record.At]).
	Watch(ctx context.Context, id string, after uint64) iter.Seq2[Entry, error]
}

// Entry is a stored record and its revision. Revisions grow over the whole store.
type Entry struct {
	Record   Record
	Revision uint64
}

// Filter selects records; zero fields select everything.
type Filter struct {
	// State is compared with the record as it stands now.
	State    State
	ModuleID string
	// Cursor is a Page's Next; a page begins after it.
	Cursor string
	// Limit is the most records of a page, 100 when zero and at most 1000.
	Limit int
}

// The limits of a page.
const (
	defaultPage = 100
	maxPage     = 1000
)

// Page is a part of a list, newest first.
type Page struct {
	Records []Record
	// Next continues the list, "" at its end. Records made meanwhile come before
	// the first page and shift nothing.
	Next string
}

// Page cuts the page that f asks for out of all records of a store, in any
// order, as they stand at now. It is what stores without an index implement List
// with. A cursor that no page gave is GENERAL_INVALID_INPUT.
func (f Filter) Page(all []Record, now time.Time) (Page, error) {
	after, err := parseCursor(f.Cursor)
	if err != nil {
		return Page{}, err
	}
	limit := f.Limit
	if limit <= 0 {
		limit = defaultPage
	}
	limit = min(limit, maxPage)
	var found []Record
	for _, r := range all {
		r = r.At(now)
		if (f.State != "" && r.State != f.State) || (f.ModuleID != "" && r.Binding.ModuleID != f.ModuleID) {
			continue
		}
		if f.Cursor == "" || placeOf(r).compare(after) > 0 {
			found = append(found, r)
		}
	}
	slices.SortFunc(found, func(a, b Record) int { return placeOf(a).compare(placeOf(b)) })
	var p Page
	if len(found) > limit {
		found = found[:limit]
		p.Next = placeOf(found[limit-1]).cursor()
	}
	p.Records = found
	return p, nil
}

// place is where a record stands in a list: newest first.
type place struct {
	created int64 // Unix nanoseconds
	id      string
}

func placeOf(r Record) place { return place{r.CreatedAt.UnixNano(), r.ID} }

func (p place) compare(o place) int {
	return cmp.Or(-cmp.Compare(p.created, o.created), cmp.Compare(p.id, o.id))
}

func (p place) cursor() string {
	return base64.RawURLEncoding.EncodeToString([]byte(strconv.FormatInt(p.created, 10) + "." + p.id))
}

func parseCursor(cursor string) (place, error) {
	if cursor == "" {
		return place{}, nil
	}
	raw, err := base64.RawURLEncoding.DecodeString(cursor)
	created, id, cut := strings.Cut(string(raw), ".")
	at, numErr := strconv.ParseInt(created, 10, 64)
	if err != nil || !cut || numErr != nil {
		return place{}, module.Errorf(module.CodeInvalidInput, "the cursor is not one that a list gave")
	}
	return place{at, id}, nil
}
