package acl

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"
)

// AuditEntry records one check (protocol §6.3.1).
type AuditEntry struct {
	Timestamp time.Time
	// CallerID is the effective one, "@external" for a null caller.
	CallerID, TargetID string
	// Decision is "allow" or "deny".
	Decision Effect
	Reason   string
	// MatchedRule is the rule's description, MatchedRuleIndex -1 for none.
	MatchedRule      string
	MatchedRuleIndex int
	// IdentityType is "" and Roles empty without an identity; CallDepth is -1 and
	// TraceID "" without a context.
	IdentityType string
	Roles        []string
	CallDepth    int
	TraceID      string
	// HandlerError is "" unless a condition could not be evaluated.
	HandlerError     string
	ApprovalRequired bool
}

// AuditFunc receives every entry, synchronously. Its failure or panic changes no
// decision and is logged once. It takes the place of the file's audit block.
type AuditFunc func(ctx context.Context, e AuditEntry) error

// attrs lists the thirteen fields under their wire names; what is absent is nil.
func (e *AuditEntry) attrs() []slog.Attr {
	var index, depth any
	if e.MatchedRuleIndex >= 0 {
		index = e.MatchedRuleIndex
	}
	if e.CallDepth >= 0 {
		depth = e.CallDepth
	}
	return []slog.Attr{
		slog.String("timestamp", e.Timestamp.UTC().Format("2006-01-02T15:04:05.000Z")),
		slog.String("caller_id", e.CallerID),
		slog.String("target_id", e.TargetID),
		slog.String("decision", string(e.Decision)),
		slog.String("reason", e.Reason),
		slog.Any("matched_rule", nullable(e.MatchedRule)),
		slog.Any("matched_rule_index", index),
		slog.Any("identity_type", nullable(e.IdentityType)),
		slog.Any("roles", e.Roles),
		slog.Any("call_depth", depth),
		slog.Any("trace_id", nullable(e.TraceID)),
		slog.Any("handler_error", nullable(e.HandlerError)),
		slog.Bool("approval_required", e.ApprovalRequired),
	}
}

// Map returns the entry under its wire names; absent values are nil.
func (e *AuditEntry) Map() map[string]any {
	m := make(map[string]any, 13)
	for _, a := range e.attrs() {
		m[a.Key] = a.Value.Any()
	}
	roles := make([]any, len(e.Roles))
	for i, r := range e.Roles {
		roles[i] = r
	}
	m["roles"] = roles
	return m
}

func nullable(s string) any {
	if s == "" {
		return nil
	}
	return s
}

// LevelTrace is the level of audit.log_level: trace.
const LevelTrace = slog.Level(-8)

// auditBlock is the audit section of a rule file.
type auditBlock struct {
	declared                      bool
	enabled, includeDenied        bool
	level                         slog.Level
	enabledSet, deniedSet, lvlSet bool
}

// sink is where entries go: the callback or the default sink, never both.
type sink struct {
	callback      AuditFunc
	logger        *slog.Logger // of the default sink
	level         slog.Level
	includeDenied bool
	diagnostics   *slog.Logger
	failed        atomic.Bool
}

// sinkFor makes the effective sink, nil for none.
func sinkFor(o Options, b auditBlock) *sink {
	switch {
	case o.Audit != nil:
		return &sink{callback: o.Audit, diagnostics: o.Logger}
	case b.declared && b.enabled:
		return &sink{logger: o.AuditLogger, level: b.level, includeDenied: b.includeDenied, diagnostics: o.Logger}
	}
	return nil
}

// warn tells once per load what of the block does not mean what it seems to.
func (b auditBlock) warn(o Options) {
	if o.Audit != nil {
		var fields []string
		if b.enabledSet {
			fields = append(fields, "audit.enabled")
		}
		if b.deniedSet {
			fields = append(fields, "audit.include_denied")
		}
		if b.lvlSet {
			fields = append(fields, "audit.log_level")
		}
		if len(fields) > 0 {
			o.Logger.Warn("ACL audit settings do not apply, an audit callback is set", "fields", fields)
		}
		return
	}
	if b.declared && b.enabled && !b.includeDenied {
		o.Logger.Warn("ACL denials are kept from the audit log", "field", "audit.include_denied")
	}
}

func (s *sink) deliver(ctx context.Context, e *AuditEntry) {
	defer func() {
		if recover() != nil {
			s.report("panic")
		}
	}()
	if s.callback != nil {
		if err := s.callback(ctx, *e); err != nil {
			s.report(err.Error())
		}
		return
	}
	if (e.Decision == Deny && !s.includeDenied) || !s.logger.Enabled(ctx, s.level) {
		return
	}
	r := slog.NewRecord(e.Timestamp, s.level, "apcore.acl.audit", 0)
	r.AddAttrs(e.attrs()...)
	if err := s.logger.Handler().Handle(ctx, r); err != nil {
		s.report(err.Error())
	}
}

func (s *sink) report(cause string) {
	if s.failed.CompareAndSwap(false, true) {
		s.diagnostics.Error("ACL audit sink failed, further failures are not logged", "cause", cause)
	}
}
