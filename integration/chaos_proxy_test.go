package integration_test

import (
	"net"
	"sync"
	"testing"
)

// wire is a TCP connection to the server that a test can break: every process of a
// chaos test has one of its own.
type wire struct {
	t      testing.TB
	l      net.Listener
	server string
	wg     sync.WaitGroup

	mu     sync.Mutex
	thaw   chan struct{} // nil unless nothing passes
	broken bool          // connections end at once
	closed bool
	conns  map[net.Conn]struct{}
}

func newWire(t testing.TB, server string) *wire {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := &wire{t: t, l: l, server: server, conns: map[net.Conn]struct{}{}}
	w.wg.Go(w.accept)
	t.Cleanup(func() {
		_ = l.Close()
		w.mu.Lock()
		w.closed = true
		w.mu.Unlock()
		w.drop()
		w.heal()
		w.wg.Wait()
	})
	return w
}

func (w *wire) url() string { return "nats://" + w.l.Addr().String() }

func (w *wire) accept() {
	for {
		c, err := w.l.Accept()
		if err != nil {
			return
		}
		w.mu.Lock()
		refuse := w.broken || w.closed
		w.mu.Unlock()
		if refuse {
			_ = c.Close()
			continue
		}
		far, err := net.Dial("tcp", w.server)
		if err != nil { // the server is down
			_ = c.Close()
			continue
		}
		if w.keep(c, far) {
			w.wg.Go(func() { w.copy(c, far) })
			w.wg.Go(func() { w.copy(far, c) })
		}
	}
}

func (w *wire) keep(conns ...net.Conn) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range conns {
		if w.broken || w.closed {
			_ = c.Close()
			continue
		}
		w.conns[c] = struct{}{}
	}
	return !w.broken && !w.closed
}

// copy passes on what it reads, when something may pass.
func (w *wire) copy(to, from net.Conn) {
	defer func() {
		_, _ = to.Close(), from.Close()
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.conns, to)
		delete(w.conns, from)
	}()
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		w.mu.Lock()
		thaw := w.thaw
		w.mu.Unlock()
		if thaw != nil {
			<-thaw
		}
		if n > 0 {
			if _, err := to.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// stall lets nothing pass and keeps it for later, as a network does that will heal
// in time.
func (w *wire) stall() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.thaw == nil {
		w.thaw = make(chan struct{})
	}
}

// cut ends all connections and takes none.
func (w *wire) cut() {
	w.mu.Lock()
	w.broken = true
	w.mu.Unlock()
	w.drop()
}

func (w *wire) drop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for c := range w.conns {
		_ = c.Close()
	}
}

func (w *wire) heal() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.broken = false
	if w.thaw != nil {
		close(w.thaw)
		w.thaw = nil
	}
}
