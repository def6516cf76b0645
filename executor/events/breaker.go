package events

import (
	"time"

	"github.com/apbus/apbus/module"
)

// breaker is the state of a subscription's circuit; its goroutine owns it.
type breaker struct {
	failures int // in a row
	open     bool
	until    time.Time
	probes   int // since it opened
}

// admit says that an event is to be discarded, or is the one try of a circuit whose
// recovery window is over.
func (b *breaker) admit(p *BreakerPolicy) (probe, discard bool) {
	if p == nil || !b.open {
		return false, false
	}
	if time.Now().Before(b.until) {
		return false, true
	}
	b.probes++
	return true, false
}

// judge counts a delivery and tells when the circuit opens or closes.
func (s *Subscription) judge(delivered bool) {
	p, b := s.o.Breaker, &s.breaker
	if p == nil {
		return
	}
	if delivered {
		wasOpen, probes := b.open, b.probes
		*b = breaker{}
		if wasOpen {
			s.emitter.Emit(module.Event{
				Type: SubscriberCircuitClosed, Severity: module.SeverityInfo,
				Data: map[string]any{"subscriber_id": s.o.ID, "subscriber_type": s.kind, "recovery_attempt": int64(probes)},
			})
		}
		return
	}
	b.failures++
	if !b.open && b.failures < p.OpenThreshold {
		return
	}
	b.open, b.until = true, time.Now().Add(p.RecoveryWindow)
	s.emitter.Emit(module.Event{
		Type: SubscriberCircuitOpened, Severity: module.SeverityWarn,
		Data: map[string]any{"subscriber_id": s.o.ID, "subscriber_type": s.kind, "consecutive_failures": int64(b.failures)},
	})
}
