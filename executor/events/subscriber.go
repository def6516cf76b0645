package events

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/apbus/apbus/module"
)

// Subscriber receives events. One that is an io.Closer as well is closed when its
// subscription has ended.
type Subscriber interface {
	// OnEvent handles one event. An error is tried again as the subscription's
	// [RetryPolicy] says, unless it is [Permanent]. It must return when ctx ends.
	OnEvent(ctx context.Context, e module.Event) error
}

// SubscriberFunc is a function as a [Subscriber].
type SubscriberFunc func(ctx context.Context, e module.Event) error

// OnEvent calls f.
func (f SubscriberFunc) OnEvent(ctx context.Context, e module.Event) error { return f(ctx, e) }

// Typed is a subscriber that says of what type it is, as the built-in ones do:
// "webhook", "file". Others are "custom".
type Typed interface{ SubscriberType() string }

// permanentError is one that another try cannot mend.
type permanentError struct{ error }

func (e permanentError) Unwrap() error { return e.error }

// Permanent marks an error that another try cannot mend. A nil err stays nil.
func Permanent(err error) error {
	if err == nil {
		return nil
	}
	return permanentError{err}
}

func isPermanent(err error) bool {
	_, ok := errors.AsType[permanentError](err)
	return ok
}

// RetryPolicy says how a failed delivery is tried again. Zero fields have the
// protocol's defaults (§9.16, Delivery).
type RetryPolicy struct {
	// MaxAttempts is the number of tries in all, 3 by default; 1 never retries.
	MaxAttempts int
	// InitialBackoff is the first wait, 100 ms by default.
	InitialBackoff time.Duration
	// MaxBackoff bounds a wait, 30 s by default.
	MaxBackoff time.Duration
	// Multiplier is how much longer each wait is than the one before, 2 by default.
	Multiplier float64
}

func (p RetryPolicy) withDefaults() (RetryPolicy, error) {
	if p.MaxAttempts < 0 || p.InitialBackoff < 0 || p.MaxBackoff < 0 || !(p.Multiplier == 0 || p.Multiplier >= 1) {
		return p, module.Errorf(module.CodeInvalidInput, "event retry: a value is out of range")
	}
	if p.MaxAttempts == 0 {
		p.MaxAttempts = 3
	}
	if p.InitialBackoff == 0 {
		p.InitialBackoff = 100 * time.Millisecond
	}
	if p.MaxBackoff == 0 {
		p.MaxBackoff = 30 * time.Second
	}
	if p.Multiplier == 0 {
		p.Multiplier = 2
	}
	return p, nil
}

// backoff is the wait after the try of that index, counted from 0.
func (p RetryPolicy) backoff(attempt int) time.Duration {
	return time.Duration(min(float64(p.MaxBackoff), float64(p.InitialBackoff)*math.Pow(p.Multiplier, float64(attempt))))
}

// BreakerPolicy says when a subscriber is left alone for a while. Zero fields have
// the protocol's defaults (§9.16, Subscriber circuit breaker).
type BreakerPolicy struct {
	// OpenThreshold is how many deliveries in a row must fail, tries included, 5 by
	// default.
	OpenThreshold int
	// RecoveryWindow is how long events are discarded then, 60 s by default. After
	// it one event is tried, once.
	RecoveryWindow time.Duration
}

func (p BreakerPolicy) withDefaults() (BreakerPolicy, error) {
	if p.OpenThreshold < 0 || p.RecoveryWindow < 0 {
		return p, module.Errorf(module.CodeInvalidInput, "event circuit breaker: a value is out of range")
	}
	if p.OpenThreshold == 0 {
		p.OpenThreshold = 5
	}
	if p.RecoveryWindow == 0 {
		p.RecoveryWindow = time.Minute
	}
	return p, nil
}
