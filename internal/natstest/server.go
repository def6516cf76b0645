package natstest

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Options configures a server. The zero value is a server without a socket that
// does not sync its writes.
type Options struct {
	// TCP listens on a free port of this machine; not for use in a bubble.
	TCP bool
	// SyncAlways syncs every write, as a power-safe server does.
	SyncAlways bool
	// MaxStore limits JetStream's files in bytes.
	MaxStore int64
}

// Server is a server that may be down and come back. Stop it with Close, before
// the bubble ends; closing twice does nothing.
type Server struct {
	t   testing.TB
	o   Options
	dir string
	// A connection looks for the server that runs now, so that it finds its way
	// back after a restart.
	running atomic.Pointer[server.Server]
}

var _ nats.InProcessConnProvider = (*Server)(nil)

// New starts a server on an empty data directory of the test.
func New(t testing.TB, o Options) *Server {
	t.Helper()
	s := &Server{t: t, o: o, dir: t.TempDir()}
	s.Start()
	return s
}

// Start starts the server on its data; it must be down.
func (s *Server) Start() {
	s.t.Helper()
	opts := &server.Options{
		ServerName: "natstest", NoSigs: true, NoLog: true,
		JetStream: true, StoreDir: s.dir, SyncAlways: s.o.SyncAlways, JetStreamMaxStore: s.o.MaxStore,
		DontListen: !s.o.TCP,
	}
	if s.o.TCP {
		opts.Host, opts.Port = "127.0.0.1", server.RANDOM_PORT
	}
	s.running.Store(start(s.t, opts))
}

func start(t testing.TB, opts *server.Options) *server.Server {
	t.Helper()
	srv, err := server.NewServer(opts)
	if err != nil {
		t.Fatalf("nats-server: %v", err)
	}
	srv.Start()
	if !srv.ReadyForConnections(30 * time.Second) {
		srv.Shutdown()
		t.Fatal("nats-server did not become ready")
	}
	return srv
}

// Stop stops the server and keeps its data.
func (s *Server) Stop() {
	if srv := s.running.Swap(nil); srv != nil {
		srv.Shutdown()
		srv.WaitForShutdown()
	}
}

// Restart stops the server and starts it on what it had stored.
func (s *Server) Restart() {
	s.t.Helper()
	s.Stop()
	s.Start()
}

// Close stops the server for good.
func (s *Server) Close() { s.Stop() }

// CopyData copies the data directory as it is now, which is what a machine that
// loses its power at this moment may find; nothing may be written meanwhile.
func (s *Server) CopyData() string {
	s.t.Helper()
	to := s.t.TempDir()
	if err := copyTree(s.dir, to); err != nil {
		s.t.Fatalf("copy the data: %v", err)
	}
	return to
}

// RestartFrom stops the server and starts it on another data directory.
func (s *Server) RestartFrom(dir string) {
	s.t.Helper()
	s.Stop()
	s.dir = dir
	s.Start()
}

// copyTree copies files that may vanish while it does.
func copyTree(from, to string) error {
	return filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		target := filepath.Join(to, rel)
		if d.IsDir() {
			return os.MkdirAll(target, 0o700)
		}
		data, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		return os.WriteFile(target, data, 0o600)
	})
}

// errDown is what connecting to a stopped server ends with.
var errDown = errors.New("the server is down")

// InProcessConn implements [nats.InProcessConnProvider].
func (s *Server) InProcessConn() (net.Conn, error) {
	srv := s.running.Load()
	if srv == nil {
		return nil, errDown
	}
	return srv.InProcessConn()
}

// Connect opens a connection that reconnects for ever. It is the caller's to
// close; outside a bubble the end of the test does so too.
func (s *Server) Connect(opts ...nats.Option) *nats.Conn {
	s.t.Helper()
	all := append([]nats.Option{
		nats.InProcessServer(s), nats.MaxReconnects(-1), nats.ReconnectWait(50 * time.Millisecond),
		nats.ReconnectJitter(0, 0), nats.Timeout(5 * time.Second),
	}, opts...)
	nc, err := nats.Connect("", all...)
	if err != nil {
		s.t.Fatalf("connect: %v", err)
	}
	s.t.Cleanup(nc.Close)
	return nc
}

// JetStream opens a connection and JetStream on it.
func (s *Server) JetStream(opts ...nats.Option) jetstream.JetStream {
	s.t.Helper()
	js, err := jetstream.New(s.Connect(opts...))
	if err != nil {
		s.t.Fatalf("jetstream: %v", err)
	}
	return js
}

// URL is where other processes connect, with TCP.
func (s *Server) URL() string {
	if srv := s.running.Load(); srv != nil {
		return srv.ClientURL()
	}
	return ""
}
