package loop

import (
	"strings"
	"unicode"

	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/module"
)

// maxSignature is how much of a message counts, in characters.
const maxSignature = 80

// Signature makes one text of messages that differ in numbers and paths only: lower
// case, the first 80 characters, words with a slash as <path>, runs of digits as #,
// single spaces (loop specification, section 5.1). Control and format characters
// are taken out first. It is what failures are grouped by, and measured by later.
func Signature(message string) string {
	message = Cap(strings.ToLower(clean(message)), maxSignature)
	var b strings.Builder
	b.Grow(len(message))
	for i, word := range strings.Fields(message) {
		if i > 0 {
			b.WriteByte(' ')
		}
		if strings.ContainsAny(word, `/\`) {
			b.WriteString("<path>")
			continue
		}
		digits := false
		for _, r := range word {
			if unicode.IsDigit(r) {
				if !digits {
					b.WriteByte('#')
				}
				digits = true
				continue
			}
			digits = false
			b.WriteRune(r)
		}
	}
	return b.String()
}

// callersFault reports whether a code says something about the caller, not about
// the health of the module.
func callersFault(e *contextwire.Evidence) bool {
	switch e.Code {
	case module.CodeACLDenied, module.CodeApprovalDenied, module.CodeApprovalTimeout, module.CodeApprovalPending,
		module.CodeModuleNotFound, module.CodeModuleDisabled, module.CodeInvalidInput, module.CodeExecutionCancelled:
		return true
	case module.CodeSchemaValidation, module.CodeSchemaUnionNoMatch, module.CodeSchemaUnionAmbiguous:
		return e.Side != contextwire.SideOutput
	}
	return false
}

// ownFailure reports whether a call failed by its module: not by its caller, not by
// a module that it called, not by the way there.
func ownFailure(e *contextwire.Evidence) bool {
	return Failed(e.Outcome) && e.Origin == "" && !e.MadeHere && !callersFault(e)
}

// isCall reports whether a record is the end of a call or a stream.
func isCall(t Type) bool { return t == TypeCall || t == TypeStream }
