package task

import (
	"context"
	"errors"
	"iter"
	"strings"
	"time"
)

// ErrDeposed is returned by [Log.Commit] once this writer leads no more, or can no
// longer tell that it does. This log will never store anything again, and whoever
// leads next reads what became of the last commit: what was not a batch may be
// stored in part, from its beginning, and when the answer was lost even all of it
// may be there. To those who waited for it the outcome is unknown.
var ErrDeposed = errors.New("another writer leads")

// Entry is the last value of one key of a [Log].
type Entry struct {
	// Key is task.<task id>, result.<task id>, schedule.<name> or queue.<module id>.
	Key string
	// Body is opaque to the log, which must not change it. It is valid until Commit
	// returns; what the log keeps it copies.
	Body []byte
	// TTL is how long the entry is kept after this write; 0 is for ever. It is whole
	// seconds.
	TTL time.Duration
	// Delete removes the key; Body is empty.
	Delete bool
	// Seq is the place of the last write of the key in the log, rising. It is set by
	// Load and Get only.
	Seq uint64
}

// The first parts of the keys of a [Log].
const (
	KeyTask     = "task."
	KeyResult   = "result."
	KeySchedule = "schedule."
	KeyQueue    = "queue."
)

// Log is where a writer keeps what it decided: the last entry of each key. One
// writer uses it at a time; the log itself fences former ones. It may be used from
// several goroutines, but Commit is called by one at a time.
type Log interface {
	// Load yields the last entry of every key that begins with one of the prefixes and
	// was not deleted and has not expired, in the order of their last writes. An error ends it.
	// It is called before the first Commit.
	Load(ctx context.Context, prefixes ...string) iter.Seq2[Entry, error]
	// Commit stores entries in order, and when they are one batch all of them or none. A
	// key occurs once in a batch. nil means that they are as durable as the
	// log promises. [ErrDeposed] ends the log's use by this writer. After either error
	// what was stored may be unknown; while it leads, the writer commits the very
	// same entries again until it succeeds or is deposed, which does no harm because
	// nobody else writes meanwhile.
	Commit(ctx context.Context, entries []Entry) error
	// Get returns the last committed entry of a key; false when it was never written,
	// was deleted or has expired. It never answers with an older entry than one whose
	// Commit has returned.
	Get(ctx context.Context, key string) (Entry, bool, error)
}

// SplitKey takes a key apart: "task." and the ID. Both are empty for a key of
// another form.
func SplitKey(key string) (prefix, name string) {
	i := strings.IndexByte(key, '.')
	if i < 0 || i == len(key)-1 {
		return "", ""
	}
	return key[:i+1], key[i+1:]
}
