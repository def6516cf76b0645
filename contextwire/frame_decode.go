package contextwire

import (
	"strconv"
	"strings"
	"time"

	"github.com/apbus/apbus/module"
)

// DecodeFrame reads a frame. A frame of an unknown kind comes back with that Kind
// and nothing else, to be ignored. When the body is in the object store, BodyRef
// is set and the rest is read by [Frame.DecodeBody]. Err is marked Remote and, by
// its header, Unexecuted. Missing or malformed headers and bodies are
// BUS_BAD_MESSAGE.
func DecodeFrame(h Header, body []byte, lim Limits) (*Frame, error) {
	f := &Frame{}
	if err := f.Decode(h, body, lim); err != nil {
		return nil, err
	}
	return f, nil
}

// Decode is [DecodeFrame] into f, which must be zero. After an error f is of no use.
func (f *Frame) Decode(h Header, body []byte, lim Limits) error {
	lim = lim.withDefaults()
	var fields headerFields // large, and gone when the headers are read
	in := &fields
	if err := in.read(h, lim); err != nil {
		return err
	}
	f.Kind = FrameKind(in.frame.value)
	switch {
	case f.Kind == "":
		return refuse("frame", "header apbus-frame is missing")
	case !f.Kind.Known():
		return nil
	}
	if err := f.readHeader(in); err != nil {
		return err
	}
	if f.Kind == FrameAccept {
		return nil
	}
	if in.bodyRef.present() {
		var ok bool
		if f.BodyRef, ok = ParseBodyRef(in.bodyRef.value); !ok {
			return malformed("body-ref", HeaderBodyRef)
		}
		if f.BodyRef.Size > int64(lim.MaxBody) {
			return TooLarge(f.BodyRef.Size, int64(lim.MaxBody))
		}
		return nil
	}
	return f.readBody(body, lim)
}

// DecodeBody reads the body of a frame that came with a BodyRef, after checking
// size and digest.
func (f *Frame) DecodeBody(body []byte, lim Limits) error {
	if err := lim.CheckSize(len(body)); err != nil {
		return err
	}
	if f.BodyRef != nil {
		if err := f.BodyRef.Check(body); err != nil {
			return err
		}
	}
	return f.readBody(body, lim)
}

func (f *Frame) readHeader(in *headerFields) error {
	if in.contentType.present() {
		var ok bool
		if f.ContentType, ok = ParseContentType(in.contentType.value); !ok {
			return unsupportedType()
		}
	}
	if f.Kind == FrameData || f.Kind == FrameEnd {
		n, err := strconv.ParseUint(in.seq.value, 10, 64)
		if err != nil {
			return malformed("seq", HeaderSeq)
		}
		f.Seq = n
	}
	if f.Kind == FrameData {
		return nil
	}
	if f.CallID = in.call.value; (f.CallID == "" && f.Kind.needsCall()) || (f.CallID != "" && !ValidCallID(f.CallID)) {
		return malformed("call", HeaderCall)
	}
	if in.node.present() || !f.ofClient() {
		var ok bool
		if f.Node, f.Boot, ok = strings.Cut(in.node.value, "."); !ok || !validNode(f.Node) || !validBoot(f.Boot) {
			return malformed("node", HeaderNode)
		}
	}
	switch f.Kind {
	case FrameAccept:
		if f.CreditTo = in.creditTo.value; !isSubject(f.CreditTo) {
			return malformed("credit-to", HeaderCreditTo)
		}
		f.Grace = millis(in.grace.value)
	case FrameError:
		// readBody fills in the rest.
		f.Err = &module.Error{
			Code:       module.Code(headerLine(in.err.value, maxCodeHeader)),
			Unexecuted: in.unexecuted.value == "1",
			Remote:     true,
		}
		f.RetryAfter = millis(in.retryAfter.value)
	}
	return nil
}

// sniff tells the codecs apart by the first byte of a map: JSON is ASCII there,
// msgpack is not.
func sniff(body []byte) ContentType {
	if len(body) > 0 && body[0] >= mpFixMap {
		return MsgPack
	}
	return JSON
}

// millis reads an optional number of milliseconds; what is malformed counts as
// absent, since these headers are advice.
func millis(s string) time.Duration {
	n, _ := parseDigits(s)
	return time.Duration(min(n, maxMillis)) * time.Millisecond
}

func (f *Frame) readBody(body []byte, lim Limits) error {
	if f.ContentType == "" {
		f.ContentType = sniff(body)
	}
	m, err := DecodeMap(f.ContentType, body, lim)
	if err != nil {
		return err
	}
	switch f.Kind {
	case FrameProgress:
		f.Progress, err = progressFromMap(m)
		return err
	case FrameError:
		return f.readError(m)
	}
	f.Body = m
	return nil
}

func (f *Frame) readError(m map[string]any) error {
	head := f.Err
	if code, _ := m["code"].(string); code == "" {
		m["code"] = string(head.Code)
	}
	e, ok := module.ErrorFromMap(m)
	if !ok {
		return bad("error frame has no code")
	}
	e.Unexecuted = head.Unexecuted
	f.Err = e
	return nil
}

func progressFromMap(m map[string]any) (*module.ProgressReport, error) {
	r := &record{what: "progress", m: m}
	p := &module.ProgressReport{Done: r.number("done"), Total: r.number("total"), Note: r.text("note")}
	if m["done"] == nil {
		r.fail("done", "is missing")
	}
	return done(r, p)
}

// number reads an optional number of any kind.
func (r *record) number(key string) float64 {
	switch v := r.m[key].(type) {
	case nil:
	case float64:
		return v
	case int64:
		return float64(v)
	case uint64:
		return float64(v)
	default:
		r.fail(key, "is not a number")
	}
	return 0
}

// DecodeBareReply reads the answer to a bare request. The error is the peer's, a
// *module.Error marked Remote, or says why the answer cannot be read.
func DecodeBareReply(h Header, body []byte, lim Limits) (map[string]any, error) {
	lim = lim.withDefaults()
	if err := h.checkSize(lim); err != nil {
		return nil, err
	}
	m, err := DecodeMap(JSON, body, lim)
	if err != nil {
		return nil, err
	}
	if !h.Has(HeaderServiceError) && !h.Has(HeaderServiceErrorCode) {
		return m, nil
	}
	e, ok := module.ErrorFromMap(m)
	if !ok {
		return nil, refuse("shape", "error reply has no code")
	}
	return nil, e
}
