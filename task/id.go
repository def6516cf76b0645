package task

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"time"

	"github.com/apbus/apbus/module"
)

// taskID is a UUID of version 4 whose random part says, to those who know the
// namespace, when it was made and that it was made here. So an ID whose record is
// gone can be told from one that never was (durable design, rule 10) without keeping
// the IDs of the past.
//
//	bytes 0–8   random, with the version and the variant
//	bytes 9–12  seconds since the epoch, veiled by the random part
//	bytes 13–15 the beginning of a digest over namespace and all before
type taskID [16]byte

func newTaskID(namespace string, now time.Time) taskID {
	var id taskID
	rand.Read(id[:9]) // never fails
	id[6] = id[6]&0x0f | 0x40
	id[8] = id[8]&0x3f | 0x80
	veil := id.digest(namespace, "time", 9)
	binary.BigEndian.PutUint32(id[9:], uint32(now.Unix())^binary.BigEndian.Uint32(veil[:]))
	check := id.digest(namespace, "check", 13)
	copy(id[13:], check[:3])
	return id
}

func (id taskID) digest(namespace, purpose string, n int) [sha256.Size]byte {
	b := make([]byte, 0, 64+len(namespace))
	b = append(append(b, purpose...), id[:n]...)
	return sha256.Sum256(append(b, namespace...))
}

// madeAt returns when the ID was made; false when it was not made in the namespace.
func (id taskID) madeAt(namespace string) (time.Time, bool) {
	check := id.digest(namespace, "check", 13)
	if [3]byte(id[13:]) != [3]byte(check[:3]) {
		return time.Time{}, false
	}
	veil := id.digest(namespace, "time", 9)
	return time.Unix(int64(binary.BigEndian.Uint32(id[9:])^binary.BigEndian.Uint32(veil[:])), 0), true
}

// String returns the customary form in five groups.
func (id taskID) String() string {
	var b [36]byte
	hex.Encode(b[0:8], id[0:4])
	hex.Encode(b[9:13], id[4:6])
	hex.Encode(b[14:18], id[6:8])
	hex.Encode(b[19:23], id[8:10])
	hex.Encode(b[24:36], id[10:16])
	b[8], b[13], b[18], b[23] = '-', '-', '-', '-'
	return string(b[:])
}

// parseTaskID reads what String wrote, and nothing else.
func parseTaskID(s string) (id taskID, ok bool) {
	if len(s) != 36 || s[8] != '-' || s[13] != '-' || s[18] != '-' || s[23] != '-' {
		return id, false
	}
	var h [32]byte
	copy(h[0:], s[0:8])
	copy(h[8:], s[9:13])
	copy(h[12:], s[14:18])
	copy(h[16:], s[19:23])
	copy(h[20:], s[24:36])
	for _, c := range h {
		if c >= 'A' && c <= 'F' {
			return id, false
		}
	}
	if _, err := hex.Decode(id[:], h[:]); err != nil {
		return taskID{}, false
	}
	return id, true
}

// missing is the error of an ID without a record: one that was made here, longer ago
// than any record is kept, was there once.
func (w *Writer) missing(id taskID) error {
	at, ours := id.madeAt(w.opts.Namespace)
	if ours && time.Since(at) >= w.opts.Retention.shortest()-time.Second {
		return expired(id)
	}
	return notFound(id.String())
}

func notFound(id string) error {
	return module.Errorf(module.CodeTaskNotFound, "no task has this ID").WithDetail("task_id", clip(id))
}

func expired(id taskID) error {
	return module.Errorf(module.CodeTaskExpired, "the task is over and its record has gone").WithDetail("task_id", id.String())
}

// clip bounds text that somebody sent.
func clip(s string) string {
	if len(s) > 64 {
		return s[:64]
	}
	return s
}
