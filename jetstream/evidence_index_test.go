package jetstream_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/apbus/apbus/internal/natstest"
	durable "github.com/apbus/apbus/jetstream"
	"github.com/apbus/apbus/loop"
)

// What was read in the order of the stream is found by its hash without reading the
// stream again, and so is what comes later; what another process reads first is not
// missed.
func TestEvidenceThatWasReadIsFoundByHash(t *testing.T) {
	withEvidence(t, durable.EvidenceOptions{}, func(t *testing.T, srv *natstest.Server, _ jetstream.JetStream, s *durable.EvidenceStore) {
		const n = 5000
		asked := 0
		wire := srv.Connect()
		defer wire.Close()
		if _, err := wire.Subscribe("$JS.API.DIRECT.GET.>", func(*nats.Msg) { asked++ }); err != nil {
			t.Fatal(err)
		}
		publish := func(from, n int) {
			t.Helper()
			p := s.Publisher(durable.PublisherOptions{Node: "n1", Buffer: n})
			for i := range n {
				p.Record(piece("a.one", from+i))
			}
			closePublisher(t, p)
		}
		find := func(r *loop.Record, most int) {
			t.Helper()
			synctest.Wait()
			before := asked
			found, err := s.ByHash(t.Context(), []string{r.Hash})
			if err != nil || found[r.Hash] == nil || found[r.Hash].Seq != r.Seq {
				t.Errorf("record %d: %v, %v", r.Seq, found, err)
			}
			if synctest.Wait(); asked-before > most {
				t.Errorf("record %d took %d requests, want at most %d", r.Seq, asked-before, most)
			}
		}
		publish(0, n)
		all := readAll(t, s, loop.Query{Since: time.Now().Add(-time.Hour)})
		find(all[17], 3) // one that there is nothing new, one for the record, and none ahead
		find(all[n-1], 3)
		publish(n, 10)
		readAll(t, s, loop.Query{AfterSeq: n + 4}) // has a gap before it
		more := readAll(t, s, loop.Query{AfterSeq: n})
		find(more[2], 3)
		for _, err := range s.Records(t.Context(), loop.Query{}) { // one that is not read to its end
			if err != nil {
				t.Fatal(err)
			}
			break
		}
		find(more[9], 3)
	})
}
