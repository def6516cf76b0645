package jetstream_test

import (
	"bytes"
	"errors"
	"net"
	"sync"

	"github.com/nats-io/nats.go"
)

// ice is a way to the server that a test can freeze. Nothing gets through then, in
// either direction, though no end sees the connection break: a process or a network
// that stands still.
type ice struct {
	server nats.InProcessConnProvider

	mu     sync.Mutex
	thawed *sync.Cond
	frozen bool
	cut    bool // what is under way when it thaws is lost, with the connection
	mute   bool // what is written is lost, what comes is read
	conns  map[*icyConn]struct{}
}

func newIce(server nats.InProcessConnProvider) *ice {
	i := &ice{server: server, conns: map[*icyConn]struct{}{}}
	i.thawed = sync.NewCond(&i.mu)
	return i
}

var errFrozen = errors.New("nothing gets through")

// InProcessConn implements [nats.InProcessConnProvider]. There are no new connections
// while it is frozen, and one that is being made is made.
func (i *ice) InProcessConn() (net.Conn, error) {
	i.mu.Lock()
	frozen := i.frozen
	i.mu.Unlock()
	if frozen {
		return nil, errFrozen
	}
	raw, err := i.server.InProcessConn()
	if err != nil {
		return nil, err
	}
	c := &icyConn{Conn: raw, ice: i}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.conns[c] = struct{}{}
	return c, nil
}

// freeze stops everything. With cut, the connections break when it thaws, and what
// was written meanwhile, or was not read yet, never arrives.
func (i *ice) freeze(cut bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.frozen, i.cut = true, cut
}

// silence loses what is written from now on, though everything is still heard.
func (i *ice) silence() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.mute = true
}

// thaw lets everything go on, what was written first.
func (i *ice) thaw() {
	i.mu.Lock()
	defer i.thawed.Broadcast()
	defer i.mu.Unlock()
	for c := range i.conns {
		if i.cut {
			_ = c.Close()
			delete(i.conns, c)
			continue
		}
		_, _ = c.Conn.Write(c.pending) // the server reads; an error shows at the next write
		c.pending = nil
	}
	i.frozen = false
}

// icyConn never blocks a writer while it is frozen, nor a reader before the
// connection is made, since nats.go does both under a lock and a bubble's time stands
// still for those who wait for one.
type icyConn struct {
	net.Conn
	ice     *ice
	made    bool   // the server has answered the first ping; guarded by ice.mu
	pending []byte // written while frozen; guarded by ice.mu
}

func (c *icyConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.ice.mu.Lock()
	defer c.ice.mu.Unlock()
	made := c.made
	c.made = made || bytes.Contains(b[:n], []byte("PONG"))
	for c.ice.frozen && made && err == nil {
		c.ice.thawed.Wait()
		if c.ice.cut {
			return 0, net.ErrClosed
		}
	}
	return n, err
}

func (c *icyConn) Write(b []byte) (int, error) {
	c.ice.mu.Lock()
	defer c.ice.mu.Unlock()
	if c.ice.mute {
		return len(b), nil
	}
	if c.ice.frozen && c.made {
		c.pending = append(c.pending, b...)
		return len(b), nil
	}
	return c.Conn.Write(b)
}
