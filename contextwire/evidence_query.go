package contextwire

import (
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/apbus/apbus/module"
)

// Limits of a list of evidence.
const (
	DefaultEvidenceLimit = 100
	MaxEvidenceLimit     = 1000
)

// EvidenceQuery selects records for people and programs; zero fields select all.
type EvidenceQuery struct {
	ModuleID string
	Types    []EvidenceType
	Code     module.Code
	Since    time.Time
	// Before selects records before a sequence, to page back.
	Before uint64
	// Limit is [DefaultEvidenceLimit] when 0; of more matches the newest are given.
	Limit int
}

// Wants reports whether e is selected, sequence and limit aside.
func (q *EvidenceQuery) Wants(e *Evidence) bool {
	return (q.ModuleID == "" || e.ModuleID == q.ModuleID) && (len(q.Types) == 0 || slices.Contains(q.Types, e.Type)) &&
		(q.Code == "" || e.Code == q.Code) && (q.Since.IsZero() || !e.At.Before(q.Since))
}

// ParseEvidenceQuery reads module, type (several with commas), code, since (RFC 3339
// or an age such as 2h), before and limit. Anything malformed is
// GENERAL_INVALID_INPUT; other keys are ignored.
func ParseEvidenceQuery(v url.Values, now time.Time) (EvidenceQuery, error) {
	q := EvidenceQuery{ModuleID: v.Get("module"), Code: module.Code(v.Get("code")), Limit: DefaultEvidenceLimit}
	refuse := func(key, text string) (EvidenceQuery, error) {
		return EvidenceQuery{}, module.Errorf(module.CodeInvalidInput, "%s %s", key, text)
	}
	if q.ModuleID != "" {
		if err := module.ValidateID(q.ModuleID); err != nil {
			return refuse("module", "is no module id")
		}
	}
	if list := v.Get("type"); list != "" {
		for name := range strings.SplitSeq(list, ",") {
			t := EvidenceType(strings.TrimSpace(name))
			if !t.Valid() {
				return refuse("type", "is none of call, stream, task, acl, approval, note")
			}
			q.Types = append(q.Types, t)
		}
	}
	if s := v.Get("since"); s != "" {
		if age, err := time.ParseDuration(s); err == nil && age >= 0 {
			q.Since = now.Add(-age)
		} else if at, err := time.Parse(time.RFC3339, s); err == nil {
			q.Since = at
		} else {
			return refuse("since", "is neither an RFC 3339 time nor an age such as 2h")
		}
	}
	if s := v.Get("before"); s != "" {
		n, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			return refuse("before", "is no sequence")
		}
		q.Before = n
	}
	if s := v.Get("limit"); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil || n < 1 || n > MaxEvidenceLimit {
			return refuse("limit", "is not within 1 and "+strconv.Itoa(MaxEvidenceLimit))
		}
		q.Limit = n
	}
	return q, nil
}

// EvidenceItem is a stored record with its place and its hash.
type EvidenceItem struct {
	Seq  uint64
	Hash string
	*Evidence
}

// Map returns the wire form of the record with seq and hash.
func (i EvidenceItem) Map() (map[string]any, error) {
	m, err := i.Evidence.Map()
	if err != nil {
		return nil, err
	}
	m["hash"], m["seq"] = i.Hash, int64(i.Seq) //nolint:gosec // a stream does not get so far
	return m, nil
}

// EvidencePage answers an [EvidenceQuery]: the newest matches, oldest first.
type EvidencePage struct {
	Items []EvidenceItem
	// Last is the last sequence of the stream, from which a reader may follow.
	Last uint64
	// More is true when older matches may exist.
	More bool
}
