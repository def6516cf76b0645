package bustest

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"

	"github.com/apbus/apbus/bus"
	"github.com/apbus/apbus/internal/natstest"
	"github.com/apbus/apbus/module"
)

// Broker is a running broker under test.
type Broker struct {
	// Open makes one more connection.
	Open func() bus.Conn
	// Close ends the broker and its connections.
	Close func()
}

// TestConn checks that an implementation keeps the promises of bus.Conn, as far
// as package bus relies on them. start is called in a testing/synctest bubble,
// once for each test.
func TestConn(t *testing.T, start func(t *testing.T) Broker) {
	for _, tt := range []struct {
		name string
		test func(*suite)
	}{
		{"delivers what was published", (*suite).delivers},
		{"does not keep the publisher's buffers", (*suite).copies},
		{"matches wildcards", (*suite).wildcards},
		{"keeps the order of a subscription", (*suite).order},
		{"calls a handler for one message at a time", (*suite).serial},
		{"gives a message to one member of each queue group", (*suite).queues},
		{"answers 503 when nobody listens", (*suite).nobody},
		{"requests end with their own answer", (*suite).requests},
		{"requests end with the cause of their context", (*suite).requestCause},
		{"refuses what is too large", (*suite).tooLarge},
		{"refuses bad subjects", (*suite).badSubjects},
		{"leaves at once with Unsubscribe", (*suite).unsubscribe},
		{"handles what had arrived before Drain returns", (*suite).drain},
		{"gives up a drain with its context", (*suite).drainCause},
		{"flushes without a deadline", (*suite).flushes},
		{"makes inboxes nobody else has", (*suite).inboxes},
	} {
		t.Run(tt.name, func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T) {
				b := start(t)
				defer b.Close()
				tt.test(&suite{T: t, open: b.Open})
			})
		})
	}
}

type suite struct {
	*testing.T
	open func() bus.Conn
}

// listen subscribes, makes sure that the broker knows, and returns what arrives.
func (s *suite) listen(c bus.Conn, subject, queue string) (<-chan *nats.Msg, bus.Subscription) {
	s.Helper()
	got := make(chan *nats.Msg, 1024)
	sub, err := c.Subscribe(subject, queue, func(m *nats.Msg) { got <- m })
	if err != nil {
		s.Fatal(err)
	}
	s.flush(c)
	return got, sub
}

func (s *suite) flush(c bus.Conn) {
	s.Helper()
	ctx, stop := context.WithTimeoutCause(s.Context(), time.Second, errors.New("flush took too long"))
	defer stop()
	if err := c.Flush(ctx); err != nil {
		s.Fatal(err)
	}
}

func (s *suite) publish(c bus.Conn, m *nats.Msg) {
	s.Helper()
	if err := c.Publish(m); err != nil {
		s.Fatal(err)
	}
	s.flush(c)
}

// take waits for one message.
func (s *suite) take(from <-chan *nats.Msg) *nats.Msg {
	s.Helper()
	select {
	case m := <-from:
		return m
	case <-time.After(time.Second):
		s.Fatal("no message arrived")
		return nil
	}
}

// none makes sure that nothing arrives.
func (s *suite) none(from <-chan *nats.Msg) {
	s.Helper()
	synctest.Wait()
	select {
	case m := <-from:
		s.Fatalf("unexpected message on %s", m.Subject)
	default:
	}
}

func (s *suite) delivers() {
	a, b := s.open(), s.open()
	far, _ := s.listen(b, "x.y", "")
	near, _ := s.listen(a, "x.y", "")
	sent := &nats.Msg{Subject: "x.y", Reply: "r.1", Data: []byte("body"), Header: nats.Header{"apbus-Call": {"1", "2"}, "plain": {""}}}
	s.publish(a, sent)
	for _, from := range []<-chan *nats.Msg{far, near} {
		got := s.take(from)
		if got.Subject != sent.Subject || got.Reply != sent.Reply || string(got.Data) != "body" {
			s.Errorf("got subject %q, reply %q, body %q", got.Subject, got.Reply, got.Data)
		}
		if diff := cmp.Diff(sent.Header, got.Header); diff != "" {
			s.Errorf("headers (-want +got):\n%s", diff)
		}
		s.none(from)
	}
	if !a.Connected() {
		s.Error("the connection says it is not connected")
	}
}

func (s *suite) copies() {
	a, b := s.open(), s.open()
	got, _ := s.listen(b, "x", "")
	m := &nats.Msg{Subject: "x", Data: []byte("before"), Header: nats.Header{"k": {"before"}}}
	if err := a.Publish(m); err != nil {
		s.Fatal(err)
	}
	copy(m.Data, "after!")
	m.Header["k"][0] = "after"
	s.flush(a)
	if got := s.take(got); string(got.Data) != "before" || got.Header["k"][0] != "before" {
		s.Errorf("the message changed after it was published: %q %q", got.Data, got.Header)
	}
}

func (s *suite) wildcards() {
	c := s.open()
	for _, tt := range []struct {
		pattern, subject string
		want             bool
	}{
		{"a.b", "a.b", true},
		{"a.b", "a.c", false},
		{"a.b", "a.b.c", false},
		{"a.*", "a.b", true},
		{"a.*", "a", false},
		{"a.*", "a.b.c", false},
		{"*.b", "a.b", true},
		{"a.*.c", "a.b.c", true},
		{"a.>", "a.b", true},
		{"a.>", "a.b.c.d", true},
		{"a.>", "a", false},
		{">", "a", true},
		{"a.*.>", "a.b", false},
		{"a.*.>", "a.b.c", true},
		{"a.b*", "a.bc", false},
	} {
		got, sub := s.listen(c, tt.pattern, "")
		s.publish(c, &nats.Msg{Subject: tt.subject})
		synctest.Wait()
		if arrived := len(got) == 1; arrived != tt.want {
			s.Errorf("%s reaches a subscriber of %s: %v, want %v", tt.subject, tt.pattern, arrived, tt.want)
		}
		if err := sub.Unsubscribe(); err != nil {
			s.Fatal(err)
		}
	}
}

func (s *suite) order() {
	a, b := s.open(), s.open()
	got, _ := s.listen(b, "x.*", "")
	const n = 500
	for i := range n {
		if err := a.Publish(&nats.Msg{Subject: "x." + strconv.Itoa(i%3), Data: []byte(strconv.Itoa(i))}); err != nil {
			s.Fatal(err)
		}
	}
	s.flush(a)
	for i := range n {
		if m := s.take(got); string(m.Data) != strconv.Itoa(i) {
			s.Fatalf("message %d is %s", i, m.Data)
		}
	}
}

func (s *suite) serial() {
	c := s.open()
	entered, leave := make(chan struct{}, 2), make(chan struct{})
	if _, err := c.Subscribe("slow", "", func(*nats.Msg) { entered <- struct{}{}; <-leave }); err != nil {
		s.Fatal(err)
	}
	other, _ := s.listen(c, "other", "")
	s.publish(c, &nats.Msg{Subject: "slow"})
	s.publish(c, &nats.Msg{Subject: "slow"})
	<-entered
	synctest.Wait()
	if len(entered) != 0 {
		s.Error("a handler was called again before it returned")
	}
	s.publish(c, &nats.Msg{Subject: "other"})
	s.take(other) // another subscription is not held up
	close(leave)
	<-entered
}

func (s *suite) queues() {
	a, b := s.open(), s.open()
	var members []<-chan *nats.Msg
	for _, c := range []bus.Conn{a, a, b} {
		got, _ := s.listen(c, "x.y", "q")
		members = append(members, got)
	}
	overlapping, _ := s.listen(b, "x.*", "q") // one group by its name, whatever the subject
	members = append(members, overlapping)
	other, _ := s.listen(b, "x.y", "other")
	plain, _ := s.listen(b, "x.y", "")
	const n = 400
	for range n {
		if err := a.Publish(&nats.Msg{Subject: "x.y"}); err != nil {
			s.Fatal(err)
		}
	}
	s.flush(a)
	synctest.Wait()
	total := 0
	for i, m := range members {
		total += len(m)
		if len(m) == 0 {
			s.Errorf("member %d of 4 got none of %d messages", i, n)
		}
	}
	if total != n || len(other) != n || len(plain) != n {
		s.Errorf("the group got %d, the other group %d, the subscriber %d, want %d each", total, len(other), len(plain), n)
	}
}

func (s *suite) nobody() {
	a, b := s.open(), s.open()
	mine, _ := s.listen(a, "inbox.*", "")
	foreign, _ := s.listen(b, "inbox.*", "")
	s.publish(a, &nats.Msg{Subject: "nobody.here", Reply: "inbox.1"})
	m := s.take(mine)
	if m.Subject != "inbox.1" || m.Header.Get("Status") != "503" || len(m.Data) != 0 {
		s.Errorf("got %q with status %q and %d bytes", m.Subject, m.Header.Get("Status"), len(m.Data))
	}
	s.none(foreign) // a reply subscription on another connection hears nothing
	began := time.Now()
	if _, err := a.Request(s.Context(), &nats.Msg{Subject: "nobody.here"}); !errors.Is(err, bus.ErrNoResponders) {
		s.Errorf("request: %v, want %v", err, bus.ErrNoResponders)
	}
	if took := time.Since(began); took != 0 {
		s.Errorf("the request took %v", took)
	}
	s.listen(b, "nobody.>", "q")
	s.publish(a, &nats.Msg{Subject: "nobody.here", Reply: "inbox.2"})
	s.none(mine) // a listener of any kind counts
}

func (s *suite) requests() {
	a, b := s.open(), s.open()
	_, err := b.Subscribe("echo", "", func(m *nats.Msg) {
		if err := b.Publish(&nats.Msg{Subject: m.Reply, Data: m.Data, Header: m.Header}); err != nil {
			s.Error(err)
		}
	})
	if err != nil {
		s.Fatal(err)
	}
	s.flush(b)
	var wg sync.WaitGroup
	for i := range 50 {
		wg.Go(func() {
			want := strconv.Itoa(i)
			m, err := a.Request(s.Context(), &nats.Msg{Subject: "echo", Data: []byte(want), Header: nats.Header{"n": {want}}})
			if err != nil {
				s.Error(err)
				return
			}
			if string(m.Data) != want || m.Header["n"][0] != want {
				s.Errorf("request %s got %s", want, m.Data)
			}
		})
	}
	wg.Wait()
}

func (s *suite) requestCause() {
	a, b := s.open(), s.open()
	asked, _ := s.listen(b, "silent", "")
	enough := errors.New("enough")
	ctx, stop := context.WithCancelCause(s.Context())
	defer stop(nil)
	failed := make(chan error, 1)
	go func() {
		_, err := a.Request(ctx, &nats.Msg{Subject: "silent"})
		failed <- err
	}()
	m := s.take(asked)
	stop(enough)
	if err := <-failed; !errors.Is(err, enough) {
		s.Errorf("cancelled request: %v, want the cause", err)
	}
	limited, release := context.WithTimeoutCause(s.Context(), time.Second, enough)
	defer release()
	if _, err := a.Request(limited, &nats.Msg{Subject: "silent"}); !errors.Is(err, enough) {
		s.Errorf("request out of time: %v, want the cause", err)
	}
	s.publish(b, &nats.Msg{Subject: m.Reply, Data: []byte("late")}) // harms nobody
	s.flush(a)
}

func (s *suite) tooLarge() {
	a, b := s.open(), s.open()
	got, _ := s.listen(b, "big", "")
	limit := int(a.MaxPayload())
	if limit <= 0 {
		s.Fatalf("MaxPayload is %d", limit)
	}
	s.publish(a, &nats.Msg{Subject: "big", Data: make([]byte, limit)})
	if m := s.take(got); len(m.Data) != limit {
		s.Errorf("%d of %d bytes arrived", len(m.Data), limit)
	}
	for name, m := range map[string]*nats.Msg{
		"body":              {Subject: "big", Data: make([]byte, limit+1)},
		"body with headers": {Subject: "big", Data: make([]byte, limit), Header: nats.Header{"k": {"v"}}},
	} {
		err := a.Publish(m)
		if e := module.AsError(err); e == nil || e.Code != module.CodeBusPayloadTooLarge || !e.Unexecuted {
			s.Errorf("%s: %v, want %s and certainly not sent", name, err, module.CodeBusPayloadTooLarge)
		}
	}
	s.flush(a)
	s.none(got)
}

func (s *suite) badSubjects() {
	c := s.open()
	for _, subject := range []string{"", "with space"} {
		if err := c.Publish(&nats.Msg{Subject: subject}); err == nil {
			s.Errorf("Publish takes subject %q", subject)
		}
		if _, err := c.Subscribe(subject, "", func(*nats.Msg) {}); err == nil {
			s.Errorf("Subscribe takes subject %q", subject)
		}
	}
}

func (s *suite) unsubscribe() {
	c := s.open()
	got, sub := s.listen(c, "x", "")
	if err := sub.Unsubscribe(); err != nil {
		s.Fatal(err)
	}
	s.flush(c)
	s.publish(c, &nats.Msg{Subject: "x"})
	s.none(got)
	if _, err := c.Request(s.Context(), &nats.Msg{Subject: "x"}); !errors.Is(err, bus.ErrNoResponders) {
		s.Errorf("request: %v, want %v", err, bus.ErrNoResponders)
	}
}

func (s *suite) drain() {
	a, b := s.open(), s.open()
	var handled []string
	first := make(chan struct{})
	sub, err := b.Subscribe("x", "q", func(m *nats.Msg) {
		if len(handled) == 0 {
			close(first)
			time.Sleep(10 * time.Millisecond)
		}
		handled = append(handled, string(m.Data))
	})
	if err != nil {
		s.Fatal(err)
	}
	s.flush(b)
	var want []string
	for i := range 20 {
		want = append(want, strconv.Itoa(i))
		if err := a.Publish(&nats.Msg{Subject: "x", Data: []byte(want[i])}); err != nil {
			s.Fatal(err)
		}
	}
	s.flush(a)
	<-first
	ctx, stop := context.WithTimeoutCause(s.Context(), 5*time.Second, errors.New("drain took too long"))
	defer stop()
	if err := sub.Drain(ctx); err != nil {
		s.Fatal(err)
	}
	if !slices.Equal(handled, want) {
		s.Errorf("handled %v, want all of %v", handled, want)
	}
	if _, err := a.Request(ctx, &nats.Msg{Subject: "x"}); !errors.Is(err, bus.ErrNoResponders) {
		s.Errorf("request after the drain: %v, want %v", err, bus.ErrNoResponders)
	}
	if err := sub.Drain(ctx); err != nil {
		s.Errorf("a second drain: %v", err)
	}
}

func (s *suite) drainCause() {
	c := s.open()
	entered, leave := make(chan struct{}), make(chan struct{})
	defer close(leave)
	sub, err := c.Subscribe("x", "", func(*nats.Msg) { close(entered); <-leave })
	if err != nil {
		s.Fatal(err)
	}
	s.publish(c, &nats.Msg{Subject: "x"})
	<-entered
	enough := errors.New("enough")
	ctx, stop := context.WithTimeoutCause(s.Context(), time.Second, enough)
	defer stop()
	if err := sub.Drain(ctx); !errors.Is(err, enough) {
		s.Errorf("Drain: %v, want the cause", err)
	}
}

func (s *suite) flushes() {
	a, b := s.open(), s.open()
	got := make(chan *nats.Msg, 1)
	if _, err := a.Subscribe("x", "", func(m *nats.Msg) { got <- m }); err != nil {
		s.Fatal(err)
	}
	ctx, stop := context.WithCancelCause(context.Background())
	if err := a.Flush(ctx); err != nil {
		s.Fatal(err)
	}
	s.publish(b, &nats.Msg{Subject: "x"}) // the broker knows of the subscription
	s.take(got)
	enough := errors.New("enough")
	stop(enough)
	if err := a.Flush(ctx); !errors.Is(err, enough) {
		s.Errorf("flush with a cancelled context: %v, want its cause", err)
	}
}

func (s *suite) inboxes() {
	a, b := s.open(), s.open()
	seen := map[string]bool{}
	for _, c := range []bus.Conn{a, a, b, b} {
		inbox := c.NewInbox()
		if seen[inbox] {
			s.Errorf("inbox %s was given twice", inbox)
		}
		seen[inbox] = true
		got, _ := s.listen(c, inbox+".*", "")
		s.publish(b, &nats.Msg{Subject: inbox + ".1"})
		s.take(got)
	}
}
