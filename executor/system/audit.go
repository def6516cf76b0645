package system

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"
)

// Actions of an [AuditEntry].
const (
	ActionUpdateConfig  = "update_config"
	ActionReloadModule  = "reload_module"
	ActionToggleFeature = "toggle_feature"
)

// AuditEntry says who changed what (protocol §6.7).
type AuditEntry struct {
	At     time.Time
	Action string
	// Target is the module that was reloaded or switched, or the control module
	// that changed a setting.
	Target string
	// ActorID and ActorType are the identity's; without one the calling module's
	// ID and "module", or "@external" and "unknown".
	ActorID, ActorType string
	TraceID            string
	// Before and After are the values, masked where the setting is sensitive: of a
	// switch booleans, of a reload versions.
	Before, After any
	// Reason is what the caller gave.
	Reason string
	// CorrelationID is shared by the entries of one bulk reload, else "".
	CorrelationID string
}

// Map returns the wire form.
func (e AuditEntry) Map() map[string]any {
	return map[string]any{
		"timestamp": timestamp(e.At), "action": e.Action, "target_module_id": e.Target,
		"actor_id": e.ActorID, "actor_type": e.ActorType, "trace_id": e.TraceID,
		"change": map[string]any{"before": e.Before, "after": e.After},
		"reason": e.Reason, "correlation_id": nullable(e.CorrelationID),
	}
}

// AuditQuery selects entries; a zero field selects all.
type AuditQuery struct {
	Target, ActorID string
	// Since is the earliest time, included.
	Since time.Time
}

// AuditStore keeps audit entries.
type AuditStore interface {
	Append(ctx context.Context, e AuditEntry) error
	// Query returns the entries selected, oldest first.
	Query(ctx context.Context, q AuditQuery) ([]AuditEntry, error)
}

// DefaultAuditLimit is how many entries a [MemoryAudit] keeps.
const DefaultAuditLimit = 10_000

// MemoryAudit is an [AuditStore] that lasts as long as the process and forgets the
// oldest entries beyond its limit.
type MemoryAudit struct {
	limit int

	mu      sync.Mutex
	entries []AuditEntry
}

var _ AuditStore = (*MemoryAudit)(nil)

// NewMemoryAudit makes an empty store; a limit below 1 means [DefaultAuditLimit].
func NewMemoryAudit(limit int) *MemoryAudit {
	if limit < 1 {
		limit = DefaultAuditLimit
	}
	return &MemoryAudit{limit: limit}
}

// Append adds an entry.
func (a *MemoryAudit) Append(_ context.Context, e AuditEntry) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.entries = append(a.entries, e)
	if over := len(a.entries) - a.limit; over > 0 {
		a.entries = slices.Delete(a.entries, 0, over)
	}
	return nil
}

// Query returns copies of the entries selected, oldest first.
func (a *MemoryAudit) Query(_ context.Context, q AuditQuery) ([]AuditEntry, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	var out []AuditEntry
	for _, e := range a.entries {
		if (q.Target == "" || q.Target == e.Target) && (q.ActorID == "" || q.ActorID == e.ActorID) && !e.At.Before(q.Since) {
			out = append(out, e)
		}
	}
	return out, nil
}

// record keeps an entry and logs it; a store that fails does not undo the change.
func (m *Modules) record(ctx context.Context, e AuditEntry) {
	m.log.LogAttrs(ctx, slog.LevelInfo, "control action", slog.String("action", e.Action),
		slog.String("module_id", e.Target), slog.String("actor_id", e.ActorID), slog.String("actor_type", e.ActorType),
		slog.String("trace_id", e.TraceID), slog.Any("before", e.Before), slog.Any("after", e.After), slog.String("reason", e.Reason))
	if m.audit == nil {
		return
	}
	if err := m.audit.Append(context.WithoutCancel(ctx), e); err != nil {
		m.log.Error("an audit entry is lost", slog.String("module_id", e.Target), slog.Any("cause", err))
	}
}
