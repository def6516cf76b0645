package bus

import (
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go/jetstream"
)

const noJetStream = "there is no JetStream"

// jetStream finds out whether there is JetStream.
func (d *doctor) jetStream(ctx context.Context, c *HealthCheck) error {
	js, err := jetstream.New(d.nc)
	if err != nil {
		return err
	}
	asked, stop := d.within(ctx)
	defer stop()
	switch _, err := js.AccountInfo(asked); {
	case errors.Is(err, jetstream.ErrJetStreamNotEnabled), errors.Is(err, jetstream.ErrJetStreamNotEnabledForAccount):
		c.add(SeverityError, "JetStream", "it is switched off, so there is no catalogue of nodes, no large body, no durable task and no approval that is kept",
			"add a jetstream block with a store_dir to the server's configuration, or enable it for the account")
	case err != nil:
		c.add(SeverityError, "JetStream", fmt.Sprintf("it does not answer: %v", err),
			"see whether the server still starts, has a quorum, and lets these credentials publish to $JS.API.>")
	default:
		d.js = js
	}
	return nil
}

// streams finds streams that capture what is answered by processes.
func (d *doctor) streams(ctx context.Context, c *HealthCheck) error {
	if d.js == nil {
		return errors.New(noJetStream)
	}
	ctx, stop := d.within(ctx)
	defer stop()
	streams := d.js.ListStreams(ctx)
	for info := range streams.Info() {
		for _, o := range d.subjects.overlaps(info.Config) {
			c.add(SeverityError, "stream "+info.Config.Name,
				fmt.Sprintf("it captures %s, which overlaps %s: its acknowledgement arrives as the answer of a call", o.captured, o.ours),
				fmt.Sprintf("narrow its subjects: nats stream edit %s --subjects …, or remove it", info.Config.Name))
		}
	}
	return streams.Err()
}

// overlap is a pattern of a stream that captures what it must not.
type overlap struct{ captured, ours string }

// overlaps lists what a stream captures of the subjects that no stream may.
func (s subjects) overlaps(cfg jetstream.StreamConfig) []overlap {
	var list []overlap
	for _, captured := range cfg.Subjects {
		for _, ours := range s.reserved() {
			if subjectsOverlap(captured, ours) {
				list = append(list, overlap{captured, ours})
			}
		}
	}
	return list
}
