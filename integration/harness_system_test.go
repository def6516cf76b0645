package integration_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
)

// system is a router and its nodes, as real processes on free ports, seen by one
// test. A subtest takes its own view with in.
type system struct {
	t testing.TB
	*installation
}

// in is the same system for a subtest: what fails there fails the subtest, what
// is started there ends with it.
func (s *system) in(t testing.TB) *system { return &system{t: t, installation: s.installation} }

// installation is what the views of a system share.
type installation struct {
	owner   testing.TB // the test that everything ends with
	dir     string
	effects string // what demo.effect appends to
	token   string // goes with every HTTP request unless empty
	router  *process
	api     string
	nats    string
	http    *http.Client

	mu   sync.Mutex
	conn *nats.Conn
	said []string // every answer that people and programs got
}

// node is one node process of a system.
type node struct {
	*process
	id, boot string
}

// runPlacement is what "make run" puts where.
const (
	groupsN1 = "math,text,demo,near,orders"
	groupsN2 = "math,demo,far,inventory,payments"
)

// newSystem prepares a system without processes.
func newSystem(t testing.TB) *system {
	t.Helper()
	dir := t.TempDir()
	s := &system{t: t, installation: &installation{
		owner: t, dir: dir, effects: filepath.Join(dir, "effects.log"), http: &http.Client{Transport: &http.Transport{}},
	}}
	t.Cleanup(s.http.CloseIdleConnections)
	return s
}

// startSystem starts a router with the embedded server.
func startSystem(t testing.TB, routerFlags ...string) *system {
	t.Helper()
	s := newSystem(t)
	s.startRouter(append([]string{
		"--embed-listen", "127.0.0.1:0", "--data", filepath.Join(s.dir, "nats"), "--durability", "process-safe",
	}, routerFlags...)...)
	return s
}

// startPair starts a router and two nodes with the placement of "make run".
func startPair(t testing.TB, routerFlags ...string) (s *system, n1, n2 *node) {
	t.Helper()
	s = startSystem(t, routerFlags...)
	nodes := s.startNodes([]string{"n1", groupsN1}, []string{"n2", groupsN2})
	return s, nodes[0], nodes[1]
}

// startRouter starts the router that the system's calls go to.
func (s *system) startRouter(flags ...string) *process {
	s.t.Helper()
	s.router = startProcess(s.t, "router", program(s.t, "apbus-router"), nil,
		append([]string{"--listen", "127.0.0.1:0", "--log-level", "debug"}, flags...)...)
	facts := s.router.facts("apbus-router:")
	s.api, s.nats = facts["http"], facts["nats"]
	if s.api == "" || s.nats == "" {
		s.t.Fatalf("the router's ready line lacks http or nats: %s", s.router.stdout())
	}
	return s.router
}

// startNodes starts nodes at the same time, each given as ID, example groups and
// further flags, and waits until the router knows them and their modules.
func (s *system) startNodes(specs ...[]string) []*node {
	s.t.Helper()
	nodes := make([]*node, len(specs))
	for i, spec := range specs {
		id, groups, flags := spec[0], spec[1], spec[2:]
		nodes[i] = &node{id: id, process: startProcess(s.t, id, program(s.t, "apbus-node"), nil, append([]string{
			"--nats", s.nats, "--id", id, "--examples=" + groups, "--effect-log", s.effects, "--log-level", "debug",
		}, flags...)...)}
	}
	for _, n := range nodes {
		if n.boot = n.facts("apbus-node:")["boot"]; n.boot == "" {
			s.t.Fatalf("the ready line of %s lacks boot: %s", n.id, n.stdout())
		}
	}
	for _, n := range nodes {
		s.waitKnown(n)
	}
	return nodes
}

func (s *system) startNode(id, groups string, flags ...string) *node {
	s.t.Helper()
	return s.startNodes(append([]string{id, groups}, flags...))[0]
}

// waitKnown waits until the router would send calls to every module of n.
func (s *system) waitKnown(n *node) {
	s.t.Helper()
	eventually(s.t, startLimit, "the router knows "+n.id+" and its modules", func() bool {
		hosted := map[string]bool{}
		for _, m := range list(s.get("/v1/nodes").doc, "nodes") {
			if m["node"] == n.id && m["boot"] == n.boot {
				for _, mod := range list(m, "modules") {
					hosted[fmt.Sprint(mod["id"])] = true
				}
			}
		}
		if len(hosted) == 0 {
			return false
		}
		for _, m := range list(s.get("/v1/modules").doc, "modules") {
			for _, h := range list(m, "hosts") {
				if h["boot"] == n.boot {
					delete(hosted, fmt.Sprint(m["module_id"]))
				}
			}
		}
		return len(hosted) == 0
	})
}

// list returns a list of objects.
func list(doc map[string]any, key string) []map[string]any {
	items, _ := doc[key].([]any)
	out := make([]map[string]any, 0, len(items))
	for _, item := range items {
		if m, ok := item.(map[string]any); ok {
			out = append(out, m)
		}
	}
	return out
}

// answer is what came back over HTTP.
type answer struct {
	status int
	header http.Header
	raw    string
	doc    map[string]any
}

// code is the code of the coded error in the answer.
func (a answer) code() string {
	e, _ := a.doc["error"].(map[string]any)
	code, _ := e["code"].(string)
	return code
}

// details are those of the coded error.
func (a answer) details() map[string]any {
	e, _ := a.doc["error"].(map[string]any)
	details, _ := e["details"].(map[string]any)
	return details
}

func (a answer) String() string { return fmt.Sprintf("%d %s", a.status, a.raw) }

// requestLimit bounds every request that a test does not bound itself.
const requestLimit = 60 * time.Second

// try makes a request. Headers are "Name: value".
func (s *system) try(ctx context.Context, method, path, body string, headers ...string) (answer, error) {
	ctx, stop := context.WithTimeoutCause(ctx, requestLimit, errors.New("no answer within the limit of the test"))
	defer stop()
	req, err := http.NewRequestWithContext(ctx, method, s.api+path, strings.NewReader(body))
	if err != nil {
		return answer{}, err
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	if s.token != "" {
		req.Header.Set("Authorization", "Bearer "+s.token)
	}
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		req.Header.Set(name, value)
	}
	res, err := s.http.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer func() { _ = res.Body.Close() }()
	raw, err := io.ReadAll(res.Body)
	a := answer{status: res.StatusCode, header: res.Header, raw: string(raw)}
	if err != nil {
		return a, err
	}
	if err := json.Unmarshal(raw, &a.doc); err != nil {
		return a, fmt.Errorf("%s %s answered no JSON object: %w: %s", method, path, err, raw)
	}
	s.remember(a.raw + fmt.Sprint(a.header))
	return a, nil
}

// do makes a request that must be answered.
func (s *system) do(method, path, body string, headers ...string) answer {
	s.t.Helper()
	a, err := s.try(s.t.Context(), method, path, body, headers...)
	if err != nil {
		s.t.Fatalf("%s %s: %v", method, path, err)
	}
	return a
}

func (s *system) get(path string) answer { s.t.Helper(); return s.do(http.MethodGet, path, "") }

// call calls a module over HTTP.
func (s *system) call(id, inputs string, headers ...string) answer {
	s.t.Helper()
	return s.do(http.MethodPost, "/v1/modules/"+id+"/call", inputs, headers...)
}

// calling is a call that goes on while the test does something else.
type calling struct {
	t      testing.TB
	answer chan answer
	failed chan error
	stop   context.CancelFunc
	start  time.Time
}

// begin makes a call over HTTP in the background. stop closes its connection.
func (s *system) begin(id, inputs string, headers ...string) *calling {
	s.t.Helper()
	ctx, stop := context.WithCancel(context.WithoutCancel(s.t.Context()))
	c := &calling{t: s.t, answer: make(chan answer, 1), failed: make(chan error, 1), stop: stop, start: time.Now()}
	go func() {
		a, err := s.try(ctx, http.MethodPost, "/v1/modules/"+id+"/call", inputs, headers...)
		if err != nil {
			c.failed <- err
			return
		}
		c.answer <- a
	}()
	s.t.Cleanup(stop)
	return c
}

// wait returns the answer, which must come within limit.
func (c *calling) wait(limit time.Duration) answer {
	c.t.Helper()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case a := <-c.answer:
		return a
	case err := <-c.failed:
		c.t.Fatalf("the call got no answer: %v", err)
	case <-timer.C:
		c.t.Fatalf("the call got no answer within %v", limit)
	}
	return answer{}
}

// detach makes a call that the router waits for, and returns its ID.
func (s *system) detach(id, inputs string, headers ...string) string {
	s.t.Helper()
	a := s.call(id, inputs, append(headers, "Prefer: respond-async")...)
	call, _ := a.doc["call"].(string)
	if a.status != http.StatusAccepted || call == "" || call != a.header.Get("Apbus-Call") {
		s.t.Fatalf("detached call of %s: %v", id, a)
	}
	return call
}

// calls lists the calls in flight.
func (s *system) calls() []map[string]any {
	s.t.Helper()
	a := s.get("/v1/calls")
	if a.status != http.StatusOK {
		s.t.Fatalf("list the calls: %v", a)
	}
	return list(a.doc, "calls")
}

// running waits until exactly the given modules are running and returns their
// records by module ID.
func (s *system) running(ids ...string) map[string]map[string]any {
	s.t.Helper()
	var found map[string]map[string]any
	eventually(s.t, startLimit, fmt.Sprintf("%q are running", ids), func() bool {
		found = map[string]map[string]any{}
		for _, c := range s.calls() {
			found[fmt.Sprint(c["module_id"])] = c
		}
		if len(found) != len(ids) {
			return false
		}
		for _, id := range ids {
			if found[id] == nil {
				return false
			}
		}
		return true
	})
	return found
}

// cli runs the command line to its end.
func (s *system) cli(args ...string) (stdout string, p *process) {
	s.t.Helper()
	p = s.startCLI(args...)
	p.exit(requestLimit)
	return p.stdout(), p
}

// startCLI starts the command line.
func (s *system) startCLI(args ...string) *process {
	s.t.Helper()
	env := []string{"APBUS_ROUTER=" + s.api}
	if s.token != "" {
		env = append(env, "APBUS_TOKEN="+s.token)
	}
	p := startProcess(s.t, "apbus "+strings.Join(args, " "), program(s.t, "apbus"), env, args...)
	s.t.Cleanup(func() { s.remember(p.log()) })
	return p
}

// peer is a connection to the system's NATS server that knows nothing of Apbus.
func (s *system) peer() *nats.Conn {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn == nil {
		nc, err := nats.Connect(s.nats, nats.MaxReconnects(-1), nats.ReconnectWait(100*time.Millisecond))
		if err != nil {
			s.t.Fatalf("connect to %s: %v", s.nats, err)
		}
		s.owner.Cleanup(nc.Close)
		s.conn = nc
	}
	return s.conn
}

// request sends a message and waits for the answer that ends it. On a busy machine a
// call gets an accept frame before, and a node that had no processor for a while sends
// back what came meanwhile: that is to be tried again.
func (s *system) request(subject string, header nats.Header, body []byte) (*nats.Msg, error) {
	s.t.Helper()
	for end := time.Now().Add(startLimit); ; {
		m, err := s.ask(subject, header, body)
		if err != nil {
			return nil, err
		}
		s.remember(string(m.Data) + fmt.Sprint(m.Header))
		if !strings.Contains(string(m.Data), "the node was away") || time.Now().After(end) {
			return m, nil
		}
	}
}

func (s *system) ask(subject string, header nats.Header, body []byte) (*nats.Msg, error) {
	inbox := nats.NewInbox()
	sub, err := s.peer().SubscribeSync(inbox)
	if err != nil {
		return nil, err
	}
	defer func() { _ = sub.Unsubscribe() }()
	if err := s.peer().PublishMsg(&nats.Msg{Subject: subject, Reply: inbox, Header: header, Data: body}); err != nil {
		return nil, err
	}
	for {
		m, err := sub.NextMsg(10 * time.Second)
		switch {
		case err != nil:
			return nil, err
		case len(m.Data) == 0 && m.Header.Get("Status") == "503":
			return nil, nats.ErrNoResponders
		case m.Header.Get("apbus-frame") != "accept":
			return m, nil
		}
	}
}

// subject is one of the control subjects of n.
func (n *node) subject(verb string) string {
	return "apbus.v1.node.default." + n.id + "." + n.boot + "." + verb
}

// direct is the subject of a directed call or check.
func (n *node) direct(kind, moduleID string) string {
	return "apbus.v1." + kind + ".default.@." + n.id + "." + n.boot + "." + moduleID
}

// stats asks n what it is doing.
func (s *system) stats(n *node) map[string]any {
	s.t.Helper()
	m, err := s.request(n.subject("stats"), nil, nil)
	if err != nil {
		s.t.Fatalf("stats of %s: %v", n.id, err)
	}
	var doc map[string]any
	if err := json.Unmarshal(m.Data, &doc); err != nil {
		s.t.Fatalf("stats of %s: %v: %s", n.id, err, m.Data)
	}
	return doc
}

// waitIdle waits until nothing runs on n, not even a module that outlived its
// call, and returns how long that took.
func (s *system) waitIdle(limit time.Duration, n *node) time.Duration {
	s.t.Helper()
	return eventually(s.t, limit, n.id+" is idle", func() bool {
		st := s.stats(n)
		return st["in_flight"] == 0.0 && st["waiting"] == 0.0 && st["debt"] == 0.0
	})
}

// effectLines are the effects that demo.effect had.
func (s *system) effectLines() []string {
	s.t.Helper()
	raw, err := os.ReadFile(s.effects)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		s.t.Fatal(err)
	}
	return strings.FieldsFunc(string(raw), func(r rune) bool { return r == '\n' })
}

// remember keeps what somebody outside got to see.
func (s *installation) remember(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.said = append(s.said, text)
}

// everythingSaid is what the processes wrote and what anybody was answered.
func (s *installation) everythingSaid() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Join(s.said, "\n")
}
