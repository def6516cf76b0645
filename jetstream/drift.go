package jetstream

import (
	"fmt"
	"slices"

	natsjs "github.com/nats-io/nats.go/jetstream"
)

// Drift is a setting in which an existing stream differs from what would have
// been created. It is reported, never repaired: a shared JetStream belongs to
// others too.
type Drift struct {
	Setting   string
	Want, Got string
	// Fatal is set when tasks would be lost or could not be stored.
	Fatal bool
}

// String says what the setting is and what it should be.
func (d Drift) String() string {
	return fmt.Sprintf("%s is %s, want %s", d.Setting, d.Got, d.Want)
}

// compare lists what differs, in a fixed order. The number of replicas is compared
// only where somebody asked for one.
func compare(want, got natsjs.StreamConfig, replicas int) []Drift {
	var drift []Drift
	differs := func(setting string, want, got any, fatal bool) {
		if w, g := fmt.Sprint(want), fmt.Sprint(got); w != g {
			drift = append(drift, Drift{setting, w, g, fatal})
		}
	}
	ours, theirs := slices.Sorted(slices.Values(want.Subjects)), slices.Sorted(slices.Values(got.Subjects))
	missing := slices.ContainsFunc(ours, func(s string) bool { return !slices.Contains(theirs, s) })
	differs("subjects", ours, theirs, missing)

	// Under these, what was acknowledged goes without anybody's decision, or
	// nothing can be written.
	differs("storage", want.Storage, got.Storage, true)
	differs("retention", want.Retention, got.Retention, true)
	differs("max_age", want.MaxAge, got.MaxAge, true)
	differs("max_msgs_per_subject", want.MaxMsgsPerSubject, got.MaxMsgsPerSubject, true)
	differs("allow_direct", want.AllowDirect, got.AllowDirect, true)
	differs("allow_msg_ttl", want.AllowMsgTTL, got.AllowMsgTTL, true)
	differs("allow_atomic", want.AllowAtomicPublish, got.AllowAtomicPublish, true)
	differs("persist_mode", want.PersistMode, got.PersistMode, true)
	differs("sealed", false, got.Sealed, true)
	differs("no_ack", false, got.NoAck, true)
	differs("mirror", false, got.Mirror != nil, true)
	differs("sources", 0, len(got.Sources), true)
	differs("subject_transform", false, got.SubjectTransform != nil, true)
	differs("discard_new_per_subject", false, got.DiscardNewPerSubject, true)
	limited := got.MaxMsgs > 0 || got.MaxBytes > 0
	differs("discard", want.Discard, got.Discard, limited)

	if replicas > 0 {
		differs("num_replicas", replicas, got.Replicas, false)
	}
	differs("max_msgs", want.MaxMsgs, got.MaxMsgs, false)
	differs("max_bytes", want.MaxBytes, got.MaxBytes, false)
	differs("max_msg_size", want.MaxMsgSize, got.MaxMsgSize, false)
	differs("allow_rollup_hdrs", want.AllowRollup, got.AllowRollup, false)
	differs("deny_delete", want.DenyDelete, got.DenyDelete, false)
	differs("deny_purge", want.DenyPurge, got.DenyPurge, false)
	return drift
}
