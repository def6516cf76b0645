package jetstream

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"regexp"
	"strings"
	"sync"
	"time"

	natsjs "github.com/nats-io/nats.go/jetstream"

	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/executor/approval"
	"github.com/apbus/apbus/module"
)

// ApprovalBucket is the key-value bucket of approval requests, of every namespace.
const ApprovalBucket = "APBUS_APPROVALS"

// DefaultApprovalRetention is how long a request is kept after its last change.
const DefaultApprovalRetention = 30 * 24 * time.Hour

// ApprovalOptions configures [OpenApprovals]. The zero value is usable.
type ApprovalOptions struct {
	// Namespace is the part of the bucket that is seen, "default" when empty.
	Namespace string
	// Retention is how long a record is kept after its last change,
	// [DefaultApprovalRetention] when zero. It must exceed the time in which a request can be decided.
	Retention time.Duration
	// Replicas of a bucket that is to be created, 1 when zero; zero has no opinion on
	// one that exists.
	Replicas int
	// MaxBytes bounds the bucket, 256 MiB by default; a full one takes no new
	// requests.
	MaxBytes int64
	// Logger is slog.Default when nil.
	Logger *slog.Logger
}

// ApprovalStore keeps approval requests in a JetStream bucket: one key a request,
// <namespace>.<id>, whose revision is the compare-and-set. It is safe for
// concurrent use and for any number of processes, and needs no shutdown.
//
// A list reads every record of the namespace.
type ApprovalStore struct {
	kv  natsjs.KeyValue
	js  natsjs.JetStream
	raw *conn
	ns  string
	log *slog.Logger

	mu     sync.Mutex
	broken map[string]uint64    // revisions of records that were complained about
	unseen map[string]time.Time // requests that tasks wait for and that are not there, since when
}

var _ approval.Store = (*ApprovalStore)(nil)

// OpenApprovals opens the bucket and makes it where it is missing. A bucket that
// is there is used as it is: where it differs from the options a warning says so,
// and one that is kept in memory is refused with CONFIG_INVALID.
func OpenApprovals(ctx context.Context, js natsjs.JetStream, o ApprovalOptions) (*ApprovalStore, error) {
	if o.Namespace == "" {
		o.Namespace = "default"
	}
	if o.Retention <= 0 {
		o.Retention = DefaultApprovalRetention
	}
	if o.MaxBytes <= 0 {
		o.MaxBytes = 256 << 20
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if !keyToken.MatchString(o.Namespace) {
		return nil, module.Errorf(module.CodeConfigInvalid, "namespace %q cannot be part of a key", o.Namespace)
	}
	kv, err := js.KeyValue(ctx, ApprovalBucket)
	if errors.Is(err, natsjs.ErrBucketNotFound) {
		kv, err = js.CreateKeyValue(ctx, natsjs.KeyValueConfig{
			Bucket: ApprovalBucket, Description: "calls that wait for a person, and what was decided",
			History: 1, TTL: o.Retention, MaxBytes: o.MaxBytes, Replicas: max(1, o.Replicas), Storage: natsjs.FileStorage,
		})
		if errors.Is(err, natsjs.ErrBucketExists) { // another process was faster
			kv, err = js.KeyValue(ctx, ApprovalBucket)
		}
	}
	if err != nil {
		return nil, approvalFailure(ctx, "open", err)
	}
	s := &ApprovalStore{kv: kv, js: js, raw: newConn(js, "KV_"+ApprovalBucket), ns: o.Namespace, log: o.Logger, broken: map[string]uint64{}, unseen: map[string]time.Time{}}
	return s, s.compare(ctx, o)
}

// compare reports where the bucket is not as the options would have made it.
func (s *ApprovalStore) compare(ctx context.Context, o ApprovalOptions) error {
	status, err := s.kv.Status(ctx)
	if err != nil {
		return approvalFailure(ctx, "open", err)
	}
	c := status.Config()
	if c.Storage == natsjs.MemoryStorage {
		return module.Errorf(module.CodeConfigInvalid, "bucket %s is kept in memory; approvals must survive the server", ApprovalBucket)
	}
	if o.Replicas == 0 {
		o.Replicas = c.Replicas
	}
	for _, d := range []struct {
		what      string
		have, got any
	}{
		{"retention", c.TTL, o.Retention}, {"replicas", c.Replicas, o.Replicas}, {"max_bytes", c.MaxBytes, o.MaxBytes},
	} {
		if d.have != d.got {
			s.log.WarnContext(ctx, "the approvals bucket differs from the configuration and is used as it is",
				"setting", d.what, "have", fmt.Sprint(d.have), "want", fmt.Sprint(d.got))
		}
	}
	return nil
}

// keyToken is what a namespace and an ID may be made of.
var keyToken = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

func (s *ApprovalStore) key(id string) string { return s.ns + "." + id }

// Create stores a new record.
func (s *ApprovalStore) Create(ctx context.Context, r approval.Record) (uint64, error) {
	raw, err := s.encode(r)
	if err != nil {
		return 0, err
	}
	revision, err := s.kv.Create(ctx, s.key(r.ID), raw)
	if errors.Is(err, natsjs.ErrKeyExists) {
		return 0, approval.ErrExists
	}
	return revision, approvalFailure(ctx, "create", err)
}

// Update replaces a record. The server reports a lost race under two codes, one
// of them from replicated streams only; the client knows both.
func (s *ApprovalStore) Update(ctx context.Context, r approval.Record, revision uint64) (uint64, error) {
	if revision == 0 {
		return 0, approval.ErrConflict // to the server it means a new key
	}
	raw, err := s.encode(r)
	if err != nil {
		return 0, err
	}
	next, err := s.kv.Update(ctx, s.key(r.ID), raw, revision)
	if errors.Is(err, natsjs.ErrKeyRevisionMismatch) {
		return 0, approval.ErrConflict
	}
	return next, approvalFailure(ctx, "update", err)
}

// Get returns a record. It is never older than what was decided before: a replica that
// lags is not asked.
func (s *ApprovalStore) Get(ctx context.Context, id string) (approval.Entry, error) {
	if !keyToken.MatchString(id) {
		return approval.Entry{}, approval.ErrNotFound
	}
	m, ok, err := s.raw.lastOf(ctx, "$KV."+ApprovalBucket+"."+s.key(id))
	if err != nil {
		return approval.Entry{}, approvalFailure(ctx, "get", err)
	}
	if !ok || m.header.Get("KV-Operation") != "" { // deleted
		return approval.Entry{}, approval.ErrNotFound
	}
	r, err := decodeApproval(m.data)
	if err != nil {
		return approval.Entry{}, module.Wrap(module.CodeTaskStoreUnavailable, err, "the stored approval request cannot be read").
			WithDetails(map[string]any{"operation": "get", "reason": err.Error()}).WithRetryable(module.False)
	}
	return approval.Entry{Record: r, Revision: m.seq}, nil
}

// listLimit is how long a list may take. A server that goes away in the middle
// would otherwise hold it until the server's watches have recovered.
const listLimit = 10 * time.Second

var errListLate = errors.New("the list did not arrive in time")

// List reads every record and cuts the page. One that cannot be read is left out
// and logged once.
func (s *ApprovalStore) List(ctx context.Context, f approval.Filter) (approval.Page, error) {
	var all []approval.Record
	complete := false
	window, stop := context.WithTimeoutCause(ctx, listLimit, errListLate)
	defer stop()
	err := s.follow(window, s.ns+".>", 0, func(e natsjs.KeyValueEntry) bool {
		if e == nil {
			complete = true
			return false
		}
		if r, ok := s.readable(e); ok {
			all = append(all, r)
		}
		return true
	})
	if err == nil && !complete {
		err = context.Cause(window)
	}
	if err != nil {
		return approval.Page{}, approvalFailure(ctx, "list", err)
	}
	return f.Page(all, time.Now())
}

// Watch follows the bucket from a revision on.
func (s *ApprovalStore) Watch(ctx context.Context, id string, after uint64) iter.Seq2[approval.Entry, error] {
	return func(yield func(approval.Entry, error) bool) {
		keys := s.ns + ".>"
		if id != "" {
			if !keyToken.MatchString(id) {
				<-ctx.Done() // there will never be such a record
				return
			}
			keys = s.key(id)
		}
		left := false
		err := s.follow(ctx, keys, after, func(e natsjs.KeyValueEntry) bool {
			if e == nil || e.Revision() <= after {
				return true
			}
			r, ok := s.readable(e)
			left = ok && !yield(approval.Entry{Record: r, Revision: e.Revision()}, nil)
			return !left
		})
		if err != nil && !left && ctx.Err() == nil {
			yield(approval.Entry{}, approvalFailure(ctx, "watch", err))
		}
	}
}

// errWatchClosed is a watch that ended by itself, with its connection.
var errWatchClosed = errors.New("the watch was closed")

// follow hands f every write of the keys above a revision, and nil once when it
// has handed over what was there at the beginning, until f or ctx says stop.
func (s *ApprovalStore) follow(ctx context.Context, keys string, after uint64, f func(natsjs.KeyValueEntry) bool) error {
	if ctx.Err() != nil {
		return nil
	}
	opts := []natsjs.WatchOpt{natsjs.IgnoreDeletes()}
	if after > 0 {
		opts = append(opts, natsjs.ResumeFromRevision(after+1))
	}
	w, err := s.kv.Watch(ctx, keys, opts...)
	if err != nil {
		return err
	}
	defer func() {
		_ = w.Stop() // it may be closed already
		// The client's goroutine may be about to hand over one more entry, and ends
		// only when it could.
		for range w.Updates() {
		}
	}()
	for {
		select {
		case e, open := <-w.Updates():
			if !open {
				return errWatchClosed
			}
			if !f(e) {
				return nil
			}
		case <-ctx.Done():
			return nil
		}
	}
}

// readable decodes a record, or complains once about one that cannot be.
func (s *ApprovalStore) readable(e natsjs.KeyValueEntry) (approval.Record, bool) {
	r, err := decodeApproval(e.Value())
	if err == nil {
		return r, true
	}
	const most = 1000 // complaints remembered
	s.mu.Lock()
	told := s.broken[e.Key()] == e.Revision()
	if len(s.broken) >= most {
		clear(s.broken)
	}
	s.broken[e.Key()] = e.Revision()
	s.mu.Unlock()
	if !told {
		s.log.Warn("a stored approval request cannot be read and is left as it is", "key", e.Key(), "cause", err)
	}
	return approval.Record{}, false
}

// encode renders a record, if a message can hold it.
func (s *ApprovalStore) encode(r approval.Record) ([]byte, error) {
	if !keyToken.MatchString(r.ID) {
		return nil, module.Errorf(module.CodeInvalidInput, "an approval ID cannot be part of a key")
	}
	raw, err := contextwire.EncodeCanonical(contextwire.JSON, r.Map())
	if err != nil {
		return nil, err
	}
	const headers = 1 << 10 // more than those of a publish with an expected revision
	if limit := s.js.Conn().MaxPayload() - headers; limit > 0 && int64(len(raw)) > limit {
		return nil, contextwire.TooLarge(int64(len(raw)), limit)
	}
	return raw, nil
}

func decodeApproval(raw []byte) (approval.Record, error) {
	m, err := contextwire.DecodeMap(contextwire.JSON, raw, contextwire.Limits{})
	if err != nil {
		return approval.Record{}, err
	}
	return approval.RecordFromMap(m)
}

// The server's codes for a stream that is full. The second is of every failure to
// store; only its text tells a limit from a broken disk.
const (
	codeStorageExceeded natsjs.ErrorCode = 10047
	codeStoreFailed     natsjs.ErrorCode = 10077
)

// approvalFailure codes what the client says; nil stays nil, and a context that
// ended says why.
func approvalFailure(ctx context.Context, operation string, err error) error {
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	var api *natsjs.APIError
	if errors.As(err, &api) {
		if api.ErrorCode == codeStorageExceeded || (api.ErrorCode == codeStoreFailed && strings.Contains(api.Description, "maximum")) {
			return module.Errorf(module.CodeTaskLimitExceeded, "no room for approval requests: %w", err)
		}
	}
	return module.Wrap(module.CodeTaskStoreUnavailable, err, "the store of approval requests does not answer as it should").
		WithDetails(map[string]any{"operation": operation, "reason": err.Error()})
}
