package jetstream

import (
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/apbus/apbus/task"
)

// bounces learns which grants have reached nobody. An answer has no receiver when the
// connection of who asked is closed, as after its process was killed while it waited
// for work. The server says so to a message that wants a reply, though none is ever
// sent, and what was granted is free again at once instead of after a lease.
type bounces struct {
	sub   *nats.Subscription
	inbox string // ends with a dot

	mu sync.Mutex
	// sent are the grants of the last answers, oldest first; the first has the number
	// first.
	first int
	sent  []sentGrants
}

// sentGrants are those of one answer.
type sentGrants struct {
	refs []task.LeaseRef
	at   time.Time
}

// bounceFor is how long the server may take to say that nobody is there. What comes
// later finds nothing; then the lease of the grant decides.
const bounceFor = 5 * time.Second

// listen calls back with what has bounced.
func (b *bounces) listen(nc *nats.Conn, back func([]task.LeaseRef)) error {
	b.inbox = nc.NewInbox() + "."
	var err error
	b.sub, err = nc.Subscribe(b.inbox+"*", func(m *nats.Msg) {
		if m.Header.Get("Status") != "503" {
			return
		}
		if refs := b.take(strings.TrimPrefix(m.Subject, b.inbox)); len(refs) > 0 {
			back(refs)
		}
	})
	if err != nil {
		return fmt.Errorf("listen for answers that reach nobody: %w", err)
	}
	return nil
}

// expect returns where the server is to say that an answer with grants has reached
// nobody.
func (b *bounces) expect(refs []task.LeaseRef) string {
	now := time.Now()
	b.mu.Lock()
	defer b.mu.Unlock()
	old := 0
	for old < len(b.sent) && now.Sub(b.sent[old].at) > bounceFor {
		old++
	}
	clear(b.sent[:old])
	b.first, b.sent = b.first+old, append(b.sent[old:], sentGrants{refs, now})
	return b.inbox + strconv.Itoa(b.first+len(b.sent)-1)
}

// take returns what was sent under a token, once.
func (b *bounces) take(token string) []task.LeaseRef {
	n, err := strconv.Atoi(token)
	b.mu.Lock()
	defer b.mu.Unlock()
	if n -= b.first; err != nil || n < 0 || n >= len(b.sent) {
		return nil
	}
	refs := b.sent[n].refs
	b.sent[n].refs = nil
	return refs
}

func (b *bounces) close() {
	if b.sub != nil {
		_ = b.sub.Unsubscribe() // fails only when it is gone
	}
}
