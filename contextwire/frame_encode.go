package contextwire

import (
	"log/slog"
	"strconv"
	"strings"

	"github.com/apbus/apbus/module"
)

// EncodeFrame writes f's headers and body in ct, which is the request's accept. A
// data frame carries its kind and number only, an accept frame no body. An error
// frame can always be written: text that is not UTF-8 is mended and details
// without a form on the wire are left out with a WARN. Other bodies with such
// values fail with BUS_BAD_MESSAGE, a frame that lacks what its kind needs with
// GENERAL_INTERNAL_ERROR. With a BodyRef the headers refer to the object store,
// and the body returned is what belongs there.
func EncodeFrame(f *Frame, ct ContentType) (Header, []byte, error) {
	var e Encoder
	return e.Frame(f, ct)
}

// sound checks that a frame other than data has what its kind needs.
func (f *Frame) sound() error {
	broken := func(text string) error {
		return module.Errorf(module.CodeInternal, "%s frame %s", f.Kind, text)
	}
	switch {
	case !f.Kind.Known():
		return module.Errorf(module.CodeInternal, "frame has no known kind")
	case f.Node == "" && f.Boot == "" && f.ofClient():
	case !validNode(f.Node) || !validBoot(f.Boot):
		return broken("has no valid node and boot")
	case f.CallID == "" && f.Kind.needsCall(), f.CallID != "" && !ValidCallID(f.CallID):
		return broken("has no valid call id")
	case f.Kind == FrameProgress && f.Progress == nil:
		return broken("has no report")
	case f.Kind == FrameError && f.Err == nil:
		return broken("has no error")
	case f.Kind == FrameAccept && !isSubject(f.CreditTo):
		return broken("has a malformed credit subject")
	}
	return nil
}

// ofClient reports whether the frame may come from a client, which is no node
// and has nothing to put in apbus-node: the answer to a probe is a result that
// belongs to no call.
func (f *Frame) ofClient() bool { return f.Kind == FrameResult && f.CallID == "" }

// needsCall reports whether frames of the kind exist only for calls. Results and
// errors also answer control messages, and errors a request whose call ID could
// not be read.
func (k FrameKind) needsCall() bool {
	return k == FrameAccept || k == FrameProgress || k == FrameTrace || k == FrameEnd
}

func validBoot(s string) bool { return len(s) <= 64 && isToken(s) }

// isSubject reports whether s can stand in a header and be published to; empty is
// allowed.
func isSubject(s string) bool {
	return len(s) <= 512 && isPrintable(s) && !strings.ContainsAny(s, " *>")
}

func progressMap(p *module.ProgressReport) map[string]any {
	m := map[string]any{"done": p.Done}
	if p.Total != 0 {
		m["total"] = p.Total
	}
	putText(m, "note", clip(p.Note))
	return m
}

// Lengths of header lines made from an error, in bytes.
const (
	maxCodeHeader    = 128
	maxMessageHeader = 512
)

// errorHeader says what went wrong to who does not read the body.
func errorHeader(h *headerWriter, f *Frame) {
	if f.RetryAfter > 0 {
		h.put(HeaderRetryAfter, formatMillis(f.RetryAfter))
	}
	h.put(HeaderError, headerLine(string(f.Err.Code), maxCodeHeader))
	if f.Err.Unexecuted && !f.Err.Remote { // a forwarded error says nothing about this call
		h.put(HeaderUnexecuted, "1")
	}
	serviceError(h, f.Err)
}

// serviceError sets the two headers by which NATS micro tools know an error.
func serviceError(h *headerWriter, e *module.Error) {
	line := headerLine(e.Message, maxMessageHeader)
	if line == "" {
		line = headerLine(string(e.Code), maxCodeHeader)
	}
	h.put(HeaderServiceError, line)
	h.put(HeaderServiceErrorCode, strconv.Itoa(e.Code.Info().Status))
}

// headerLine makes one line of printable ASCII from any text.
func headerLine(s string, limit int) string {
	var b strings.Builder
	for _, r := range s {
		switch {
		case b.Len() == limit:
			return strings.TrimSpace(b.String())
		case r < 0x20 || r == 0x7f:
			r = ' '
		case r > 0x7e:
			r = '?'
		}
		b.WriteByte(byte(r))
	}
	return strings.TrimSpace(b.String())
}

// encodeError writes e so that it arrives whatever it holds.
func encodeError(e *module.Error, ct ContentType) ([]byte, error) {
	m := e.Map()
	body, err := Encode(ct, m)
	if err == nil || (ct != JSON && ct != MsgPack) {
		return body, err
	}
	for k, v := range m {
		if s, ok := v.(string); ok {
			m[k] = strings.ToValidUTF8(s, "\uFFFD")
		}
	}
	details := map[string]any{}
	for k, v := range e.Details {
		if _, err := Append(nil, ct, map[string]any{k: []any{v}}); err == nil {
			details[k] = v
			continue
		}
		slog.Default().Warn("error detail has no form on the wire, left out", slog.String("code", string(e.Code)))
	}
	if m["details"] = details; len(details) == 0 {
		delete(m, "details")
	}
	if body, err = Encode(ct, m); err != nil {
		// Only the details together can still be over a limit.
		delete(m, "details")
		body, err = Encode(ct, m)
	}
	return body, err
}

// EncodeBareReply writes the answer to a bare request: the output as JSON without
// headers, or the coded error as JSON with the two headers of NATS micro services.
func EncodeBareReply(output map[string]any, failure *module.Error) (Header, []byte, error) {
	if failure == nil {
		body, err := Encode(JSON, output)
		return nil, body, err
	}
	var h headerWriter
	serviceError(&h, failure)
	body, err := encodeError(failure, JSON)
	return h.finish(), body, err
}
