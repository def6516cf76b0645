package loop

import (
	"context"
	"iter"
	"time"

	"github.com/apbus/apbus/contextwire"
)

// Type says what a [Record] is.
type Type string

// The types of evidence, which come from the stream of evidence.
const (
	TypeCall     = Type(contextwire.EvidenceCall)
	TypeStream   = Type(contextwire.EvidenceStream)
	TypeTask     = Type(contextwire.EvidenceTask)
	TypeACL      = Type(contextwire.EvidenceACL)
	TypeApproval = Type(contextwire.EvidenceApproval)
	TypeNote     = Type(contextwire.EvidenceNote)
)

// The types of knowledge and of snapshots. Their content is in [Record.Fields]; a
// snapshot has no sequence and is made anew for each reading.
const (
	TypeFact   Type = "fact"
	TypeLesson Type = "lesson"
	TypeSkill  Type = "skill"
	TypePlan   Type = "plan"
	// TypeModule is a snapshot of one (module, version, host) of the catalogue:
	// module_id, version, description, digest (of both schemas), node, boot,
	// since_ms (registered or first seen), deprecated (bool), sunset_ms, system (bool),
	// gate (bool).
	TypeModule Type = "module"
	// TypeRunning is a snapshot of one task attempt that is running now: task_id,
	// module_id, node, attempt, started_ms, progress_ms (last sign of progress).
	TypeRunning Type = "running"
)

// EvidenceTypes are the types that come from the stream of evidence.
func EvidenceTypes() []Type {
	return []Type{TypeCall, TypeStream, TypeTask, TypeACL, TypeApproval, TypeNote}
}

// Record is one immutable thing that an analyzer may look at. Readers hand out the
// same Record to several analyzers, so it must not be modified, and what is kept of
// it must be copied with strings.Clone: its strings share memory.
type Record struct {
	// Seq is the place in the stream of evidence, 0 for what is not in it.
	Seq uint64
	// Hash is 64 hex digits and identifies the record.
	Hash      string
	Type      Type
	Namespace string
	// CreatedAtMS and ValidToMS are Unix milliseconds; ValidToMS is 0 for no end.
	CreatedAtMS, ValidToMS int64
	// SupersededBy is the hash of the record that took its place; it is live when
	// this is empty.
	SupersededBy string
	// Evidence is set for the types of evidence, Fields for all others.
	Evidence *contextwire.Evidence
	Fields   map[string]any
}

// Live reports whether nothing has taken the place of r.
func (r *Record) Live() bool { return r.SupersededBy == "" }

// Text is the text field under key, "" when there is none.
func (r *Record) Text(key string) string { s, _ := r.Fields[key].(string); return s }

// Int is the integer field under key, 0 when there is none.
func (r *Record) Int(key string) int64 {
	switch v := r.Fields[key].(type) {
	case int64:
		return v
	case int:
		return int64(v)
	case float64:
		return int64(v)
	}
	return 0
}

// Bool is the field under key, false when there is none.
func (r *Record) Bool(key string) bool { b, _ := r.Fields[key].(bool); return b }

// EvidenceRecord makes the Record of a decoded piece of evidence.
func EvidenceRecord(seq uint64, hash string, e *contextwire.Evidence) *Record {
	return &Record{
		Seq: seq, Hash: hash, Type: Type(e.Type), Namespace: e.NS, CreatedAtMS: e.At.UnixMilli(), Evidence: e,
	}
}

// Query selects records. The zero Query is every live record of every type.
type Query struct {
	// Types are the wanted types, all when empty.
	Types []Type
	// Namespaces are the wanted namespaces, all when empty.
	Namespaces []string
	// AfterSeq leaves out evidence up to and including this sequence. Records that
	// are not in the stream are not affected.
	AfterSeq uint64
	// UpToSeq, when not zero, leaves out evidence after this sequence.
	UpToSeq uint64
	// Since leaves out evidence that ended before it, when not zero. A reader uses it
	// to begin late; it may still give older records, so analyzers look at the time.
	Since time.Time
	// Superseded includes records that are no longer live.
	Superseded bool
}

// Wants reports whether r is selected. A reader of few records filters with it.
func (q *Query) Wants(r *Record) bool {
	return (q.Superseded || r.Live()) && q.WantsType(r.Type) && q.wantsNamespace(r.Namespace) &&
		(r.Seq == 0 || r.Seq > q.AfterSeq && (q.UpToSeq == 0 || r.Seq <= q.UpToSeq)) &&
		(r.Evidence == nil || q.Since.IsZero() || r.CreatedAtMS >= q.Since.UnixMilli())
}

// WantsType reports whether records of type t are selected.
func (q *Query) WantsType(t Type) bool { return len(q.Types) == 0 || has(q.Types, t) }

func (q *Query) wantsNamespace(ns string) bool {
	return len(q.Namespaces) == 0 || has(q.Namespaces, ns)
}

func has[T comparable](list []T, v T) bool {
	for _, e := range list {
		if e == v {
			return true
		}
	}
	return false
}

// Reader is what analyzers see of the world. It cannot write. Implementations are
// safe for concurrent use.
type Reader interface {
	// Records ranges over what q selects: evidence in the order of its sequence,
	// everything else in any order that is the same for the same content. An error
	// ends the sequence. It streams; nothing makes it hold all records at once.
	Records(ctx context.Context, q Query) iter.Seq2[*Record, error]
	// ByHash finds records, superseded ones too. What is not there is not in the map.
	ByHash(ctx context.Context, hashes []string) (map[string]*Record, error)
	// Count counts evidence after a sequence, and how far the stream goes, without
	// reading the records one by one where the store can.
	Count(ctx context.Context, q Query) (Counts, error)
}

// Counts is what [Reader.Count] found.
type Counts struct {
	// Records and Errors count evidence; Errors those whose outcome is an error, a
	// timeout or dead. A reader that cannot tell errors without reading everything
	// may stop at a bound; Partial says so.
	Records, Errors int
	Partial         bool
	// LastSeq is the last sequence of the stream, also when it is not selected.
	LastSeq uint64
}

// Failed reports whether an outcome is a failure of the module, the task or the
// way there: error, timeout, dead.
func Failed(outcome string) bool {
	return outcome == contextwire.OutcomeError || outcome == contextwire.OutcomeTimeout || outcome == contextwire.OutcomeDead
}
