package contextwire

import "strings"

// headerFields are the headers that a message may have, found in one walk: a
// look-up that ignores case would walk the block for every name it misses.
type headerFields struct {
	version, call, attempt, root, parent, budget, mode, credit headerField
	moduleVersion, trace, idempotency, bodyRef                 headerField
	traceParent, traceState, contentType, accept               headerField

	frame, node, seq, creditTo, grace headerField
	err, unexecuted, retryAfter       headerField
}

// headerField is one header by the spelling that counts, see [Header.Get].
type headerField struct {
	spelling, value string
}

func (f *headerField) present() bool { return f.spelling != "" }

// read takes the fields from h, or refuses a block over its limit.
func (f *headerFields) read(h Header, lim Limits) error {
	size := 0
	for k, values := range h {
		for _, v := range values {
			size += headerSize(k, v)
		}
		if len(values) == 0 {
			continue
		}
		name := k
		field := f.field(name)
		if field == nil { // as good as never: senders write lower case
			name = strings.ToLower(k)
			field = f.field(name)
		}
		if field == nil || (field.present() && k != name && (field.spelling == name || field.spelling < k)) {
			continue
		}
		field.spelling, field.value = k, values[0]
	}
	return checkHeaderSize(size, lim)
}

func (f *headerFields) field(name string) *headerField {
	switch name {
	case HeaderVersion:
		return &f.version
	case HeaderCall:
		return &f.call
	case HeaderAttempt:
		return &f.attempt
	case HeaderRoot:
		return &f.root
	case HeaderParent:
		return &f.parent
	case HeaderBudget:
		return &f.budget
	case HeaderMode:
		return &f.mode
	case HeaderCredit:
		return &f.credit
	case HeaderModuleVersion:
		return &f.moduleVersion
	case HeaderTrace:
		return &f.trace
	case HeaderIdempotency:
		return &f.idempotency
	case HeaderBodyRef:
		return &f.bodyRef
	case HeaderTraceParent:
		return &f.traceParent
	case HeaderTraceState:
		return &f.traceState
	case HeaderContentType:
		return &f.contentType
	case HeaderAccept:
		return &f.accept
	case HeaderFrame:
		return &f.frame
	case HeaderNode:
		return &f.node
	case HeaderSeq:
		return &f.seq
	case HeaderCreditTo:
		return &f.creditTo
	case HeaderGrace:
		return &f.grace
	case HeaderError:
		return &f.err
	case HeaderUnexecuted:
		return &f.unexecuted
	case HeaderRetryAfter:
		return &f.retryAfter
	}
	return nil
}
