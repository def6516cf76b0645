package jetstream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	natsjs "github.com/nats-io/nats.go/jetstream"
)

// Headers that a stream acts on, and our own.
const (
	headerExpectSeq   = "Nats-Expected-Last-Sequence"
	headerExpectLast  = "Nats-Expected-Last-Subject-Sequence"
	headerExpectOn    = "Nats-Expected-Last-Subject-Sequence-Subject"
	headerExpectedIn  = "Nats-Expected-Stream"
	headerTTL         = "Nats-TTL"
	headerBatchID     = "Nats-Batch-Id"
	headerBatchSeq    = "Nats-Batch-Sequence"
	headerBatchCommit = "Nats-Batch-Commit"
	// headerCommit names the commit that a message belongs to, so that an answer
	// that was lost can be looked up.
	headerCommit = "Apbus-Commit"
	// headerGone marks a message as the end of a key.
	headerGone = "Apbus-Gone"
)

// Codes of the server.
const (
	errWrongLast         = 10071 // the expected sequence is not the last
	errWrongLastConstant = 10164 // the same, while another write is on its way
	errNoMessage         = 10037
	errIncompleteBatch   = 10176 // a batch was not stored; not why
	errFull              = 10077 // the stream
	errFullServer        = 10023
	errFullAccount       = 10002
	errFullStorage       = 10047
)

// apiError is an error that the server answered.
type apiError struct {
	Code        int    `json:"code"`
	ErrCode     int    `json:"err_code"`
	Description string `json:"description"`
}

func (e *apiError) Error() string { return fmt.Sprintf("%s (%d)", e.Description, e.ErrCode) }

// conflict reports whether a write was refused because another one came first.
func conflict(err error) bool {
	api, ok := errors.AsType[*apiError](err)
	return ok && (api.ErrCode == errWrongLast || api.ErrCode == errWrongLastConstant)
}

// refused reports whether the server said no for good: it stored nothing of what
// it was asked, and would not a moment later. What it says while it elects a
// leader or has too much to do is not that.
func refused(err error) bool {
	api, ok := errors.AsType[*apiError](err)
	if !ok || conflict(err) {
		return false
	}
	switch api.ErrCode {
	case errFull, errFullServer, errFullAccount, errFullStorage:
		return true
	case errIncompleteBatch:
		return false
	}
	return api.Code != 503 && api.Code != 429
}

// conn publishes to one stream and reads from it, on a connection that belongs to
// somebody else.
type conn struct {
	nc     *nats.Conn
	api    string // prefix of the JetStream API, with a dot at the end
	stream string
}

func newConn(js natsjs.JetStream, stream string) *conn {
	o := js.Options()
	api := "$JS.API."
	if o.Domain != "" {
		api = "$JS." + o.Domain + ".API."
	}
	if o.APIPrefix != "" {
		api = strings.TrimSuffix(o.APIPrefix, ".") + "."
	}
	return &conn{js.Conn(), api, stream}
}

// ack is what the server answers to what it stored.
type ack struct {
	Stream string    `json:"stream"`
	Seq    uint64    `json:"seq"`
	Error  *apiError `json:"error"`
}

// publish sends a message and waits for its acknowledgement.
func (c *conn) publish(ctx context.Context, m *nats.Msg) (seq uint64, err error) {
	answer, err := c.nc.RequestMsgWithContext(ctx, m)
	if err != nil {
		return 0, fmt.Errorf("publish %s: %w", m.Subject, withCause(ctx, err))
	}
	return readAck(m.Subject, answer.Data, c.stream)
}

func readAck(subject string, data []byte, stream string) (uint64, error) {
	var a ack
	if err := json.Unmarshal(data, &a); err != nil {
		return 0, fmt.Errorf("acknowledgement of %s: %w", subject, err)
	}
	if a.Error != nil {
		return 0, fmt.Errorf("publish %s: %w", subject, a.Error)
	}
	if a.Stream != stream || a.Seq == 0 {
		return 0, fmt.Errorf("publish %s: acknowledged by stream %q, want %q", subject, a.Stream, stream)
	}
	return a.Seq, nil
}

// withCause replaces the bare error of a context by its cause.
func withCause(ctx context.Context, err error) error {
	if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		return context.Cause(ctx)
	}
	return err
}

// stored is a message of the stream.
type stored struct {
	subject string
	seq     uint64
	header  nats.Header
	data    []byte
}

// last returns the last message of a subject as the stream's leader has it, so
// that it is never older than a write that was acknowledged before.
func (c *conn) last(ctx context.Context, subject string) (*stored, bool, error) {
	request, err := json.Marshal(map[string]string{"last_by_subj": subject})
	if err != nil {
		return nil, false, fmt.Errorf("ask for %s: %w", subject, err)
	}
	answer, err := c.nc.RequestWithContext(ctx, c.api+"STREAM.MSG.GET."+c.stream, request)
	if err != nil {
		return nil, false, fmt.Errorf("read %s: %w", subject, withCause(ctx, err))
	}
	var body struct {
		Error   *apiError `json:"error"`
		Message *struct {
			Subject string `json:"subject"`
			Seq     uint64 `json:"seq"`
			Header  []byte `json:"hdrs"`
			Data    []byte `json:"data"`
		} `json:"message"`
	}
	if err := json.Unmarshal(answer.Data, &body); err != nil {
		return nil, false, fmt.Errorf("read %s: %w", subject, err)
	}
	switch {
	case body.Error != nil && body.Error.ErrCode == errNoMessage:
		return nil, false, nil
	case body.Error != nil:
		return nil, false, fmt.Errorf("read %s: %w", subject, body.Error)
	case body.Message == nil:
		return nil, false, fmt.Errorf("read %s: neither message nor error", subject)
	}
	m := &stored{subject: body.Message.Subject, seq: body.Message.Seq, data: body.Message.Data}
	if len(body.Message.Header) > 0 {
		if m.header, err = nats.DecodeHeadersMsg(body.Message.Header); err != nil {
			return nil, false, fmt.Errorf("headers of %s: %w", subject, err)
		}
	}
	return m, true, nil
}

// direct is last, answered by whichever replica is near; with one replica that is
// the same and costs less.
func (c *conn) direct(ctx context.Context, subject string) (*stored, bool, error) {
	answer, err := c.nc.RequestWithContext(ctx, c.api+"DIRECT.GET."+c.stream+"."+subject, nil)
	if err != nil {
		return nil, false, fmt.Errorf("read %s: %w", subject, withCause(ctx, err))
	}
	if status := answer.Header.Get("Status"); status != "" {
		if status == "404" {
			return nil, false, nil
		}
		return nil, false, fmt.Errorf("read %s: %s %s", subject, status, answer.Header.Get("Description"))
	}
	m, err := fromDirect(answer)
	if err != nil {
		return nil, false, fmt.Errorf("read %s: %w", subject, err)
	}
	return m, true, nil
}

// fromDirect reads what a direct get answers.
func fromDirect(m *nats.Msg) (*stored, error) {
	seq, err := strconv.ParseUint(m.Header.Get("Nats-Sequence"), 10, 64)
	if err != nil {
		return nil, fmt.Errorf("sequence of a message: %w", err)
	}
	return &stored{subject: m.Header.Get("Nats-Subject"), seq: seq, header: m.Header, data: m.Data}, nil
}

// ttl writes a time to live, which the server counts in whole seconds of one and
// more. A longer life harms nobody, a shorter one does.
func ttl(d time.Duration) string {
	return strconv.FormatInt(int64(max((d+time.Second-1)/time.Second, 1)), 10) + "s"
}
