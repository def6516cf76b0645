package loop

import (
	"context"
	"iter"
	"time"

	"github.com/apbus/apbus/schema"
)

// ModuleSnapshot is one module on one host as the catalogue has it now.
type ModuleSnapshot struct {
	Namespace             string
	ModuleID, Version     string
	Description           string
	InputSchema           map[string]any
	OutputSchema          map[string]any
	Node, Boot            string
	Since                 time.Time
	Deprecated            bool
	Sunset                time.Time
	System, ApprovalGated bool
}

// Record makes the record of type [TypeModule]. Its hash is that of its content, so
// that a module that changes is another record.
func (m *ModuleSnapshot) Record() *Record {
	f := map[string]any{
		"module_id": m.ModuleID, "version": m.Version, "description": m.Description, "node": m.Node, "boot": m.Boot,
		"digest": schema.ContentHash([]any{m.InputSchema, m.OutputSchema}),
	}
	stamp := func(key string, at time.Time) {
		if !at.IsZero() {
			f[key] = at.UnixMilli()
		}
	}
	stamp("since_ms", m.Since)
	stamp("sunset_ms", m.Sunset)
	for key, b := range map[string]bool{"deprecated": m.Deprecated, "system": m.System, "gate": m.ApprovalGated} {
		if b {
			f[key] = true
		}
	}
	return snapshot(TypeModule, m.Namespace, m.Since, f, f)
}

// RunningSnapshot is one task attempt that runs now.
type RunningSnapshot struct {
	Namespace         string
	TaskID, ModuleID  string
	Node              string
	Attempt           int
	Started, Progress time.Time
}

// Record makes the record of type [TypeRunning]. Its hash is the same as long as the
// attempt runs.
func (t *RunningSnapshot) Record() *Record {
	id := map[string]any{
		"task_id": t.TaskID, "module_id": t.ModuleID, "node": t.Node, "attempt": int64(t.Attempt), "started_ms": t.Started.UnixMilli(),
	}
	f := map[string]any{}
	for k, v := range id {
		f[k] = v
	}
	if !t.Progress.IsZero() {
		f["progress_ms"] = t.Progress.UnixMilli()
	}
	return snapshot(TypeRunning, t.Namespace, t.Started, id, f)
}

func snapshot(typ Type, ns string, at time.Time, identity, fields map[string]any) *Record {
	r := &Record{Type: typ, Namespace: ns, Fields: fields}
	if !at.IsZero() {
		r.CreatedAtMS = at.UnixMilli()
	}
	r.Hash = schema.ContentHash(map[string]any{"type": string(typ), "ns": ns, "fields": identity})
	return r
}

// Snapshots is a [Reader] of what read gives at that moment, records of type
// [TypeModule] and [TypeRunning].
func Snapshots(read func(ctx context.Context) ([]*Record, error)) Reader { return snapshots(read) }

type snapshots func(ctx context.Context) ([]*Record, error)

// Records implements [Reader].
func (s snapshots) Records(ctx context.Context, q Query) iter.Seq2[*Record, error] {
	return func(yield func(*Record, error) bool) {
		if !q.WantsType(TypeModule) && !q.WantsType(TypeRunning) {
			return
		}
		records, err := s(ctx)
		if err != nil {
			yield(nil, err)
			return
		}
		NewMemReader(records...).Records(ctx, q)(yield)
	}
}

// ByHash implements [Reader].
func (s snapshots) ByHash(ctx context.Context, hashes []string) (map[string]*Record, error) {
	records, err := s(ctx)
	if err != nil {
		return nil, err
	}
	return NewMemReader(records...).ByHash(ctx, hashes)
}

// Count implements [Reader]; a snapshot is no evidence.
func (s snapshots) Count(context.Context, Query) (Counts, error) { return Counts{}, nil }
