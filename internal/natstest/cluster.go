package natstest

import (
	"fmt"
	"net"
	"net/url"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// clusterSize is how many servers a quorum of two can lose one of.
const clusterSize = 3

// Cluster is three servers of this process that replicate. Real time only.
type Cluster struct {
	t       testing.TB
	servers []*server.Server
}

// NewCluster starts three servers and waits until they have a leader. They stop
// with the test.
func NewCluster(t testing.TB) *Cluster {
	t.Helper()
	c := &Cluster{t: t}
	ports := freePorts(t, clusterSize)
	routes := make([]*url.URL, clusterSize)
	for i, port := range ports {
		routes[i] = &url.URL{Scheme: "nats", Host: fmt.Sprintf("127.0.0.1:%d", port)}
	}
	for i := range clusterSize {
		opts := &server.Options{
			ServerName: fmt.Sprintf("natstest-%d", i), NoSigs: true, NoLog: true,
			Host: "127.0.0.1", Port: server.RANDOM_PORT,
			JetStream: true, StoreDir: t.TempDir(),
			Cluster: server.ClusterOpts{Name: "natstest", Host: "127.0.0.1", Port: ports[i]},
			Routes:  routes,
		}
		srv, err := server.NewServer(opts)
		if err != nil {
			t.Fatalf("nats-server %d: %v", i, err)
		}
		t.Cleanup(func() { srv.Shutdown(); srv.WaitForShutdown() })
		srv.Start()
		c.servers = append(c.servers, srv)
	}
	deadline := time.After(30 * time.Second)
	for _, srv := range c.servers {
		if !srv.ReadyForConnections(30 * time.Second) {
			t.Fatal("a nats-server of the cluster did not become ready")
		}
	}
	for !c.settled() {
		select {
		case <-deadline:
			t.Fatal("the cluster has no leader")
		case <-time.After(20 * time.Millisecond):
		}
	}
	return c
}

func (c *Cluster) settled() bool {
	leader := false
	for _, srv := range c.servers {
		if !srv.JetStreamIsCurrent() {
			return false
		}
		// Until its leader has heard of every server, it has no place for three replicas.
		leader = leader || srv.JetStreamIsLeader() && len(srv.JetStreamClusterPeers()) == len(c.servers)
	}
	return leader
}

// freePorts finds ports that nobody listens on at the moment.
func freePorts(t testing.TB, n int) []int {
	t.Helper()
	ports := make([]int, n)
	for i := range ports {
		l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // closed with the function
		if err != nil {
			t.Fatalf("find a free port: %v", err)
		}
		defer func() { _ = l.Close() }()
		addr, ok := l.Addr().(*net.TCPAddr)
		if !ok {
			t.Fatalf("listening on %v", l.Addr())
		}
		ports[i] = addr.Port
	}
	return ports
}

// JetStream opens a connection that knows all servers.
func (c *Cluster) JetStream() jetstream.JetStream {
	c.t.Helper()
	urls := ""
	for i, srv := range c.servers {
		if i > 0 {
			urls += ","
		}
		urls += srv.ClientURL()
	}
	nc, err := nats.Connect(urls, nats.MaxReconnects(-1), nats.ReconnectWait(50*time.Millisecond))
	if err != nil {
		c.t.Fatalf("connect: %v", err)
	}
	c.t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		c.t.Fatalf("jetstream: %v", err)
	}
	return js
}

// URLs are where the servers can be reached, one for each.
func (c *Cluster) URLs() []string {
	urls := make([]string, len(c.servers))
	for i, srv := range c.servers {
		urls[i] = srv.ClientURL()
	}
	return urls
}

// Stop stops the server of that number.
func (c *Cluster) Stop(i int) {
	c.servers[i].Shutdown()
	c.servers[i].WaitForShutdown()
}

// StopLeader stops the server that leads the stream, and returns its name.
func (c *Cluster) StopLeader(stream string) string {
	c.t.Helper()
	for _, srv := range c.servers {
		if srv.JetStreamIsStreamLeader(server.DEFAULT_GLOBAL_ACCOUNT, stream) {
			srv.Shutdown()
			srv.WaitForShutdown()
			return srv.Name()
		}
	}
	c.t.Fatalf("nobody leads stream %s", stream)
	return ""
}
