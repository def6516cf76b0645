package jetstream

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/apbus/apbus/module"
)

const (
	// mergeFlying is how many merged requests of a kind are on their way at once. What is
	// asked meanwhile goes with the next one, so that a request shares its message when
	// there are many and waits for nobody when there are few.
	mergeFlying = 4
	// mergeCount and mergeBytes bound one merged request.
	mergeCount, mergeBytes = 256, 256 << 10
	// mergeLargest is the largest body that shares a message.
	mergeLargest = 64 << 10
)

// merger sends what several callers ask at about the same time in one message, and
// gives each its own answer.
type merger[Answer any] struct {
	c    *TaskClient
	r    repeat
	send send[Answer]

	mu      sync.Mutex
	waiting []*merged[Answer]
	flying  int
}

// send asks for all, and returns as many answers in the same order. out is true while
// the request may have reached a writer.
type send[Answer any] func(ctx context.Context, bodies [][]byte, out *atomic.Bool) ([]Answer, error)

// merged is one caller's part.
type merged[Answer any] struct {
	body     []byte
	deadline time.Time
	ride     *ride // nil until it is on its way
	done     chan struct{}
	answer   Answer
	err      error
}

// ride is one merged request. It ends early when everybody has left it.
type ride struct {
	out  atomic.Bool
	stop context.CancelFunc
	left int // who has not left
}

// do asks and waits for the answer or the end of ctx.
func (m *merger[Answer]) do(ctx context.Context, body []byte) (Answer, error) {
	p := &merged[Answer]{body: body, done: make(chan struct{})}
	var limited bool
	if p.deadline, limited = ctx.Deadline(); !limited {
		p.deadline = time.Now().Add(m.c.patience)
	}
	if ctx.Err() != nil {
		var zero Answer
		return zero, m.c.gaveUp(ctx, context.Cause(ctx), false)
	}
	m.join(p) //nolint:contextcheck // a merged request belongs to no single caller
	select {
	case <-p.done:
		return p.answer, p.err
	case <-ctx.Done():
	}
	reached := m.leave(p)
	select {
	case <-p.done: // at the same moment
		return p.answer, p.err
	default:
	}
	var zero Answer
	return zero, m.c.gaveUp(ctx, errNoAnswer, reached && m.r == once)
}

// join queues p and has it sent as soon as may be.
func (m *merger[Answer]) join(p *merged[Answer]) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.waiting = append(m.waiting, p)
	if m.flying == mergeFlying {
		return
	}
	if !m.c.own(m.run) {
		m.waiting = m.waiting[:len(m.waiting)-1]
		p.err = m.c.gaveUp(context.Background(), errClientClosed, false)
		close(p.done)
		return
	}
	m.flying++
}

// leave takes p out, and reports whether it may have reached a writer.
func (m *merger[Answer]) leave(p *merged[Answer]) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if p.ride == nil {
		for i, w := range m.waiting {
			if w == p {
				m.waiting = append(m.waiting[:i], m.waiting[i+1:]...)
				break
			}
		}
		return false
	}
	if p.ride.left--; p.ride.left == 0 {
		p.ride.stop()
	}
	return p.ride.out.Load()
}

// take removes what goes into one request from those that wait.
func (m *merger[Answer]) take() (parts []*merged[Answer], r *ride, ctx context.Context) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.waiting) == 0 {
		m.flying--
		return nil, nil, nil
	}
	n, size := 0, 0
	var deadline time.Time
	for n < len(m.waiting) && n < mergeCount && (n == 0 || size+len(m.waiting[n].body) <= mergeBytes) {
		size += len(m.waiting[n].body)
		if d := m.waiting[n].deadline; d.After(deadline) {
			deadline = d
		}
		n++
	}
	parts = m.waiting[:n:n]
	if m.waiting = m.waiting[n:]; len(m.waiting) == 0 {
		m.waiting = nil
	}
	// The request belongs to all of its callers and lasts as long as the most patient.
	ctx, stop := context.WithDeadlineCause(context.Background(), deadline, context.DeadlineExceeded)
	r = &ride{left: n, stop: stop}
	for _, p := range parts {
		p.ride = r
	}
	return parts, r, ctx
}

// run sends until nobody waits.
func (m *merger[Answer]) run() {
	for {
		parts, r, ctx := m.take()
		if parts == nil {
			return
		}
		bodies := make([][]byte, len(parts))
		for i, p := range parts {
			bodies[i] = p.body
		}
		answers, err := m.send(ctx, bodies, &r.out)
		r.stop()
		for _, b := range bodies {
			m.c.rooms.give(b)
		}
		if err == nil && len(answers) != len(parts) {
			err = module.Errorf(module.CodeBusBadMessage, "the task writer answered %d of %d", len(answers), len(parts))
		}
		for i, p := range parts {
			if p.err = err; err == nil {
				p.answer = answers[i]
			}
			close(p.done)
		}
	}
}

// rooms are the buffers in which requests are encoded, used again when they are
// answered. The zero value is usable, by any number of goroutines.
type rooms struct{ pool sync.Pool }

// keptRoom is the largest buffer that is kept.
const keptRoom = 2 * mergeBytes

// take returns an empty buffer.
func (r *rooms) take() []byte {
	if b, ok := r.pool.Get().(*[]byte); ok {
		return (*b)[:0]
	}
	return nil
}

// give takes a buffer back, which nobody reads any more.
func (r *rooms) give(b []byte) {
	if c := cap(b); c > 0 && c <= keptRoom {
		r.pool.Put(&b)
	}
}

// list appends a JSON object whose one member is a list of encoded values.
func list(b []byte, member string, values [][]byte) []byte {
	size := len(member) + 8
	for _, v := range values {
		size += len(v) + 1
	}
	b = append(append(append(slices.Grow(b, size), `{"`...), member...), `":[`...)
	for i, v := range values {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, v...)
	}
	return append(b, "]}"...)
}
