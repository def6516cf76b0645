package integration_test

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/module"
)

// chunkBytes is the text in each chunk of the benchmark.
const chunkBytes = 1 << 10

type chunksIn struct {
	N int `json:"n"`
}

type chunkOut struct {
	Text string `json:"text"`
}

// chunksModule streams n chunks of a kilobyte.
func chunksModule() module.Module {
	text := strings.Repeat("x", chunkBytes)
	return module.NewStream[chunksIn, chunkOut]("bench.chunks", "Stream chunks of a kilobyte",
		func(_ context.Context, in chunksIn, send func(any) error) error {
			for range in.N {
				if err := send(chunkOut{Text: text}); err != nil {
					return err
				}
			}
			return nil
		})
}

// plainStream publishes the bytes and headers of data frames, and holds them back
// by the same grants, without anything else.
type plainStream struct {
	sender, reader *nats.Conn
	window         contextwire.Credit
	body           []byte
}

func newPlainStream(b *testing.B, url string) *plainStream {
	b.Helper()
	p := &plainStream{window: contextwire.DefaultCredit()}
	for _, nc := range []**nats.Conn{&p.sender, &p.reader} {
		var err error
		if *nc, err = nats.Connect(url); err != nil {
			b.Fatal(err)
		}
		b.Cleanup((*nc).Close)
	}
	var err error
	if p.body, err = contextwire.Encode(contextwire.MsgPack, map[string]any{"text": strings.Repeat("x", chunkBytes)}); err != nil {
		b.Fatal(err)
	}
	return p
}

func (p *plainStream) run(b *testing.B, n int) {
	data, grants := p.reader.NewInbox(), p.sender.NewInbox()
	limit := make(chan contextwire.Credit, 1024)
	credit, err := p.sender.Subscribe(grants, func(m *nats.Msg) {
		if c, err := contextwire.DecodeCredit(contextwire.Header(m.Header)); err == nil {
			limit <- c
		}
	})
	if err != nil {
		b.Fatal(err)
	}
	done := make(chan struct{})
	taken, told := contextwire.Credit{}, contextwire.Credit{}
	sub, err := p.reader.Subscribe(data, func(m *nats.Msg) {
		taken.Frames++
		taken.Bytes += int64(len(m.Data))
		if 2*(taken.Frames-told.Frames) >= p.window.Frames || 2*(taken.Bytes-told.Bytes) >= p.window.Bytes {
			told = taken
			total := contextwire.Credit{Frames: taken.Frames + p.window.Frames, Bytes: taken.Bytes + p.window.Bytes}
			_ = p.reader.PublishMsg(&nats.Msg{Subject: m.Reply, Header: nats.Header(contextwire.EncodeCredit(total))})
		}
		if taken.Frames == int64(n) {
			close(done)
		}
	})
	if err != nil {
		b.Fatal(err)
	}
	if err := errors.Join(p.reader.Flush(), p.sender.Flush()); err != nil {
		b.Fatal(err)
	}
	sent, allowed := contextwire.Credit{}, p.window
	for i := range n {
		for sent.Frames >= allowed.Frames || sent.Bytes+int64(len(p.body)) > allowed.Bytes {
			allowed = <-limit
		}
		sent.Frames++
		sent.Bytes += int64(len(p.body))
		h := nats.Header{contextwire.HeaderFrame: {"data"}, contextwire.HeaderSeq: {strconv.Itoa(i)}}
		if err := p.sender.PublishMsg(&nats.Msg{Subject: data, Reply: grants, Header: h, Data: p.body}); err != nil {
			b.Fatal(err)
		}
	}
	<-done
	_, _ = sub.Unsubscribe(), credit.Unsubscribe()
}

// BenchmarkStream alternates a stream of chunks of 1 KB through the pipeline with
// plain publishes of the same bytes, headers and flow control. "ratio" is the
// stream's share of the plain rate, "cpu-share" the same by processor time, which
// depends little on what else the machine does.
func BenchmarkStream(b *testing.B) {
	client, url := benchNode(b, chunksModule())
	plain := newPlainStream(b, url)
	const n, rounds = 20_000, 4
	stream := func() {
		count := 0
		for _, err := range client.Stream(b.Context(), "bench.chunks", map[string]any{"n": n}) {
			if err != nil {
				b.Fatal(err)
			}
			count++
		}
		if count != n {
			b.Fatalf("%d chunks, want %d", count, n)
		}
	}
	stream()
	plain.run(b, n)
	var streamed, published, streamCPU, plainCPU time.Duration
	total := 0
	for b.Loop() {
		for range rounds {
			start, used := time.Now(), processorTime()
			stream()
			streamed, streamCPU = streamed+time.Since(start), streamCPU+processorTime()-used
			start, used = time.Now(), processorTime()
			plain.run(b, n)
			published, plainCPU = published+time.Since(start), plainCPU+processorTime()-used
			total += n
		}
	}
	b.ReportMetric(float64(total)/streamed.Seconds(), "chunks/s")
	b.ReportMetric(float64(total)/published.Seconds(), "plain/s")
	b.ReportMetric(published.Seconds()/streamed.Seconds(), "ratio")
	b.ReportMetric(float64(streamCPU.Microseconds())/float64(total), "cpu-µs/chunk")
	b.ReportMetric(float64(plainCPU.Microseconds())/float64(total), "plain-cpu-µs")
	b.ReportMetric(plainCPU.Seconds()/streamCPU.Seconds(), "cpu-share")
}
