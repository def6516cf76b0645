package contextwire

import (
	"strconv"

	"github.com/apbus/apbus/module"
)

// Encoder makes requests and frames as [EncodeRequest] and [EncodeFrame] do, each in
// the room of the one before: what it returned is overwritten by its next call, and
// must not be modified. The zero value is ready. It is not safe for concurrent use.
type Encoder struct {
	headers headerWriter
	body    writer

	node, boot string
	origin     string // node and boot as a header has them
}

// usualBody is the room for a body to begin with.
const usualBody = 256

// keptBody is the largest body whose room is kept for the next message.
const keptBody = 256 << 10

// Request is [EncodeRequest] in the encoder's room.
func (e *Encoder) Request(r *Request, ct ContentType) (Header, []byte, error) {
	c := r.Context
	if c == nil {
		c = module.NewContext(module.ContextOptions{TraceParent: r.TraceParent})
	}
	e.headers.begin()
	w := e.begin(ct)
	if r.Bare {
		w.begin(w.buf, JSON, false)
		w.value(r.Inputs, 0)
		setTrace(&e.headers, c, r.TraceParent)
		return e.finish()
	}
	if err := requestHeader(&e.headers, r, ct); err != nil {
		return nil, nil, err
	}
	setTrace(&e.headers, c, r.TraceParent)
	w.beginMap(2)
	w.field(true, "context")
	w.context(c, 1)
	w.field(false, "inputs")
	w.value(r.Inputs, 1)
	w.endMap()
	return e.finish()
}

// Frame is [EncodeFrame] in the encoder's room.
func (e *Encoder) Frame(f *Frame, ct ContentType) (Header, []byte, error) {
	h := &e.headers
	h.begin()
	w := e.begin(ct)
	if f.Kind == FrameData {
		h.put(HeaderFrame, string(FrameData))
		h.put(HeaderSeq, strconv.FormatUint(f.Seq, 10))
		w.value(f.Body, 0)
		if f.BodyRef != nil {
			h.put(HeaderBodyRef, f.BodyRef.String())
		}
		return e.finish()
	}
	if err := f.sound(); err != nil {
		return nil, nil, err
	}
	h.put(HeaderFrame, string(f.Kind))
	h.put(HeaderCall, f.CallID)
	if f.Node != "" {
		h.put(HeaderNode, e.originOf(f.Node, f.Boot))
	}
	switch f.Kind {
	case FrameAccept:
		h.put(HeaderCreditTo, f.CreditTo)
		if f.Grace > 0 {
			h.put(HeaderGrace, formatMillis(f.Grace))
		}
		return h.finish(), nil, nil
	case FrameProgress:
		w.value(progressMap(f.Progress), 0)
	case FrameEnd:
		h.put(HeaderSeq, strconv.FormatUint(f.Seq, 10))
		w.value(f.Body, 0)
	case FrameResult, FrameTrace:
		w.value(f.Body, 0)
	case FrameError:
		errorHeader(h, f)
		w.buf, w.err = encodeError(f.Err, ct)
	}
	h.put(HeaderContentType, string(ct))
	if f.BodyRef != nil {
		h.put(HeaderBodyRef, f.BodyRef.String())
	}
	return e.finish()
}

// begin makes the body's room ready.
func (e *Encoder) begin(ct ContentType) *writer {
	buf := e.body.buf
	if buf == nil || cap(buf) > keptBody {
		buf = make([]byte, 0, usualBody)
	}
	e.body.begin(buf[:0], ct, false)
	return &e.body
}

func (e *Encoder) finish() (Header, []byte, error) {
	if e.body.err != nil {
		return nil, nil, e.body.err
	}
	return e.headers.finish(), e.body.buf, nil
}

// originOf is the value of [HeaderNode], which hardly ever changes.
func (e *Encoder) originOf(node, boot string) string {
	if e.node != node || e.boot != boot {
		e.node, e.boot, e.origin = node, boot, node+"."+boot
	}
	return e.origin
}
