package middleware

import (
	"context"
	"math"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/apbus/apbus/module"
)

// DataRetryCount begins the data key of a module's retry count, which the module
// ID completes (protocol §5.7). The count belongs to the whole call tree, so that
// a module that is called again by a parent that is itself retried does not
// multiply the tries.
const DataRetryCount = "_apcore.mw.retry.count"

// MaxRetries is how often a call may be retried at most: five tries in all
// (protocol §8.6).
const MaxRetries = 4

// RetryStrategy says how the wait between tries grows.
type RetryStrategy string

// The strategies of [Retry].
const (
	RetryExponential RetryStrategy = "exponential"
	RetryFixed       RetryStrategy = "fixed"
)

// RetryConfig configures [Retry]. Zero fields have the protocol's defaults.
type RetryConfig struct {
	// MaxRetries is how often a failed call is run again, 3 by default, at most
	// [MaxRetries]; a negative one turns retrying off.
	MaxRetries int
	// Strategy is exponential by default: the wait doubles with each try.
	Strategy RetryStrategy
	// BaseDelay is the first wait, 100 ms by default.
	BaseDelay time.Duration
	// MaxDelay bounds a wait before jitter, 5 s by default.
	MaxDelay time.Duration
	// NoJitter turns off the factor between 0.5 and 1.5 that keeps callers who
	// failed together from coming back together.
	NoJitter bool
}

// Retry runs a failed call again when its error says that this can help and the
// module is declared idempotent; nothing else is ever retried. It waits in the
// caller's goroutine and gives up when the caller leaves or the call tree's time
// would be over. It is no part of a default set-up (protocol §8.6).
type Retry struct {
	cfg RetryConfig

	mu sync.Mutex // makes a count's reading and writing one step
}

var (
	_ AfterHook = (*Retry)(nil)
	_ ErrorHook = (*Retry)(nil)
)

// NewRetry makes the middleware. A configuration out of range is
// GENERAL_INVALID_INPUT.
func NewRetry(cfg RetryConfig) (*Retry, error) {
	switch {
	case cfg.MaxRetries > MaxRetries:
		return nil, module.Errorf(module.CodeInvalidInput, "retry: %d retries, want at most %d", cfg.MaxRetries, MaxRetries)
	case cfg.Strategy != "" && cfg.Strategy != RetryExponential && cfg.Strategy != RetryFixed:
		return nil, module.Errorf(module.CodeInvalidInput, "retry: unknown strategy %q", string(cfg.Strategy))
	case cfg.BaseDelay < 0 || cfg.MaxDelay < 0:
		return nil, module.Errorf(module.CodeInvalidInput, "retry: a delay is negative")
	}
	if cfg.MaxRetries == 0 {
		cfg.MaxRetries = 3
	}
	if cfg.Strategy == "" {
		cfg.Strategy = RetryExponential
	}
	if cfg.BaseDelay == 0 {
		cfg.BaseDelay = 100 * time.Millisecond
	}
	if cfg.MaxDelay == 0 {
		cfg.MaxDelay = 5 * time.Second
	}
	return &Retry{cfg: cfg}, nil
}

// Name returns "retry".
func (*Retry) Name() string { return "retry" }

// Priority returns 50: inside the others, so that they see one call whose errors
// come to them only when they are final.
func (*Retry) Priority() int { return 50 }

// After forgets the count.
func (r *Retry) After(_ context.Context, call *Call, _ map[string]any) (map[string]any, error) {
	if call.Context != nil {
		if data := call.Context.Data(); data.Len() > 0 {
			data.Delete(retryKey(call.ModuleID))
		}
	}
	return nil, nil
}

// OnError waits and asks for another run, or offers nothing.
func (r *Retry) OnError(ctx context.Context, call *Call, err *module.Error) (Recovery, error) {
	if err.Retryable != module.True || call.Descriptor == nil || !call.Descriptor.Annotations.Idempotent || call.Context == nil {
		return Recovery{}, nil
	}
	done, ok := r.claim(call)
	if !ok {
		return Recovery{}, nil
	}
	delay := r.delay(done)
	if end := call.Context.GlobalDeadline(); !end.IsZero() && time.Until(end) <= delay {
		return Recovery{}, nil
	}
	timer := time.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
		return Recovery{}, nil
	}
	inputs := call.Original()
	if inputs == nil {
		inputs = map[string]any{}
	}
	return Recovery{Retry: inputs}, nil
}

// claim takes one retry off what the module has left in this call tree, and
// returns how many came before.
func (r *Retry) claim(call *Call) (done int, ok bool) {
	key, data := retryKey(call.ModuleID), call.Context.Data()
	r.mu.Lock()
	defer r.mu.Unlock()
	if v, _ := data.Get(key); v != nil {
		done, _ = v.(int)
	}
	if done >= r.cfg.MaxRetries {
		return done, false
	}
	data.Set(key, done+1)
	return done, true
}

func (r *Retry) delay(done int) time.Duration {
	d := float64(r.cfg.BaseDelay)
	if r.cfg.Strategy == RetryExponential {
		d *= math.Pow(2, float64(done))
	}
	d = min(d, float64(r.cfg.MaxDelay))
	if !r.cfg.NoJitter {
		d *= 0.5 + rand.Float64() // spreading callers needs no secrecy
	}
	return time.Duration(d)
}

func retryKey(moduleID string) string { return DataRetryCount + "." + moduleID }
