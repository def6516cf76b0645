package jetstream

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/module"
	"github.com/apbus/apbus/task"
)

// The verbs of the writer: the last token of the subject to ask on. Bodies are the
// JSON of task's requests and answers, and of the small types below where a method
// takes several arguments.
const (
	verbSubmit     = "submit"
	verbGet        = "get"
	verbList       = "list"
	verbResult     = "result"
	verbEvents     = "events"
	verbCancel     = "cancel"
	verbRetry      = "retry"
	verbRequeue    = "requeue"
	verbBulk       = "bulk"
	verbInputs     = "inputs"
	verbDelete     = "delete"
	verbQueues     = "queues"
	verbQueueSet   = "queue-set"
	verbQueueLimit = "queue-limit"
	verbPause      = "pause"
	verbResume     = "resume"
	verbSchedPut   = "schedule-put"
	verbSchedGet   = "schedule-get"
	verbSchedList  = "schedule-list"
	verbSchedDel   = "schedule-delete"
	verbWake       = "wake"
	verbClaim      = "claim"
	verbStart      = "start"
	verbRenew      = "renew"
	verbProgress   = "progress"
	verbCheckpoint = "checkpoint"
	verbFinish     = "finish"
	verbFinishAll  = "finish-all"
	verbRelease    = "release"
	// verbAbort ends a request that waits; it has no answer.
	verbAbort = "abort"
)

type (
	taskAsk struct {
		TaskID string `json:"task_id"`
		By     string `json:"by,omitempty"`
	}
	queueAsk struct {
		ModuleID string              `json:"module_id"`
		By       string              `json:"by,omitempty"`
		Reason   string              `json:"reason,omitempty"`
		Settings *task.QueueSettings `json:"settings,omitempty"`
	}
	limitAsk struct {
		ModuleID string           `json:"module_id"`
		Limits   task.QueueLimits `json:"limits"`
	}
	queueList struct {
		Queues []task.QueueState `json:"queues"`
	}
	schedulePut struct {
		Schedule task.ScheduleSpec `json:"schedule"`
		By       string            `json:"by,omitempty"`
		Replace  bool              `json:"replace,omitempty"`
	}
	scheduleAsk struct {
		Name string `json:"name"`
	}
	scheduleList struct {
		Schedules []task.Schedule `json:"schedules"`
	}
	inputsAnswer struct {
		Inputs json.RawMessage `json:"inputs"`
	}
	nothing struct{}
)

// queueGroup makes sure that one process answers, even while two believe that they
// lead.
const queueGroup = "apbus"

// protocolVersion is the value of apbus-version.
var protocolVersion = strconv.Itoa(contextwire.ProtocolVersion)

// messenger sends and reads the bodies of requests and answers, those that no
// message can hold through the object store.
type messenger struct {
	nc    *nats.Conn
	blobs *blobs // nil: everything must fit a message
}

// fits is the largest body that travels in a message.
func (m messenger) fits() int64 { return m.nc.MaxPayload() * 3 / 4 }

// pack makes the message of a body. The returned func removes what it had to put
// aside; it is never nil.
func (m messenger) pack(ctx context.Context, subject string, h nats.Header, body []byte) (*nats.Msg, func(context.Context), error) {
	keep := func(context.Context) {}
	msg := &nats.Msg{Subject: subject, Header: h, Data: body}
	if int64(len(body)) <= m.fits() {
		return msg, keep, nil
	}
	if m.blobs == nil {
		return nil, keep, contextwire.TooLarge(int64(len(body)), m.fits())
	}
	ref, err := m.blobs.put(ctx, m.blobs.bodies, rand.Text(), body)
	if err != nil {
		return nil, keep, err
	}
	h[contextwire.HeaderBodyRef] = []string{ref.String()}
	msg.Data = nil
	return msg, func(ctx context.Context) { m.blobs.remove(ctx, m.blobs.bodies, ref.Name) }, nil
}

// unpack returns the body of a message. The reader of an answer is its last and
// removes what was put aside for it.
func (m messenger) unpack(ctx context.Context, h contextwire.Header, data []byte, last bool) ([]byte, error) {
	text := h.Get(contextwire.HeaderBodyRef)
	if text == "" {
		return data, nil
	}
	ref, ok := contextwire.ParseBodyRef(text)
	if !ok {
		return nil, module.Errorf(module.CodeBusBadMessage, "body reference of a task message")
	}
	if m.blobs == nil {
		return nil, module.Errorf(module.CodeNotImplemented, "bodies in the object store are not read here")
	}
	body, err := m.blobs.get(ctx, m.blobs.bodies, *ref)
	if err != nil {
		return nil, err
	}
	if last {
		m.blobs.remove(ctx, m.blobs.bodies, ref.Name)
	}
	return body, nil
}

// appender is a type that writes itself; package task has those that every task
// needs.
type appender interface {
	AppendJSON(b []byte) ([]byte, error)
}

// selfReader is a type that can read itself from the form that it writes, and says false
// to others.
type selfReader interface{ ReadJSON(b []byte) bool }

// encode writes a request or an answer.
func encode(v any) ([]byte, error) { return encodeIn(nil, v) }

// encodeIn is encode into the room of an empty buffer, where that is possible.
func encodeIn(body []byte, v any) ([]byte, error) {
	var err error
	if a, ok := v.(appender); ok {
		body, err = a.AppendJSON(body)
	} else {
		body, err = json.Marshal(v)
	}
	if err != nil {
		if module.AsError(err) != nil {
			return nil, err
		}
		return nil, module.Errorf(module.CodeInvalidInput, "this has no form in JSON: %w", err)
	}
	return body, nil
}

// decode reads one.
func decode[T any](body []byte) (T, error) {
	var v T
	if len(body) == 0 {
		return v, nil
	}
	if r, ok := any(&v).(selfReader); ok {
		if r.ReadJSON(body) {
			return v, nil
		}
		var fresh T
		v = fresh
	}
	if err := json.Unmarshal(body, &v); err != nil {
		return v, module.Errorf(module.CodeBusBadMessage, "body of a task message: %w", err)
	}
	return v, nil
}

// failure encodes an error as an error frame. A cause that has no code is not for
// others.
func failure(err error) (nats.Header, []byte) {
	e := module.AsError(err)
	switch {
	case e != nil:
	case errors.Is(err, task.ErrDeposed):
		e = module.Wrap(module.CodeTaskStoreUnavailable, err, "this process no longer leads the tasks")
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded),
		errors.Is(err, errStopped), errors.Is(err, errNoTime), errors.Is(err, errAborted):
		e = module.Wrap(module.CodeTaskStoreUnavailable, err, "the request was not answered in time")
	default:
		e = module.Wrap(module.CodeInternal, err, "the request failed")
	}
	h := nats.Header{
		contextwire.HeaderFrame:       {string(contextwire.FrameError)},
		contextwire.HeaderError:       {string(e.Code)},
		contextwire.HeaderContentType: {string(contextwire.JSON)},
	}
	if e.Unexecuted && !e.Remote {
		h[contextwire.HeaderUnexecuted] = []string{"1"}
	}
	body, encErr := (&task.Failure{Error: e}).MarshalJSON()
	if encErr != nil {
		body = nil // the reader takes the code from the headers
	}
	return h, body
}

// answered reads the answer to a request: its body, or its error.
func (m messenger) answered(ctx context.Context, msg *nats.Msg) ([]byte, error) {
	h := contextwire.Header(msg.Header)
	switch kind := contextwire.FrameKind(h.Get(contextwire.HeaderFrame)); kind {
	case contextwire.FrameResult:
		return m.unpack(ctx, h, msg.Data, true)
	case contextwire.FrameError:
		return nil, remoteError(h, msg.Data)
	default:
		return nil, module.Errorf(module.CodeBusBadMessage, "answer of the task writer: frame %.32q", kind)
	}
}

// remoteError reads an error that the writer answered.
func remoteError(h contextwire.Header, body []byte) error {
	var f task.Failure
	if err := f.UnmarshalJSON(body); err != nil || f.Error == nil {
		code := module.Code(h.Get(contextwire.HeaderError))
		if code == "" {
			return module.Errorf(module.CodeBusBadMessage, "error of the task writer without a code")
		}
		f.Error = module.Errorf(code, "the task writer gives no reason")
	}
	f.Remote = true
	f.Unexecuted = h.Get(contextwire.HeaderUnexecuted) == "1"
	return f.Error
}

// budget returns what a request says about its time, 0 when it says nothing.
func budget(h contextwire.Header) time.Duration {
	n, err := strconv.ParseInt(h.Get(contextwire.HeaderBudget), 10, 64)
	if err != nil || n <= 0 {
		return 0
	}
	const most = time.Hour
	if n > most.Milliseconds() {
		return most
	}
	return time.Duration(n) * time.Millisecond
}
