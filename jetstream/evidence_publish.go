package jetstream

import (
	"github.com/nats-io/nats.go"

	"github.com/apbus/apbus/contextwire"
)

// EvidencePublisher writes records in the background. [EvidencePublisher.Record]
// never blocks. It is safe for concurrent use; close it before the connection.
type EvidencePublisher struct {
	*publisher[*contextwire.Evidence]
}

// Publisher starts a publisher.
func (s *EvidenceStore) Publisher(o PublisherOptions) *EvidencePublisher {
	if o.Buffer <= 0 {
		o.Buffer = 8192
	}
	return &EvidencePublisher{publish(s.raw, s.log, "evidence", o, func(by origin, e *contextwire.Evidence) (*nats.Msg, error) {
		e.NS, e.Node, e.Boot, e.N = s.o.Namespace, by.node, by.boot, by.n
		body, err := contextwire.EncodeEvidence(e)
		if err != nil {
			return nil, err
		}
		return &nats.Msg{Subject: s.subject(e), Data: body, Header: nats.Header{headerMsgID: {contextwire.EvidenceHash(body)}}}, nil
	})}
}
