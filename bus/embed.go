package bus

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/apbus/apbus/module"
)

// EmbedOptions configures an embedded nats-server with JetStream.
type EmbedOptions struct {
	// Listen is host:port; 127.0.0.1:4222 when empty, port 0 picks a free one.
	Listen string
	// NoListen serves this process only, through Server.
	NoListen bool
	// DataDir holds JetStream's files and is locked. A fresh temporary
	// directory, removed on Shutdown, when empty.
	DataDir string
	// PowerSafe syncs every write, so that what was acknowledged survives power
	// loss.
	PowerSafe bool
	// Logger receives the server's warnings and errors; slog.Default() when nil.
	Logger *slog.Logger
}

// Embedded is a running nats-server inside this process.
type Embedded struct {
	server *server.Server
	lock   *os.File
	remove string
}

// StartEmbedded starts a server and waits until it takes connections. A busy
// port and a data directory in use are errors that say so.
func StartEmbedded(o EmbedOptions) (*Embedded, error) {
	e := &Embedded{}
	if err := e.openDir(&o); err != nil {
		return nil, err
	}
	opts := &server.Options{
		ServerName: "apbus-embedded", NoSigs: true, NoLog: o.Logger == nil,
		JetStream: true, StoreDir: o.DataDir, SyncAlways: o.PowerSafe, DontListen: o.NoListen,
	}
	if !o.NoListen {
		host, port, err := listenAddress(o.Listen)
		if err != nil {
			e.release()
			return nil, err
		}
		opts.Host, opts.Port = host, port
	}
	s, err := server.NewServer(opts)
	if err != nil {
		e.release()
		return nil, module.Errorf(module.CodeConfigInvalid, "embedded nats-server: %w", err)
	}
	if o.Logger != nil {
		s.SetLogger(serverLog{o.Logger}, false, false)
	}
	s.Start()
	if !s.ReadyForConnections(10 * time.Second) {
		s.Shutdown()
		e.release()
		return nil, module.Errorf(module.CodeConfigInvalid, "embedded nats-server did not become ready")
	}
	e.server = s
	return e, nil
}

// listenAddress splits host:port and makes sure that the port is free, since
// the server itself ends the process when it is not.
func listenAddress(listen string) (string, int, error) {
	if listen == "" {
		listen = "127.0.0.1:4222"
	}
	host, portText, err := net.SplitHostPort(listen)
	if err != nil {
		return "", 0, module.Errorf(module.CodeConfigInvalid, "NATS listen address %q: %w", listen, err)
	}
	port, err := strconv.Atoi(portText)
	if err != nil || port > 65535 {
		return "", 0, module.Errorf(module.CodeConfigInvalid, "NATS listen address %q: the port is not a number up to 65535", listen)
	}
	if port <= 0 {
		return host, server.RANDOM_PORT, nil
	}
	l, err := net.Listen("tcp", listen) //nolint:noctx // closed at once
	if err != nil {
		return "", 0, module.Errorf(module.CodeConfigInvalid, "cannot listen on %s for NATS: %w", listen, err)
	}
	if err := l.Close(); err != nil {
		return "", 0, fmt.Errorf("probe %s: %w", listen, err)
	}
	return host, port, nil
}

func (e *Embedded) openDir(o *EmbedOptions) error {
	if o.DataDir == "" {
		dir, err := os.MkdirTemp("", "apbus-nats-")
		if err != nil {
			return fmt.Errorf("data directory: %w", err)
		}
		o.DataDir, e.remove = dir, dir
	}
	if err := os.MkdirAll(o.DataDir, 0o700); err != nil {
		return module.Errorf(module.CodeConfigInvalid, "data directory: %w", err)
	}
	path := filepath.Join(o.DataDir, "lock")
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return module.Errorf(module.CodeConfigInvalid, "data directory: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = f.Close() // the lock is what failed
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return module.Errorf(module.CodeConfigInvalid, "data directory %s is in use by another process", o.DataDir)
		}
		return module.Errorf(module.CodeConfigInvalid, "lock %s: %w", path, err)
	}
	e.lock = f
	return nil
}

// release gives the directory back.
func (e *Embedded) release() {
	if e.lock != nil {
		_ = e.lock.Close() // closing drops the lock
	}
	if e.remove != "" {
		_ = os.RemoveAll(e.remove) // a leftover temporary directory harms nobody
	}
}

// URL is where clients connect, empty with NoListen.
func (e *Embedded) URL() string {
	if addr, ok := e.server.Addr().(*net.TCPAddr); ok {
		return "nats://" + addr.String()
	}
	return ""
}

// Server is the server itself, to connect to without a socket.
func (e *Embedded) Server() *server.Server { return e.server }

// Shutdown stops the server, waits for it, and gives the data directory back.
func (e *Embedded) Shutdown() {
	e.server.Shutdown()
	e.server.WaitForShutdown()
	e.release()
}

// serverLog passes on what an operator must see of the server's log.
type serverLog struct{ log *slog.Logger }

func (l serverLog) Noticef(string, ...any) {}
func (l serverLog) Debugf(string, ...any)  {}
func (l serverLog) Tracef(string, ...any)  {}
func (l serverLog) Warnf(f string, a ...any) {
	l.log.Warn("nats-server", "text", fmt.Sprintf(f, a...))
}
func (l serverLog) Errorf(f string, a ...any) {
	l.log.Error("nats-server", "text", fmt.Sprintf(f, a...))
}
func (l serverLog) Fatalf(f string, a ...any) {
	l.log.Error("nats-server", "text", fmt.Sprintf(f, a...))
}
