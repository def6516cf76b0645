package bus_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/apbus/apbus/bus"
	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/module"
)

// letters is a text of n bytes.
func letters(n int) string { return strings.Repeat("0123456789abcdef", n/16+1)[:n] }

// give answers with a text of as many bytes as the input "n" says, and with how
// many bytes the input "text" had.
func give(_ context.Context, req *contextwire.Request) (map[string]any, error) {
	n, _ := req.Inputs["n"].(int64)
	text, _ := req.Inputs["text"].(string)
	return map[string]any{"text": letters(int(n)), "got": text == letters(len(text)), "bytes": int64(len(text))}, nil
}

// jetStream is a connection of nobody in particular to the server's JetStream.
func (m *mesh) jetStream() jetstream.JetStream {
	m.t.Helper()
	js, err := jetstream.New(m.connect())
	if err != nil {
		m.t.Fatal(err)
	}
	return js
}

// stored counts the messages and bytes in the object store of bodies. There may
// be none: then ok is false.
func (m *mesh) stored(js jetstream.JetStream) (state jetstream.StreamState, ok bool) {
	m.t.Helper()
	stream, err := js.Stream(m.t.Context(), "OBJ_APBUS_BLOBS")
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return state, false
	}
	if err != nil {
		m.t.Fatal(err)
	}
	return stream.CachedInfo().State, true
}

// wantNothingStored lets the deletions arrive, which nobody waits for, and then
// wants the object store to hold nothing, not even a trace of what was there.
func (m *mesh) wantNothingStored(js jetstream.JetStream, after time.Duration) {
	m.t.Helper()
	pass(after)
	if state, _ := m.stored(js); state.Msgs != 0 {
		m.t.Errorf("after %v there are still %d messages with %d bytes", after, state.Msgs, state.Bytes)
	}
}

const soon = 100 * time.Millisecond

func TestLargeBodiesGoThroughTheObjectStore(t *testing.T) {
	for _, tt := range []struct {
		name    string
		in, out int
		stored  bool
	}{
		{"small", 10, 10, false},
		{"just within three quarters of a message", 780_000, 780_000, false},
		{"a large request", 800_000, 0, true},
		{"a large answer", 0, 800_000, true},
		{"both, of several messages", 5<<20 + 1, 3<<20 - 1, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			onMesh(t, func(m *mesh) {
				m.node("n1", newStubHost().add("mod.x", module.Annotations{}, give))
				c, js := m.client(), m.jetStream()
				m.wait(c, "mod.x")
				out, err := c.Call(m.t.Context(), "mod.x", map[string]any{"n": tt.out, "text": letters(tt.in)})
				if err != nil {
					m.t.Fatal(err)
				}
				if out["text"] != letters(tt.out) || out["got"] != true || out["bytes"] != int64(tt.in) {
					m.t.Errorf("%d bytes came back, %v of %v arrived (%v)", len(fmt.Sprint(out["text"])), out["bytes"], tt.in, out["got"])
				}
				if _, used := m.stored(js); used != tt.stored {
					m.t.Errorf("the object store was used: %v, want %v", used, tt.stored)
				}
				m.wantNothingStored(js, soon)
			})
		})
	}
}

func TestCheckOfLargeInputs(t *testing.T) {
	onMesh(t, func(m *mesh) {
		m.node("n1", newStubHost().add("mod.x", module.Annotations{}, give))
		c := m.client()
		m.wait(c, "mod.x")
		res, err := c.Check(m.t.Context(), &contextwire.Request{ModuleID: "mod.x", Inputs: map[string]any{"text": letters(2 << 20)}})
		if err != nil || !res.Valid {
			m.t.Errorf("check: %+v, %v", res, err)
		}
		m.wantNothingStored(m.jetStream(), soon)
	})
}

func TestBodyOverTheLimitIsRefused(t *testing.T) {
	const limit = 2 << 20
	lim := contextwire.Limits{MaxBody: limit}
	for _, tt := range []struct {
		name         string
		client, node contextwire.Limits
		in, out      int
		remote, ran  bool
	}{
		{"request over the caller's own limit", lim, contextwire.Limits{}, limit + 1, 0, false, false},
		{"request over the owner's limit", contextwire.Limits{}, lim, limit + 1, 0, true, false},
		{"answer over the owner's limit", contextwire.Limits{}, lim, 0, limit + 1, true, true},
		{"answer over the caller's limit", lim, contextwire.Limits{}, 0, limit + 1, false, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			onMesh(t, func(m *mesh) {
				var ran atomic.Int64
				n := m.node("n1", newStubHost().add("mod.x", module.Annotations{Idempotent: true}, func(ctx context.Context, req *contextwire.Request) (map[string]any, error) {
					ran.Add(1)
					return give(ctx, req)
				}), func(o *bus.NodeOptions) { o.Limits = tt.node })
				conns := m.conns()
				c, err := bus.NewClient(conns, bus.ClientOptions{Logger: quiet(), Limits: tt.client})
				if err != nil {
					m.t.Fatal(err)
				}
				m.undo = append(m.undo, c.Close)
				m.wait(c, "mod.x")
				start := time.Now()
				_, err = c.Call(m.t.Context(), "mod.x", map[string]any{"n": tt.out, "text": letters(tt.in)})
				e := wantCode(m.t, err, module.CodeBusPayloadTooLarge)
				size, _ := e.Details["size"].(int64)
				if e.Remote != tt.remote || e.Unexecuted == tt.ran || e.Details["limit"] != int64(limit) || size <= limit || size > limit+1000 {
					m.t.Errorf("remote %v, unexecuted %v, details %v", e.Remote, e.Unexecuted, e.Details)
				}
				if (ran.Load() == 1) != tt.ran || ran.Load() > 1 || time.Since(start) > soon {
					m.t.Errorf("ran %d times in %v", ran.Load(), time.Since(start))
				}
				m.wantNothingStored(m.jetStream(), soon)
				pass(time.Minute)
				if got := n.Tables(); got.Running+got.Holding+got.Kept != 0 || n.Fetched() != 0 {
					m.t.Errorf("the node still has %+v, %d bytes of bodies", got, n.Fetched())
				}
			})
		})
	}
}

// A retry refers to the same object, which is there until the call is over.
func TestRetryReadsTheBodyAgain(t *testing.T) {
	onMesh(t, func(m *mesh) {
		var refused atomic.Int64
		for _, id := range []string{"n1", "n2"} {
			m.node(id, newStubHost().add("mod.x", module.Annotations{}, func(ctx context.Context, req *contextwire.Request) (map[string]any, error) {
				if refused.Add(1) <= 2 {
					return nil, module.Errorf(module.CodeBusOverloaded, "not now").NotExecuted()
				}
				return give(ctx, req)
			}))
		}
		c, js := m.client(), m.jetStream()
		m.wait(c, "mod.x")
		var puts atomic.Int64
		if _, err := m.connect().Subscribe("$O.APBUS_BLOBS.M.>", func(*nats.Msg) { puts.Add(1) }); err != nil {
			m.t.Fatal(err)
		}
		reply, err := c.Invoke(m.t.Context(), &contextwire.Request{ModuleID: "mod.x", Inputs: map[string]any{"text": letters(2 << 20)}})
		if err != nil || reply.Attempt != 3 || reply.Output["bytes"] != int64(2<<20) {
			m.t.Fatalf("%+v, %v", reply, err)
		}
		m.wantNothingStored(js, soon)
		if puts.Load() != 1 {
			m.t.Errorf("the body was stored %d times, want once for three attempts", puts.Load())
		}
	})
}

func TestEndOfAStreamByReference(t *testing.T) {
	onMesh(t, func(m *mesh) {
		h := newStreamHost().stream("mod.parts", module.Annotations{}, func(_ context.Context, _ *contextwire.Request, send func(module.Chunk) error) error {
			for i := range 5 {
				if err := send(module.Chunk{fmt.Sprintf("part%d", i): letters(300_000)}); err != nil {
					return err
				}
			}
			return nil
		}).stream("mod.lump", module.Annotations{}, func(_ context.Context, _ *contextwire.Request, send func(module.Chunk) error) error {
			if err := send(module.Chunk{"a": "1"}); err != nil {
				return err
			}
			return send(module.Chunk{"b": letters(1 << 20)})
		})
		m.node("n1", h)
		c, js := m.client(), m.jetStream()
		m.wait(c, "mod.parts", "mod.lump")
		got := read(m.t.Context(), c, &contextwire.Request{ModuleID: "mod.parts"}, nil)
		if got.err != nil || len(got.is) != 5 || len(got.reply.Output) != 5 || got.reply.Output["part4"] != letters(300_000) {
			m.t.Errorf("%d chunks, %v", len(got.is), got.err)
		}
		m.wantNothingStored(js, soon)
		// A chunk goes into a message or not at all.
		got = read(m.t.Context(), c, &contextwire.Request{ModuleID: "mod.lump"}, nil)
		e := wantCode(m.t, got.err, module.CodeBusPayloadTooLarge)
		if len(got.is) != 1 || e.Details["limit"] != int64(1<<20) || e.Details["chunk_index"] != int64(1) || e.Unexecuted {
			m.t.Errorf("%d chunks, details %v", len(got.is), e.Details)
		}
		m.wantNothingStored(js, soon)
	})
}

func TestCancelledCallsLeaveNoBodies(t *testing.T) {
	onMesh(t, func(m *mesh) {
		started, ended := make(chan string, 1), make(chan error, 1)
		n := m.node("n1", newStubHost().add("mod.wait", module.Annotations{}, untilDone(started, ended)).
			add("mod.late", module.Annotations{}, func(ctx context.Context, req *contextwire.Request) (map[string]any, error) {
				started <- req.CallID
				<-ctx.Done() // and answers all the same
				ended <- context.Cause(ctx)
				return map[string]any{"text": letters(2 << 20)}, nil
			}))
		c, js := m.client(), m.jetStream()
		m.wait(c, "mod.wait", "mod.late")
		for _, id := range []string{"mod.wait", "mod.late"} {
			ctx, stop := context.WithCancelCause(m.t.Context())
			go func() {
				<-started
				stop(errors.New("enough"))
			}()
			_, err := c.Call(ctx, id, map[string]any{"text": letters(2 << 20)})
			wantCode(m.t, err, module.CodeExecutionCancelled)
			<-ended
			m.wantNothingStored(js, soon)
		}
		// One that is over before anything was sent.
		ctx, stop := context.WithCancelCause(m.t.Context())
		stop(errors.New("enough"))
		_, err := c.Call(ctx, "mod.wait", map[string]any{"text": letters(2 << 20)})
		wantCode(m.t, err, module.CodeExecutionCancelled)
		m.wantNothingStored(js, soon)
		if n.Fetched() != 0 {
			m.t.Errorf("the node still counts %d bytes of bodies", n.Fetched())
		}
	})
}

// The objects are those of every NATS client.
func TestBodiesAreOrdinaryObjects(t *testing.T) {
	onMesh(t, func(m *mesh) {
		js := m.jetStream()
		read := make(chan []byte, 1)
		m.node("n1", newStubHost().add("mod.x", module.Annotations{}, func(ctx context.Context, req *contextwire.Request) (map[string]any, error) {
			if store, err := js.ObjectStore(ctx, "APBUS_BLOBS"); err == nil {
				list, _ := store.List(ctx)
				for _, o := range list {
					body, err := store.GetBytes(ctx, o.Name) // which checks size and digest
					if err != nil {
						m.t.Error(err)
					}
					read <- body
				}
			}
			return give(ctx, req)
		}))
		c := m.client()
		m.wait(c, "mod.x")
		if _, err := c.Call(m.t.Context(), "mod.x", map[string]any{"text": letters(3 << 20)}); err != nil {
			m.t.Fatal(err)
		}
		if body := <-read; !strings.Contains(string(body), letters(3<<20)) {
			m.t.Errorf("another client read %d bytes", len(body))
		}
		// And one that another client wrote, with chunks of another size.
		inputs, err := contextwire.Encode(contextwire.JSON, map[string]any{"inputs": map[string]any{"text": letters(1 << 20), "n": 2 << 20}})
		if err != nil {
			m.t.Fatal(err)
		}
		store, err := js.ObjectStore(m.t.Context(), "APBUS_BLOBS")
		if err != nil {
			m.t.Fatal(err)
		}
		nc := m.connect()
		inbox := nc.NewInbox()
		name := inbox + ".whatever"
		m.putObject(js, name, inputs)
		sub, err := nc.SubscribeSync(inbox + ".*")
		if err != nil {
			m.t.Fatal(err)
		}
		sum := sha256.Sum256(inputs)
		if err := nc.PublishMsg(&nats.Msg{Subject: anyHost("mod.x"), Reply: inbox + ".reply", Header: nats.Header{
			"apbus-version": {"1"}, "apbus-call": {"foreigncall12345"}, "content-type": {"application/json"},
			"apbus-body-ref": {fmt.Sprintf("%s;size=%d;sha256=%s", name, len(inputs), hex.EncodeToString(sum[:]))},
		}}); err != nil {
			m.t.Fatal(err)
		}
		<-read
		answer, err := sub.NextMsgWithContext(m.within(5 * time.Second))
		if err != nil || answer.Header.Get("apbus-frame") != "result" || len(answer.Data) != 0 {
			m.t.Fatalf("%+v, %v", answer, err)
		}
		ref, ok := contextwire.ParseBodyRef(answer.Header.Get("apbus-body-ref"))
		if !ok || ref.Name != inbox+".reply" {
			m.t.Fatalf("the answer is in %+v, want it under the reply subject", ref)
		}
		body, err := store.GetBytes(m.t.Context(), ref.Name)
		if err != nil || ref.Check(body) != nil {
			m.t.Fatalf("%d bytes, %v", len(body), err)
		}
		out, err := contextwire.DecodeMap(contextwire.JSON, body, contextwire.DefaultLimits())
		if err != nil || out["bytes"] != int64(1<<20) || out["text"] != letters(2<<20) {
			m.t.Errorf("got %v bytes, %v", out["bytes"], err)
		}
	})
}

func TestBrokenBodiesAreRefused(t *testing.T) {
	body := []byte(`{"inputs":{"text":"` + letters(1<<20) + `"}}`)
	digest := func(b []byte) string { sum := sha256.Sum256(b); return hex.EncodeToString(sum[:]) }
	for _, tt := range []struct {
		name   string
		stored []byte // nil for none
		size   int
		digest string
	}{
		{"not there", nil, len(body), digest(body)},
		{"another size than the record says", body, len(body) - 1, digest(body)},
		{"another digest", body, len(body), digest([]byte("another"))},
		{"cut short", body[:len(body)/2], len(body), digest(body)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			onMesh(t, func(m *mesh) {
				var ran atomic.Int64
				n := m.node("n1", newStubHost().add("mod.x", module.Annotations{}, func(context.Context, *contextwire.Request) (map[string]any, error) {
					ran.Add(1)
					return map[string]any{}, nil
				}))
				js, nc := m.jetStream(), m.connect()
				_, err := js.CreateObjectStore(m.t.Context(), jetstream.ObjectStoreConfig{Bucket: "APBUS_BLOBS"})
				if err != nil {
					m.t.Fatal(err)
				}
				inbox := nc.NewInbox()
				if tt.stored != nil {
					m.putObject(js, inbox+".body", tt.stored)
				}
				answer, err := nc.RequestMsgWithContext(m.within(30*time.Second), &nats.Msg{Subject: anyHost("mod.x"), Header: nats.Header{
					"apbus-version": {"1"}, "apbus-call": {"foreigncall12345"}, "content-type": {"application/json"},
					"apbus-body-ref": {fmt.Sprintf("%s.body;size=%d;sha256=%s", inbox, tt.size, tt.digest)},
				}})
				if err != nil {
					m.t.Fatal(err)
				}
				if answer.Header.Get("apbus-error") != "BUS_BAD_MESSAGE" || answer.Header.Get("apbus-unexecuted") != "1" || ran.Load() != 0 {
					m.t.Errorf("%v %s, ran %d times", answer.Header, answer.Data, ran.Load())
				}
				if n.Fetched() != 0 {
					m.t.Errorf("the node still counts %d bytes", n.Fetched())
				}
			})
		})
	}
}

// Chunks that vanish under a complete record are noticed, not waited for.
func TestLostChunksAreNoticed(t *testing.T) {
	onMesh(t, func(m *mesh) {
		js := m.jetStream()
		m.node("n1", newStubHost().add("mod.x", module.Annotations{}, give))
		store, err := js.CreateObjectStore(m.t.Context(), jetstream.ObjectStoreConfig{Bucket: "APBUS_BLOBS"})
		if err != nil {
			m.t.Fatal(err)
		}
		body := []byte(`{"inputs":{"text":"` + letters(1<<20) + `"}}`)
		m.putObject(js, "_INBOX.x.body", body)
		info, err := store.GetInfo(m.t.Context(), "_INBOX.x.body")
		if err != nil {
			m.t.Fatal(err)
		}
		stream, err := js.Stream(m.t.Context(), "OBJ_APBUS_BLOBS")
		if err != nil {
			m.t.Fatal(err)
		}
		if err := stream.Purge(m.t.Context(), jetstream.WithPurgeSubject("$O.APBUS_BLOBS.C."+info.NUID), jetstream.WithPurgeKeep(3)); err != nil {
			m.t.Fatal(err)
		}
		sum := sha256.Sum256(body)
		answer, err := m.connect().RequestMsgWithContext(m.within(time.Minute), &nats.Msg{Subject: anyHost("mod.x"), Header: nats.Header{
			"apbus-version": {"1"}, "apbus-call": {"foreigncall12345"}, "content-type": {"application/json"},
			"apbus-body-ref": {fmt.Sprintf("_INBOX.x.body;size=%d;sha256=%s", len(body), hex.EncodeToString(sum[:]))},
		}})
		if err != nil || answer.Header.Get("apbus-error") != "BUS_BAD_MESSAGE" {
			m.t.Errorf("%+v, %v", answer, err)
		}
	})
}

func TestManyLargeBodiesAtOnceAreOverload(t *testing.T) {
	onMesh(t, func(m *mesh) {
		started, ended := make(chan string, 20), make(chan error, 20)
		n := m.node("n1", newStubHost().add("mod.wait", module.Annotations{}, untilDone(started, ended)),
			func(o *bus.NodeOptions) { o.Limits.MaxBody = 1 << 20 })
		c := m.client()
		m.wait(c, "mod.wait")
		ctx, stop := context.WithCancelCause(m.t.Context())
		codes := make(chan module.Code, 20)
		for range 12 {
			go func() {
				_, err := c.Call(ctx, "mod.wait", map[string]any{"text": letters(900_000)})
				codes <- module.CodeOf(err)
			}()
		}
		pass(20 * time.Second)
		if len(started) != 9 || len(codes) != 3 { // 9 × 0.9 MB within 8 MiB
			m.t.Errorf("%d run and %d ended, want 9 and 3", len(started), len(codes))
		}
		for range len(codes) {
			if got := <-codes; got != module.CodeBusOverloaded {
				m.t.Errorf("refused with %s", got)
			}
		}
		stop(errors.New("enough"))
		m.wantNothingStored(m.jetStream(), time.Second)
		if n.Fetched() != 0 {
			m.t.Errorf("the node still counts %d bytes", n.Fetched())
		}
	})
}

// A node that has less room for a message than the caller's own server is known
// from the catalogue.
func TestSmallestMessageOfTheCatalogueCounts(t *testing.T) {
	onMesh(t, func(m *mesh) {
		js := m.jetStream()
		kv, err := js.CreateKeyValue(m.t.Context(), jetstream.KeyValueConfig{Bucket: "APBUS_NODES", History: 1, TTL: 15 * time.Second, Storage: jetstream.MemoryStorage})
		if err != nil {
			m.t.Fatal(err)
		}
		record := contextwire.NodeRecord{Protocol: 1, Node: "far", Boot: "b1", NS: "default", Version: "1.0.0", MaxPayload: 64 << 10, Modules: []contextwire.ModuleRef{}, At: time.Now()}
		raw, err := contextwire.EncodeControl(&record, contextwire.JSON)
		if err != nil {
			m.t.Fatal(err)
		}
		if _, err := kv.Put(m.t.Context(), "default.far.b1", raw); err != nil {
			m.t.Fatal(err)
		}
		m.node("n1", newStubHost().add("mod.x", module.Annotations{}, give))
		c := m.client()
		m.wait(c, "mod.x")
		call := func(in, out int) {
			m.t.Helper()
			if _, err := c.Call(m.t.Context(), "mod.x", map[string]any{"n": out, "text": letters(in)}); err != nil {
				m.t.Fatal(err)
			}
		}
		call(40_000, 40_000)
		if _, used := m.stored(js); used {
			m.t.Error("40,000 bytes are within three quarters of 64 KiB")
		}
		call(0, 50_000)
		if state, used := m.stored(js); !used || state.LastSeq == 0 {
			m.t.Error("an answer of 50,000 bytes did not go by reference")
		}
		before, _ := m.stored(js)
		call(50_000, 0)
		if after, _ := m.stored(js); after.LastSeq == before.LastSeq {
			m.t.Error("a request of 50,000 bytes did not go by reference")
		}
		pass(40 * time.Second) // the record is gone, and with it the reason
		before, _ = m.stored(js)
		call(50_000, 50_000)
		if after, _ := m.stored(js); after.LastSeq != before.LastSeq {
			m.t.Error("a node that is gone still counts")
		}
	})
}

// A server that syncs every write does not sync bodies.
func TestBodiesAreNotSynced(t *testing.T) {
	onMesh(t, func(m *mesh) {
		m.node("n1", newStubHost().add("mod.x", module.Annotations{}, give))
		c, js := m.client(), m.jetStream()
		m.wait(c, "mod.x")
		if _, err := c.Call(m.t.Context(), "mod.x", map[string]any{"text": letters(1 << 20)}); err != nil {
			m.t.Fatal(err)
		}
		stream, err := js.Stream(m.t.Context(), "OBJ_APBUS_BLOBS")
		if err != nil {
			m.t.Fatal(err)
		}
		if cfg := stream.CachedInfo().Config; cfg.PersistMode != jetstream.AsyncPersistMode || cfg.Storage != jetstream.FileStorage || cfg.MaxAge != time.Hour {
			m.t.Errorf("the stream is %+v", cfg)
		}
		if _, err := js.ObjectStore(m.t.Context(), "APBUS_BLOBS"); err != nil {
			m.t.Errorf("it is no object store: %v", err)
		}
	})
}

// A bucket that is lost with its server's disk is made again.
func TestLostBucketIsMadeAgain(t *testing.T) {
	onMesh(t, func(m *mesh) {
		m.node("n1", newStubHost().add("mod.x", module.Annotations{}, give))
		c, js := m.client(), m.jetStream()
		m.wait(c, "mod.x")
		for range 2 {
			out, err := c.Call(m.t.Context(), "mod.x", map[string]any{"n": 1 << 20, "text": letters(1 << 20)})
			if err != nil || out["bytes"] != int64(1<<20) {
				m.t.Fatalf("%v, %v", out["bytes"], err)
			}
			m.wantNothingStored(js, soon)
			if err := js.DeleteStream(m.t.Context(), "OBJ_APBUS_BLOBS"); err != nil {
				m.t.Fatal(err)
			}
		}
	})
}
