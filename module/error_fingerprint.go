package module

import (
	"crypto/sha256"
	"encoding/hex"
	"regexp"
	"strings"
)

// The parts of a message that differ between two happenings of one error.
var (
	uuidText = regexp.MustCompile(`(?i)[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`)
	timeText = regexp.MustCompile(`(?i)\d{4}-\d{2}-\d{2}(?:[T ]\d{2}:\d{2}:\d{2}(?:\.\d+)?(?:Z|[+-]\d{2}:?\d{2})?)?`)
	idText   = regexp.MustCompile(`\b\d{4,}\b`)
)

// Fingerprint names an error by what stays the same each time it happens: the
// lower-case hex SHA-256 of "code:moduleID:" and the normalized message
// (protocol, Error fingerprinting). The call stack is no part of it, so every
// implementation of the protocol gives an error the same fingerprint.
func Fingerprint(code Code, moduleID, message string) string {
	sum := sha256.Sum256([]byte(string(code) + ":" + moduleID + ":" + NormalizeMessage(message)))
	return hex.EncodeToString(sum[:])
}

// NormalizeMessage replaces, in this order, UUIDs, ISO 8601 dates and times and
// whole numbers of four or more digits by placeholders, then trims and
// lower-cases, the placeholders included: "Order 48213 failed" becomes
// "order <id> failed". "30000ms" and "42" stay.
func NormalizeMessage(message string) string {
	message = uuidText.ReplaceAllLiteralString(message, "<UUID>")
	message = timeText.ReplaceAllLiteralString(message, "<TIMESTAMP>")
	message = idText.ReplaceAllLiteralString(message, "<ID>")
	return strings.ToLower(strings.TrimSpace(message))
}
