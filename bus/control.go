package bus

import (
	"context"
	"fmt"

	"github.com/nats-io/nats.go"

	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/module"
)

// Control verbs, the last token of a directed control subject.
const (
	verbPing     = "ping"
	verbCancel   = "cancel"
	verbDrain    = "drain"
	verbDescribe = "describe"
	verbCalls    = "calls"
	verbStats    = "stats"
)

// controlMsg encodes a control message as JSON.
func controlMsg(subject, reply string, body contextwire.ControlMessage) (*nats.Msg, error) {
	raw, err := contextwire.EncodeControl(body, contextwire.JSON)
	if err != nil {
		return nil, fmt.Errorf("encode control message: %w", err)
	}
	return &nats.Msg{
		Subject: subject, Reply: reply, Data: raw,
		Header: nats.Header{contextwire.HeaderContentType: {string(contextwire.JSON)}},
	}, nil
}

// ask sends a control message to one process and returns the body of its
// answer. An error frame becomes its error; nobody there matches ErrNoResponders.
func ask(ctx context.Context, conn Conn, subject string, body contextwire.ControlMessage) (map[string]any, error) {
	m, err := controlMsg(subject, "", body)
	if err != nil {
		return nil, err
	}
	reply, err := conn.Request(ctx, m)
	if err != nil {
		return nil, err
	}
	return answerBody(reply)
}

func answerBody(m *nats.Msg) (map[string]any, error) {
	f, err := contextwire.DecodeFrame(contextwire.Header(m.Header), m.Data, contextwire.DefaultLimits())
	if err != nil {
		return nil, err
	}
	switch f.Kind {
	case contextwire.FrameResult:
		return f.Body, nil
	case contextwire.FrameError:
		return nil, f.Err
	}
	return nil, module.Errorf(module.CodeBusBadMessage, "a control message was answered with a %s frame", f.Kind)
}

// controlType reads the content type of a control message: JSON unless it says
// something else.
func controlType(m *nats.Msg) (contextwire.ContentType, error) {
	said := contextwire.Header(m.Header).Get(contextwire.HeaderContentType)
	if said == "" {
		return contextwire.JSON, nil
	}
	ct, ok := contextwire.ParseContentType(said)
	if !ok {
		return contextwire.JSON, module.Errorf(module.CodeBusUnsupportedType, "content type is not supported")
	}
	return ct, nil
}
