package integration_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// proverb is 9 words and 44 bytes with its newline.
const proverb = "the quick brown fox jumps over the lazy dog\n"

// bigText is a text of about n bytes and what text.wordcount says of it, without
// the most frequent words.
func bigText(n int) (text string, words, lines, bytes float64) {
	times := n/len(proverb) + 1
	text = strings.Repeat(proverb, times)
	return text, float64(9 * times), float64(times), float64(len(text))
}

// wantCounts checks the output of text.wordcount for bigText(n).
func wantCounts(t testing.TB, what string, doc map[string]any, n int) {
	t.Helper()
	_, words, lines, bytes := bigText(n)
	if doc["words"] != words || doc["lines"] != lines || doc["bytes"] != bytes {
		t.Errorf("%s: words %v, lines %v, bytes %v, want %v, %v, %v", what, doc["words"], doc["lines"], doc["bytes"], words, lines, bytes)
	}
	top, _ := doc["top"].([]any)
	if len(top) == 0 || fmt.Sprint(top[0]) != fmt.Sprint(map[string]any{"word": "the", "count": 2 * lines}) {
		t.Errorf("%s: top %v", what, top)
	}
}

// textFile writes the inputs of text.wordcount to a file.
func (s *system) textFile(n int) string {
	s.t.Helper()
	text, _, _, _ := bigText(n)
	path := filepath.Join(s.t.TempDir(), "text.json")
	if err := os.WriteFile(path, []byte(inputsOf(s.t, text)), 0o600); err != nil {
		s.t.Fatal(err)
	}
	return path
}

func inputsOf(t testing.TB, text string) string {
	t.Helper()
	raw, err := json.Marshal(map[string]any{"text": text})
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

// bodiesLeft counts the messages in the object store of large bodies, now and
// ever.
func (s *system) bodiesLeft() (left, ever uint64) {
	s.t.Helper()
	js, err := jetstream.New(s.peer())
	if err != nil {
		s.t.Fatal(err)
	}
	ctx, stop := context.WithTimeout(s.t.Context(), 10*time.Second)
	defer stop()
	stream, err := js.Stream(ctx, "OBJ_APBUS_BLOBS")
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return 0, 0
	}
	if err != nil {
		s.t.Fatal(err)
	}
	state := stream.CachedInfo().State
	return state.Msgs, state.LastSeq
}

// waitNoBodies waits until the object store is empty.
func (s *system) waitNoBodies(limit time.Duration) {
	s.t.Helper()
	eventually(s.t, limit, "the object store is empty", func() bool {
		left, _ := s.bodiesLeft()
		return left == 0
	})
}

// TestLargeText counts 20 MB from everywhere.
func TestLargeText(t *testing.T) {
	t.Parallel()
	s := startSystem(t)
	s.startNodes([]string{"n1", "text,near"}, []string{"n2", "far"})
	const size = 20_000_000
	text, _, _, _ := bigText(size)
	inputs := inputsOf(t, text)
	file := s.textFile(size)
	parse := func(what, out string) map[string]any {
		t.Helper()
		var doc map[string]any
		if err := json.Unmarshal([]byte(out), &doc); err != nil {
			t.Errorf("%s: %v: %.300q", what, err, out)
		}
		return doc
	}

	a := s.call("text.wordcount", inputs)
	if a.status != http.StatusOK {
		t.Errorf("HTTP: %.300s", a)
	}
	wantCounts(t, "HTTP", a.doc, size)
	if _, ever := s.bodiesLeft(); ever == 0 {
		t.Error("20 MB did not go through the object store")
	}
	for what, args := range map[string][]string{
		"CLI, a file through the router":      {"call", "text.wordcount", "--json", "--input", "@" + file},
		"CLI, a file through the bus":         {"call", "text.wordcount", "--json", "--input", "@" + file, "--nats", s.nats},
		"CLI, standard input":                 {"call", "text.wordcount", "--json", "--input", "-"},
		"CLI, standard input through the bus": {"call", "text.wordcount", "--json", "--input", "-", "--nats", s.nats},
	} {
		p := s.startCLIWith(inputs, args...)
		if code := p.exit(requestLimit); code != 0 {
			t.Errorf("%s: exit code %d: %.500s", what, code, p.log())
			continue
		}
		wantCounts(t, what, parse(what, p.stdout()), size)
	}
	// Module to module: far.chain on n2 calls text.wordcount on n1.
	a = s.call("far.chain", `{"path":["text.wordcount"],"input":`+inputs+`}`)
	last, _ := a.doc["last"].(map[string]any)
	wantCounts(t, "another node", last, size)
	s.waitNoBodies(5*time.Second + slack)
}

// startCLIWith starts the command line with a standard input.
func (s *system) startCLIWith(stdin string, args ...string) *process {
	s.t.Helper()
	cmd := exec.Command(program(s.t, "apbus"), args...)
	cmd.Env = append(cleanEnvironment(), "APBUS_ROUTER="+s.api)
	cmd.Stdin = strings.NewReader(stdin)
	return startCommand(s.t, "apbus "+strings.Join(args, " "), cmd)
}

// counter counts what is read.
type counter struct {
	r io.Reader
	n atomic.Int64
}

func (c *counter) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n.Add(int64(n))
	return n, err
}

// TestTooLargeTextIsRefusedAtOnce sends 100 MB where 64 MiB are the limit.
func TestTooLargeTextIsRefusedAtOnce(t *testing.T) {
	t.Parallel()
	s := startSystem(t)
	n := s.startNode("n1", "text")
	const size, limit = 100_000_000, float64(64 << 20)
	file := s.textFile(size)
	info, err := os.Stat(file)
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	sent := &counter{r: f}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.api+"/v1/modules/text.wordcount/call", sent)
	if err != nil {
		t.Fatal(err)
	}
	req.ContentLength = info.Size()
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Expect", "100-continue")
	res, err := (&http.Client{Transport: &http.Transport{ExpectContinueTimeout: 10 * time.Second, DisableKeepAlives: true}}).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	var a answer
	a.status = res.StatusCode
	if err := json.NewDecoder(res.Body).Decode(&a.doc); err != nil {
		t.Fatal(err)
	}
	if a.status != http.StatusRequestEntityTooLarge || a.code() != "BUS_PAYLOAD_TOO_LARGE" || a.details()["size"] != float64(info.Size()) || a.details()["limit"] != limit {
		t.Errorf("HTTP: %d, %s, details %v", a.status, a.code(), a.details())
	}
	if n := sent.n.Load(); n > 1<<20 {
		t.Errorf("%d bytes were sent to be refused", n)
	}
	for what, args := range map[string][]string{
		"through the router": {"call", "text.wordcount", "--json", "--input", "@" + file},
		"through the bus":    {"call", "text.wordcount", "--json", "--input", "@" + file, "--nats", s.nats},
	} {
		p := s.startCLI(args...)
		if code := p.exit(requestLimit); code != 1 || !strings.Contains(p.log(), "BUS_PAYLOAD_TOO_LARGE") {
			t.Errorf("%s: exit code %d: %.500s", what, code, p.log())
		}
		if log := p.log(); !strings.Contains(log, fmt.Sprint(info.Size())) || !strings.Contains(log, "67108864") {
			t.Errorf("%s: the error names no size and limit: %.500s", what, log)
		}
	}
	if left, ever := s.bodiesLeft(); left != 0 || ever != 0 {
		t.Errorf("%d messages in the object store, %d ever", left, ever)
	}
	s.waitIdle(cancelLimit, n)
}

// TestKillsLeaveNoBodies kills callers and owners of large bodies.
func TestKillsLeaveNoBodies(t *testing.T) {
	t.Parallel()
	s := startSystem(t)
	nodes := s.startNodes([]string{"n1", "near"}, []string{"n2", "far"})
	// far.chain holds the large input while near.sleep, which ignores its own, runs.
	text, _, _, _ := bigText(4_000_000)
	inputs := `{"path":["near.chain","near.sleep"],"input":{"ms":60000},"note":"` + strings.ReplaceAll(text, "\n", " ") + `"}`
	held := func() uint64 { left, _ := s.bodiesLeft(); return left }

	p := s.startCLIWith(inputs, "call", "far.chain", "--input", "-", "--nats", s.nats)
	eventually(t, startLimit, "a body is stored", func() bool { return held() > 0 })
	p.signal(syscall.SIGKILL)
	s.waitNoBodies(15*time.Second + slack)
	s.waitIdle(cancelLimit+5*time.Second, nodes[0])

	c := s.begin("far.chain", inputs)
	eventually(t, startLimit, "a body is stored", func() bool { return held() > 0 })
	nodes[1].signal(syscall.SIGKILL)
	if a := c.wait(10*time.Second + slack); a.status == http.StatusOK {
		t.Errorf("the call to a killed node: %.300s", a)
	}
	s.waitNoBodies(15*time.Second + slack)
}
