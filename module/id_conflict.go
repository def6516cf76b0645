package module

import (
	"slices"
	"strings"
)

// ConflictKind says how a new module ID gets in the way of what is there.
type ConflictKind string

// The kinds, in the order in which they are looked for.
const (
	ConflictDuplicate ConflictKind = "duplicate_id"
	ConflictReserved  ConflictKind = "reserved_word"
	ConflictCase      ConflictKind = "case_collision"
)

// IDConflict is one conflict. A duplicate and a reserved word are errors, IDs
// that differ in case alone are a warning.
type IDConflict struct {
	Kind ConflictKind
	// With is the registered ID or the reserved word.
	With string
}

// IsError reports whether the ID must be refused.
func (c *IDConflict) IsError() bool { return c.Kind != ConflictCase }

// Err is the coded error of a conflict, nil for a warning: DUPLICATE_MODULE_ID,
// or INVALID_MODULE_ID for a reserved word.
func (c *IDConflict) Err(id string) error {
	switch c.Kind {
	case ConflictDuplicate:
		return Errorf(CodeDuplicateModuleID, "module %s is registered already", id).WithDetail("module_id", id)
	case ConflictReserved:
		return Errorf(CodeInvalidModuleID, "module id %s begins with a reserved word", quoteID(id)).WithDetail("module_id", id)
	}
	return nil
}

// DetectIDConflict looks for the first conflict of a new ID with those that exist
// (algorithm A03), nil when there is none. A reserved word claims a namespace, so
// only the first segment is compared with it, whole and without regard to case;
// ephemeral is no conflict, it has rules of its own.
func DetectIDConflict(id string, existing []string) *IDConflict {
	if slices.Contains(existing, id) {
		return &IDConflict{Kind: ConflictDuplicate, With: id}
	}
	if first := strings.ToLower(FirstSegment(id)); first != ephemeralSegment && IsReservedID(first) {
		return &IDConflict{Kind: ConflictReserved, With: first}
	}
	for _, other := range existing {
		if strings.EqualFold(other, id) {
			return &IDConflict{Kind: ConflictCase, With: other}
		}
	}
	return nil
}

const ephemeralSegment = "ephemeral"

// IsEphemeralID reports whether id lies in the namespace of modules that are made
// at run time: ephemeral itself or ephemeral.x (protocol §2.5.1).
func IsEphemeralID(id string) bool { return FirstSegment(id) == ephemeralSegment }
