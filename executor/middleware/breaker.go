package middleware

import (
	"context"
	"sync"
	"time"

	"github.com/apbus/apbus/module"
)

// Events of [CircuitBreaker] (protocol §9.16).
const (
	EventCircuitOpened = "apcore.circuit.opened"
	EventCircuitClosed = "apcore.circuit.closed"
)

// DataCircuitState is the data key where the state of the latest circuit is noted.
const DataCircuitState = "_apcore.mw.circuit.state"

// maxCircuits bounds the circuits that are kept apart. Caller IDs come from
// peers; past the limit the further callers of a module share one circuit.
const maxCircuits = 10_000

// BreakerConfig configures [CircuitBreaker]. Zero fields have the protocol's
// defaults.
type BreakerConfig struct {
	// WindowSize is how many of the latest calls count, 20 by default.
	WindowSize int
	// MinSamples is how many calls there must be before a circuit opens, 5 by
	// default, never more than WindowSize.
	MinSamples int
	// OpenThreshold is the share of failures at which it opens, 0.5 by default.
	OpenThreshold float64
	// RecoveryWindow is how long it stays open before one call may try, 30 s by
	// default.
	RecoveryWindow time.Duration
	// Emit is told when a circuit opens or closes. It must not block. Nil drops.
	Emit func(module.Event)
}

// CircuitBreaker keeps calls away from a module that keeps failing, for each
// caller by itself. While a circuit is open its calls fail at once with
// CIRCUIT_BREAKER_OPEN and do not reach the module. After the recovery window
// exactly one call is let through: its success closes the circuit, its failure
// opens it again, and a cancelled one leaves the try to the next call. Every
// failure of an entered call counts, cancellation does not. Safe for concurrent
// use.
type CircuitBreaker struct {
	cfg BreakerConfig

	mu       sync.RWMutex
	circuits map[circuitKey]*circuit
}

type circuitKey struct{ moduleID, callerID string }

// otherCallers stands for the callers beyond maxCircuits; no module ID has a star.
const otherCallers = "*"

var (
	_ BeforeHook = (*CircuitBreaker)(nil)
	_ AfterHook  = (*CircuitBreaker)(nil)
	_ ErrorHook  = (*CircuitBreaker)(nil)
	_ EndHook    = (*CircuitBreaker)(nil)
)

// NewCircuitBreaker makes the middleware. A configuration out of range is
// GENERAL_INVALID_INPUT.
func NewCircuitBreaker(cfg BreakerConfig) (*CircuitBreaker, error) {
	if cfg.WindowSize < 0 || cfg.MinSamples < 0 || cfg.RecoveryWindow < 0 || !(cfg.OpenThreshold >= 0 && cfg.OpenThreshold <= 1) {
		return nil, module.Errorf(module.CodeInvalidInput, "circuit breaker: a value is out of range")
	}
	if cfg.WindowSize == 0 {
		cfg.WindowSize = 20
	}
	if cfg.MinSamples == 0 {
		cfg.MinSamples = 5
	}
	cfg.MinSamples = min(cfg.MinSamples, cfg.WindowSize)
	if cfg.OpenThreshold == 0 {
		cfg.OpenThreshold = 0.5
	}
	if cfg.RecoveryWindow == 0 {
		cfg.RecoveryWindow = 30 * time.Second
	}
	return &CircuitBreaker{cfg: cfg, circuits: map[circuitKey]*circuit{}}, nil
}

// Name returns "circuit_breaker".
func (*CircuitBreaker) Name() string { return "circuit_breaker" }

// Priority returns 850.
func (*CircuitBreaker) Priority() int { return 850 }

// State returns the state of a caller's circuit for a module; callerID is "" at
// the top level. A circuit that has seen no call is closed.
func (b *CircuitBreaker) State(moduleID, callerID string) CircuitState {
	b.mu.RLock()
	c := b.circuits[circuitKey{moduleID, callerID}]
	b.mu.RUnlock()
	if c == nil {
		return CircuitClosed
	}
	return c.current(b.cfg.RecoveryWindow)
}

// Before lets the call pass or fails with CIRCUIT_BREAKER_OPEN, whose details are
// module_id, caller_id (nil at the top level) and retry_after_ms.
func (b *CircuitBreaker) Before(_ context.Context, call *Call) (map[string]any, error) {
	c := b.circuit(circuitKey{call.ModuleID, callerOf(call)})
	p, wait, ok := c.admit(b.cfg.RecoveryWindow)
	if call.Context != nil {
		call.Context.Data().Set(DataCircuitState, string(p.state))
	}
	if !ok {
		return nil, module.Errorf(module.CodeCircuitBreakerOpen, "module %s has failed too often, its circuit is open", call.ModuleID).
			WithDetails(map[string]any{
				"module_id": call.ModuleID, "caller_id": nullText(callerOf(call)), "retry_after_ms": (wait + time.Millisecond - 1).Milliseconds(),
			}).NotExecuted()
	}
	call.SetState(b, &passage{circuit: c, pass: p})
	return nil, nil
}

// After counts a success.
func (b *CircuitBreaker) After(_ context.Context, call *Call, _ map[string]any) (map[string]any, error) {
	b.settle(call, verdictSuccess)
	return nil, nil
}

// OnError counts a failure and recovers nothing.
func (b *CircuitBreaker) OnError(_ context.Context, call *Call, _ *module.Error) (Recovery, error) {
	b.settle(call, verdictFailure)
	return Recovery{}, nil
}

// End counts what the other hooks did not see: a failure that another middleware
// recovered is a failure of the module all the same, a cancelled call is nothing.
func (b *CircuitBreaker) End(_ context.Context, call *Call, err *module.Error) {
	v := verdictSuccess
	switch {
	case err != nil && err.Code == module.CodeExecutionCancelled:
		v = verdictNone
	case err != nil || call.Failure() != nil:
		v = verdictFailure
	}
	b.settle(call, v)
}

// passage is one call's way through its circuit; nil circuit means that it is
// settled.
type passage struct {
	circuit *circuit
	pass    pass
}

// settle counts a call once; the first verdict stands.
func (b *CircuitBreaker) settle(call *Call, v verdict) {
	p, _ := call.State(b).(*passage)
	if p == nil || p.circuit == nil {
		return
	}
	c := p.circuit
	p.circuit = nil
	change, rate := c.settle(p.pass, v, &b.cfg)
	if change == "" || b.cfg.Emit == nil {
		return
	}
	event := module.Event{
		Type: EventCircuitOpened, ModuleID: call.ModuleID, Severity: module.SeverityWarn, At: time.Now().UTC(),
		Data: map[string]any{"module_id": call.ModuleID, "caller_id": nullText(callerOf(call)), "error_rate": rate},
	}
	if change == CircuitClosed {
		event.Type, event.Severity = EventCircuitClosed, module.SeverityInfo
	}
	b.cfg.Emit(event)
}

func (b *CircuitBreaker) circuit(key circuitKey) *circuit {
	b.mu.RLock()
	c := b.circuits[key]
	b.mu.RUnlock()
	if c != nil {
		return c
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if c = b.circuits[key]; c != nil {
		return c
	}
	if len(b.circuits) >= maxCircuits {
		key.callerID = otherCallers
		if c = b.circuits[key]; c != nil {
			return c
		}
	}
	c = &circuit{window: make([]bool, b.cfg.WindowSize), state: CircuitClosed}
	b.circuits[key] = c
	return c
}

// callerOf is the calling module, "" at the top level.
func callerOf(call *Call) string {
	if call.Context == nil {
		return ""
	}
	return call.Context.CallerID()
}

// nullText is nil for an ID that is not there.
func nullText(s string) any {
	if s == "" {
		return nil
	}
	return s
}
