package approval

import (
	"time"

	"github.com/apbus/apbus/module"
)

// recordVersion is the version of the form that [Record.Map] gives. A change that
// an older reader would misread raises it; a new key does not.
const recordVersion = 1

// ErrNewer is a stored record of a newer version: it must be left as it is.
const ErrNewer = errorString("approval request needs a newer version of this program")

// Map returns the form in which stores keep a record, of the JSON data model but
// for what modules predicted. It holds the digest of the raw inputs, from which
// short ones can be guessed: show a selection to people instead.
func (r Record) Map() map[string]any {
	changes := make([]any, len(r.Changes))
	for i, c := range r.Changes {
		changes[i] = c.Map()
	}
	m := map[string]any{
		"v": int64(recordVersion), "id": r.ID, "state": string(r.State), "binding": r.Binding.toMap(),
		"inputs": r.Inputs, "changes": changes, "warnings": anyList(r.Warnings), "description": r.Description,
		"tags": anyList(r.Tags), "enrichers": anyList(r.Enrichers), "annotations": r.Annotations.Map(), "reason": r.Reason,
		"trace_id": r.TraceID, "call_chain": anyList(r.CallChain),
		"created_at": stamp(r.CreatedAt), "expires_at": stamp(r.ExpiresAt), "token_expires_ms": r.TokenExpires.Milliseconds(),
	}
	if r.Inputs == nil {
		m["inputs"] = nil
	}
	if !r.DecidedAt.IsZero() {
		m["decided"] = map[string]any{
			"at": stamp(r.DecidedAt), "by": r.DecidedBy, "type": r.DecidedType, "because": r.BecauseOf,
		}
	}
	if !r.ClaimedAt.IsZero() {
		m["claimed_at"] = stamp(r.ClaimedAt)
	}
	return m
}

func (b Binding) toMap() map[string]any {
	m := map[string]any{
		"module_id": b.ModuleID, "version": b.Version, "caller_id": b.CallerID, "digest": b.Digest, "identity": nil,
	}
	if b.HasIdentity {
		m["identity"] = map[string]any{"id": b.IdentityID, "type": b.IdentityType}
	}
	return m
}

// RecordFromMap reads what [Record.Map] gave, through any codec. A record of a
// newer version is [ErrNewer]; one that lacks what decides about a call is
// GENERAL_INVALID_INPUT. Unknown keys are ignored.
func RecordFromMap(m map[string]any) (Record, error) {
	version, ok := m["v"].(int64)
	switch {
	case !ok || version < 1:
		return Record{}, malformed("v")
	case version > recordVersion:
		return Record{}, ErrNewer
	}
	rd := reader{}
	r := Record{
		ID: rd.must(m, "id"), State: State(rd.must(m, "state")), Binding: rd.binding(m),
		Warnings: rd.list(m, "warnings"), Description: rd.text(m, "description"), Tags: rd.list(m, "tags"),
		Enrichers: rd.list(m, "enrichers"), Reason: rd.text(m, "reason"),
		TraceID: rd.text(m, "trace_id"), CallChain: rd.list(m, "call_chain"),
		CreatedAt: rd.time(m, "created_at"), ExpiresAt: rd.time(m, "expires_at"), ClaimedAt: rd.time(m, "claimed_at"),
	}
	r.Inputs, _ = m["inputs"].(map[string]any)
	if a, ok := m["annotations"].(map[string]any); ok {
		r.Annotations = module.AnnotationsFromMap(a)
	}
	if ms, ok := m["token_expires_ms"].(int64); ok {
		r.TokenExpires = time.Duration(ms) * time.Millisecond
	}
	changes, _ := m["changes"].([]any)
	for _, item := range changes {
		cm, _ := item.(map[string]any)
		c, err := module.ChangeFromMap(cm)
		if err != nil {
			rd.fail("changes")
			continue
		}
		r.Changes = append(r.Changes, c)
	}
	if d, ok := m["decided"].(map[string]any); ok {
		r.DecidedAt, r.DecidedBy = rd.time(d, "at"), rd.must(d, "by")
		r.DecidedType, r.BecauseOf = rd.text(d, "type"), rd.text(d, "because")
	}
	switch r.State {
	case StatePending, StateApproved, StateRejected, StateClaimed, StateWithdrawn, StateExpired:
	default:
		rd.fail("state")
	}
	if rd.err != nil {
		return Record{}, rd.err
	}
	return r, nil
}

// reader collects the first complaint about a stored record.
type reader struct{ err error }

func (rd *reader) fail(key string) {
	if rd.err == nil {
		rd.err = malformed(key)
	}
}

func malformed(key string) error {
	return module.Errorf(module.CodeInvalidInput, "stored approval request: %s is missing or malformed", key)
}

func (rd *reader) must(m map[string]any, key string) string {
	s := rd.text(m, key)
	if s == "" {
		rd.fail(key)
	}
	return s
}

func (rd *reader) text(m map[string]any, key string) string {
	v, present := m[key]
	s, ok := v.(string)
	if present && !ok {
		rd.fail(key)
	}
	return s
}

func (rd *reader) time(m map[string]any, key string) time.Time {
	s := rd.text(m, key)
	if s == "" {
		return time.Time{}
	}
	t, err := time.Parse(time.RFC3339Nano, s)
	if t = t.UTC(); err != nil || t.Year() < 0 || t.Year() > 9999 {
		rd.fail(key)
	}
	return t
}

func (rd *reader) list(m map[string]any, key string) []string {
	items, _ := m[key].([]any)
	var out []string
	for _, item := range items {
		s, ok := item.(string)
		if !ok {
			rd.fail(key)
		}
		out = append(out, s)
	}
	return out
}

func (rd *reader) binding(m map[string]any) Binding {
	bm, _ := m["binding"].(map[string]any)
	b := Binding{
		ModuleID: rd.must(bm, "module_id"), Version: rd.text(bm, "version"), CallerID: rd.text(bm, "caller_id"), Digest: rd.must(bm, "digest"),
	}
	switch id := bm["identity"].(type) {
	case nil:
	case map[string]any:
		b.HasIdentity, b.IdentityID, b.IdentityType = true, rd.text(id, "id"), rd.text(id, "type")
	default:
		rd.fail("identity")
	}
	return b
}

func anyList(list []string) []any {
	out := make([]any, len(list))
	for i, s := range list {
		out[i] = s
	}
	return out
}

// stamp renders a time exactly, "" for none.
func stamp(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339Nano)
}
