package integration_test

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
)

// secondClient calls, streams and cancels modules and answers probes. It was
// written from docs/wire.md alone. Safe for concurrent use.
type secondClient struct {
	nc     *nats.Conn
	inbox  string
	probes atomic.Int64 // answered
	open   sync.Map     // chan *nats.Msg by the last token of the reply subject
}

// codedError is the error of a peer.
type codedError struct {
	Code       string `json:"code"`
	Message    string `json:"message"`
	Retryable  bool   `json:"retryable"`
	unexecuted bool
	after      time.Duration
}

func (e *codedError) Error() string { return e.Code + ": " + e.Message }

func newSecondClient(nc *nats.Conn) (*secondClient, error) {
	c := &secondClient{nc: nc, inbox: nats.NewInbox()}
	if _, err := nc.Subscribe(c.inbox+".*", c.receive); err != nil {
		return nil, err
	}
	return c, nc.Flush()
}

func (c *secondClient) receive(m *nats.Msg) {
	token := m.Subject[strings.LastIndexByte(m.Subject, '.')+1:]
	if frames, waits := c.open.Load(token); waits {
		frames.(chan *nats.Msg) <- m // a window of chunks and a few frames fit
	}
	if token != "probe" {
		return
	}
	c.probes.Add(1)
	var probe struct{ Calls []string }
	_ = json.Unmarshal(m.Data, &probe)
	unknown := []string{}
	for _, key := range probe.Calls {
		if _, waits := c.open.Load(strings.Replace(key, "/", "-", 1)); !waits {
			unknown = append(unknown, key)
		}
	}
	body, _ := json.Marshal(map[string]any{"unknown": unknown})
	_ = m.RespondMsg(&nats.Msg{Header: nats.Header{"apbus-frame": {"result"}, "content-type": {"application/json"}}, Data: body})
}

// call runs a module: attempts as section 5 allows them. A stream's chunks go to
// each, which is nil for a plain call.
func (c *secondClient) call(ctx context.Context, module string, inputs any, window int, each func(map[string]any)) (map[string]any, error) {
	id := strings.ReplaceAll(nats.NewInbox()[7:], ".", "") // 22 letters and digits
	body, err := json.Marshal(map[string]any{"inputs": inputs})
	if err != nil {
		return nil, err
	}
	h := nats.Header{"apbus-version": {"1"}, "apbus-call": {id}, "content-type": {"application/json"}}
	if each != nil {
		h["apbus-mode"], h["apbus-credit"] = []string{"stream"}, []string{fmt.Sprintf("%d/1048576", window)}
	}
	if int64(len(body)) > c.nc.MaxPayload()*3/4 {
		name := c.inbox + "." + id + "-body"
		store, err := c.blobs()
		if err == nil {
			_, err = store.PutBytes(name, body)
		}
		if err != nil {
			return nil, err
		}
		defer func() { _ = store.Delete(name) }()
		h["apbus-body-ref"] = []string{fmt.Sprintf("%s;size=%d;sha256=%x", name, len(body), sha256.Sum256(body))}
		body = nil
	}
	for attempt := 1; ; attempt++ {
		h["apbus-attempt"] = []string{strconv.Itoa(attempt)}
		out, err := c.attempt(ctx, module, id, attempt, h, body, window, each)
		var e *codedError
		if err == nil || attempt == 3 || !errors.As(err, &e) || !e.unexecuted || !e.Retryable {
			return out, err
		}
		time.Sleep(e.after) //archtest:real-time the host said how long
	}
}

func (c *secondClient) attempt(ctx context.Context, module, id string, n int, h nats.Header, body []byte, window int, each func(map[string]any)) (map[string]any, error) {
	token, frames := id+"-"+strconv.Itoa(n), make(chan *nats.Msg, window+16)
	c.open.Store(token, frames)
	defer c.open.Delete(token)
	if deadline, ok := ctx.Deadline(); ok {
		h["apbus-budget-ms"] = []string{strconv.FormatInt(time.Until(deadline).Milliseconds(), 10)}
	}
	if err := c.nc.PublishMsg(&nats.Msg{Subject: "apbus.v1.call.default._." + module, Reply: c.inbox + "." + token, Header: h, Data: body}); err != nil {
		return nil, err
	}
	owner, creditTo, taken, told := "", "", 0, 0
	tick := time.NewTimer(500 * time.Millisecond)
	defer tick.Stop()
	grant := func() {
		told = taken
		if tick.Reset(500 * time.Millisecond); creditTo != "" {
			_ = c.nc.PublishMsg(&nats.Msg{Subject: creditTo, Header: nats.Header{"apbus-credit": {fmt.Sprintf("%d/%d", taken+window, 1<<40)}}})
		}
	}
	for {
		var m *nats.Msg
		select {
		case m = <-frames:
		case <-tick.C:
			grant()
			continue
		case <-ctx.Done():
			c.cancel(owner, module, id)
			return nil, context.Cause(ctx)
		}
		owner = cmp.Or(m.Header.Get("apbus-node"), owner)
		var doc map[string]any
		switch kind := m.Header.Get("apbus-frame"); {
		case m.Header.Get("Status") == "503":
			return nil, &codedError{Code: "503", unexecuted: true, Retryable: true}
		case kind == "accept":
			creditTo = m.Header.Get("apbus-credit-to")
		case kind == "data":
			if err := json.Unmarshal(m.Data, &doc); err != nil || m.Header.Get("apbus-seq") != strconv.Itoa(taken) {
				c.cancel(owner, module, id)
				return nil, fmt.Errorf("chunk %s came where %d was due: %w", m.Header.Get("apbus-seq"), taken, err)
			}
			each(doc)
			if taken++; 2*(taken-told) >= window {
				grant()
			} else {
				tick.Reset(5 * time.Millisecond)
			}
		case kind == "error":
			e := &codedError{unexecuted: m.Header.Get("apbus-unexecuted") == "1"}
			ms, _ := strconv.Atoi(m.Header.Get("retry-after-ms"))
			e.after = time.Duration(ms) * time.Millisecond
			return nil, errors.Join(json.Unmarshal(m.Data, e), e)
		case kind == "end" && m.Header.Get("apbus-seq") != strconv.Itoa(taken):
			return nil, fmt.Errorf("%d chunks of %s came", taken, m.Header.Get("apbus-seq"))
		case kind == "result", kind == "end":
			data := m.Data
			if ref := m.Header.Get("apbus-body-ref"); ref != "" {
				name, facts, _ := strings.Cut(ref, ";")
				store, err := c.blobs()
				if err == nil {
					data, err = store.GetBytes(name)
				}
				if err != nil {
					return nil, err
				}
				defer func() { _ = store.Delete(name) }()
				if want := fmt.Sprintf("size=%d;sha256=%x", len(data), sha256.Sum256(data)); facts != want {
					return nil, fmt.Errorf("the stored answer is %s, not %s", want, facts)
				}
			}
			return doc, json.Unmarshal(data, &doc)
		}
	}
}

func (c *secondClient) blobs() (nats.ObjectStore, error) {
	js, err := c.nc.JetStream()
	if err != nil {
		return nil, err
	}
	if store, err := js.ObjectStore("APBUS_BLOBS"); !errors.Is(err, nats.ErrStreamNotFound) {
		return store, err
	}
	return js.CreateObjectStore(&nats.ObjectStoreConfig{Bucket: "APBUS_BLOBS", TTL: time.Hour})
}

// cancel tells the process that has the call, or everyone who hosts the module.
func (c *secondClient) cancel(owner, module, call string) {
	subject := "apbus.v1.cancel.default." + module
	if owner != "" {
		subject = "apbus.v1.node.default." + owner + ".cancel"
	}
	body, _ := json.Marshal(map[string]any{"call": call, "reason": "caller", "by": "second", "at": time.Now().UTC()})
	_ = c.nc.Publish(subject, body)
}
