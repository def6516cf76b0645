package backend

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/apbus/apbus/loop"
)

// Limits of a [Budget], for one pass. A zero field means its default.
type Limits struct {
	MaxCalls        int           // 8
	MaxRequestBytes int           // of one request, 512 KiB
	MaxTotalBytes   int           // of all requests and responses, 4 MiB
	Wall            time.Duration // from the first call to the end of the last, 300 s
}

func (l Limits) withDefaults() Limits {
	if l.MaxCalls <= 0 {
		l.MaxCalls = 8
	}
	if l.MaxRequestBytes <= 0 {
		l.MaxRequestBytes = loop.MaxRequestBytes
	}
	if l.MaxTotalBytes <= 0 {
		l.MaxTotalBytes = 4 << 20
	}
	if l.Wall <= 0 {
		l.Wall = 300 * time.Second
	}
	return l
}

// Budget bounds what one pass may ask of a model. What is over it is refused, which
// costs the pass that stage and nothing else. It is safe for concurrent use; passes
// that share one share its counters too.
type Budget struct {
	next loop.Backend
	l    Limits

	mu    sync.Mutex
	since time.Time // of the first call of the pass
	usage loop.Usage
}

var (
	_ loop.Backend = (*Budget)(nil)
	_ loop.Metered = (*Budget)(nil)
)

// NewBudget bounds next.
func NewBudget(next loop.Backend, l Limits) *Budget {
	return &Budget{next: next, l: l.withDefaults()}
}

// Model returns the name of the model.
func (b *Budget) Model() string { return b.next.Model() }

// BeginPass starts a new budget.
func (b *Budget) BeginPass() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.since, b.usage = time.Time{}, loop.Usage{}
}

// Usage is what the pass has used.
func (b *Budget) Usage() loop.Usage {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.usage
}

var errWall = errors.New("the time for the model is over")

// Complete passes the request on if the budget allows it, and no longer than it
// does.
func (b *Budget) Complete(ctx context.Context, request string) (string, error) {
	left, err := b.admit(len(request))
	if err != nil {
		return "", err
	}
	ctx, stop := context.WithTimeoutCause(ctx, left, errWall)
	defer stop()
	response, err := b.next.Complete(ctx, request)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.usage.ResponseBytes += int64(len(response))
	if err == nil && b.total() > int64(b.l.MaxTotalBytes) {
		b.usage.Refused++
		return "", failed("the budget of bytes is used up", nil)
	}
	return response, err
}

func (b *Budget) total() int64 { return b.usage.RequestBytes + b.usage.ResponseBytes }

func (b *Budget) admit(size int) (time.Duration, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	if b.since.IsZero() {
		b.since = now
	}
	left := b.l.Wall - now.Sub(b.since)
	var why string
	switch {
	case b.usage.Calls >= b.l.MaxCalls:
		why = "the budget of calls is used up"
	case size > b.l.MaxRequestBytes:
		why = "the request is over the budget of bytes"
	case b.total()+int64(size) > int64(b.l.MaxTotalBytes):
		why = "the budget of bytes is used up"
	case left <= 0:
		why = "the budget of time is used up"
	default:
		b.usage.Calls++
		b.usage.RequestBytes += int64(size)
		return left, nil
	}
	b.usage.Refused++
	return 0, failed(why, nil)
}
