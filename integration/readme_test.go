package integration_test

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// block is a fenced block of the README. Its word after the language says what
// the test does with it: sh alone is run by a shell, "sh serve" starts programs
// that stay, "sh make" and "sh go" are compared with what they would run, "yaml
// NAME" is a file, go is compiled, http is sent.
type block struct{ language, word, text string }

func readme(t testing.TB) []block {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("..", "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	var blocks []block
	for _, m := range regexp.MustCompile("(?ms)^```([a-z]+) ?([a-z.]*)\n(.*?)^```$").FindAllStringSubmatch(string(raw), -1) {
		blocks = append(blocks, block{m[1], m[2], m[3]})
	}
	if len(blocks) < 10 {
		t.Fatalf("the README has %d marked blocks; the pattern is wrong", len(blocks))
	}
	return blocks
}

func (b block) lines() []string {
	return strings.FieldsFunc(b.text, func(r rune) bool { return r == '\n' })
}

// freeAddress is an address nobody listens on at this moment.
func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().String()
}

// TestReadmeCommands runs every command of the README, in its order, against
// what "make run" starts. Only addresses are replaced by free ones.
func TestReadmeCommands(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.Symlink(filepath.Dir(program(t, "apbus")), filepath.Join(dir, "bin")); err != nil {
		t.Fatal(err)
	}
	dev, api, natsURL := makeRun(t, dir)
	replace := strings.NewReplacer(
		"http://127.0.0.1:8420", api, "nats://127.0.0.1:4222", natsURL,
		"127.0.0.1:8421", freeAddress(t), "127.0.0.1:8422", freeAddress(t),
		"nats://127.0.0.1:4223", "nats://"+freeAddress(t), // the member of a cluster that is away
	)
	shell := func(script string) string {
		t.Helper()
		cmd := exec.Command("sh", "-e", "-c", script)
		cmd.Dir, cmd.Env = dir, append(cleanEnvironment(), "APBUS_ROUTER="+api)
		p := startCommand(t, "README", cmd)
		if code := p.exit(requestLimit); code != 0 {
			t.Errorf("exit code %d of\n%s\n%s", code, script, p.log())
		}
		return p.stdout()
	}

	var printed strings.Builder
	handled := map[string]int{}
	for _, b := range readme(t) {
		handled[b.language+" "+b.word]++
		switch b.language + " " + b.word {
		case "sh ":
			printed.WriteString(shell(replace.Replace(b.text)))
		case "sh serve":
			serve(t, dir, replace, b.lines())
		case "sh make":
			for _, line := range b.lines() {
				makesSense(t, line)
			}
		case "sh go":
			for _, line := range b.lines() {
				namesABenchmark(t, line)
			}
		case "http ":
			sendExample(t, api, b.text)
		case "yaml acl.yaml":
			if err := os.WriteFile(filepath.Join(dir, b.word), []byte(b.text), 0o600); err != nil {
				t.Fatal(err)
			}
		case "go ", "sh nats": // TestReadmeProgram, TestInteropReadme
		default:
			t.Errorf("nobody tests the README's block %q", b)
		}
	}
	for _, kind := range []string{"sh ", "sh serve", "sh make", "http ", "go ", "sh nats", "yaml acl.yaml"} {
		if handled[kind] == 0 {
			t.Errorf("the README has no block %q", kind)
		}
	}
	for _, want := range []string{`"charge_id"`, `"call_chain":["near.chain","far.chain","near.whoami"]`, "Charge 12.05 for order o1", "cancelling", `"sum":3`,
		`"word":"not"`, `"words":6`, "it waits", "Give back 5.00 of 5.00", `"refund_id"`, "input_validation"} {
		if !strings.Contains(strings.ReplaceAll(printed.String(), ", ", ","), want) {
			t.Errorf("the README's commands printed no %s:\n%s", want, printed.String())
		}
	}

	// What "make run" itself says to try.
	tried := 0
	for line := range strings.Lines(dev.stdout()) {
		if command := strings.TrimSpace(line); strings.Contains(command, "bin/apbus call ") {
			shell(command)
			tried++
		} else if m := regexp.MustCompile(`^curl -s (\S+)(/v1/\S+) -d '([^']*)'`).FindStringSubmatch(command); m != nil {
			sendExample(t, m[1], "POST "+m[2]+"\n"+m[3])
			tried++
		}
	}
	if tried != 3 {
		t.Errorf("make run names %d commands to try, want 3:\n%s", tried, dev.stdout())
	}
	for _, name := range []string{"caller.token", "reviewer.token", "tokens.yaml"} {
		info, err := os.Stat(filepath.Join(dir, ".apbus", name))
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v, want a file for its owner only", name, info, err)
		}
	}

	// Ctrl-C stops everything.
	dev.signal(syscall.SIGINT)
	if code := dev.exit(20*time.Second + slack); code != 0 {
		t.Errorf("make run ended with exit code %d", code)
	}
	if err := syscall.Kill(-dev.cmd.Process.Pid, 0); err == nil {
		t.Error("processes are left after Ctrl-C")
	}
}

// makeRun starts what "make run" starts after the build, on free ports.
func makeRun(t *testing.T, dir string) (dev *process, api, natsURL string) {
	t.Helper()
	steps := wouldMake(t, "run")
	args := strings.Fields(steps[len(steps)-1])
	if len(args) < 2 || args[0] != "bin/apbus" || args[1] != "dev" {
		t.Fatalf("make run ends with %q, want bin/apbus dev", args)
	}
	cmd := exec.Command(filepath.Join(dir, args[0]), append(args[1:], "--listen", "127.0.0.1:0", "--nats-listen", "127.0.0.1:0")...)
	cmd.Dir, cmd.Env = dir, cleanEnvironment()
	dev = startCommand(t, "make run", cmd)
	welcome := dev.line("Apbus is running at ")
	api = strings.TrimSpace(strings.TrimPrefix(welcome, "Apbus is running at "))
	dev.line("Ctrl-C ")
	m := regexp.MustCompile(`nats=(nats://\S+)`).FindStringSubmatch(dev.log())
	if m == nil || !strings.HasPrefix(api, "http://") {
		t.Fatalf("make run names no addresses:\n%s", dev.log())
	}
	return dev, api, m[1]
}

// wouldMake returns the commands of a target.
func wouldMake(t *testing.T, target string) []string {
	t.Helper()
	cmd := exec.Command("make", "--no-print-directory", "-n", target)
	cmd.Dir, cmd.Env = "..", cleanEnvironment()
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("make -n %s: %v\n%s", target, err, out)
	}
	return strings.Split(strings.TrimSpace(string(out)), "\n")
}

// makesSense checks a make command that would take too long, or run this test.
func makesSense(t *testing.T, line string) {
	t.Helper()
	target, isMake := strings.CutPrefix(line, "make ")
	want, known := map[string]string{"run": "bin/apbus dev", "test": "go test", "bench": "-bench"}[target]
	if !isMake || !known {
		t.Errorf("nobody tests the README's %q", line)
		return
	}
	if steps := strings.Join(wouldMake(t, target), "\n"); !strings.Contains(steps, want) {
		t.Errorf("make %s runs\n%s\nwant %s in it", target, steps, want)
	}
}

// namesABenchmark checks that a benchmark command selects one of this package.
func namesABenchmark(t *testing.T, line string) {
	t.Helper()
	m := regexp.MustCompile(`^go test \./integration .*-bench '([^']+)'`).FindStringSubmatch(line)
	if m == nil {
		t.Errorf("nobody tests the README's %q", line)
		return
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(self, "-test.list", m[1]).Output()
	if err != nil || !strings.HasPrefix(string(out), "Benchmark") {
		t.Errorf("%s selects %q, %v", line, out, err)
	}
}

// serve starts programs that stay until the end of the test.
func serve(t *testing.T, dir string, replace *strings.Replacer, lines []string) {
	t.Helper()
	for _, line := range lines {
		args := strings.Fields(replace.Replace(line))
		cmd := exec.Command(filepath.Join(dir, args[0]), args[1:]...)
		cmd.Dir, cmd.Env = dir, cleanEnvironment()
		startCommand(t, line, cmd).line(filepath.Base(args[0]) + ":")
	}
	// What was started must be known before the next command calls it.
	for _, line := range lines {
		m := regexp.MustCompile(`--listen (\S+:[1-9]\d*)`).FindStringSubmatch(replace.Replace(line))
		if m == nil {
			continue
		}
		s := newSystem(t)
		s.api = "http://" + m[1]
		if raw, err := os.ReadFile(filepath.Join(dir, ".apbus", "caller.token")); err == nil {
			s.token = strings.TrimSpace(string(raw))
		}
		eventually(t, startLimit, "the router of "+line+" knows math.add", func() bool {
			return s.get("/v1/modules/math.add").status == 200
		})
	}
}

// sendExample sends a request that is written as "POST path" and a body.
func sendExample(t *testing.T, api, text string) {
	t.Helper()
	head, body, _ := strings.Cut(text, "\n")
	method, path, _ := strings.Cut(head, " ")
	s := newSystem(t)
	s.api = api
	if a := s.do(method, path, body); a.status != 200 {
		t.Errorf("%s: %v", head, a)
	}
}

// TestReadmeAccessRule holds the README's rule to what is said about it.
func TestReadmeAccessRule(t *testing.T) {
	t.Parallel()
	blocks := readme(t)
	i := slices.IndexFunc(blocks, func(b block) bool { return b.word == "acl.yaml" })
	if i < 0 {
		t.Fatal("the README has no rules")
	}
	dir := t.TempDir()
	rules, tokens := filepath.Join(dir, "acl.yaml"), filepath.Join(dir, "tokens.yaml")
	if err := os.WriteFile(rules, []byte(blocks[i].text), 0o600); err != nil {
		t.Fatal(err)
	}
	writeTokens(t, tokens,
		[3]string{"right-role", `{id: ana, type: user, roles: [caller]}`, "call"},
		[3]string{"other-role", `{id: bob, type: user, roles: [buyer]}`, "call"})
	s := newSystem(t)
	s.token = "right-role"
	s.startRouter("--embed-listen", "127.0.0.1:0", "--data", filepath.Join(s.dir, "nats"), "--durability", "process-safe", "--tokens", tokens)
	n := s.startNode("n1", "math,demo", "--acl", rules)
	for _, tt := range []struct{ token, module, body, code string }{
		{"right-role", "math.add", `{"a":1,"b":2}`, ""},
		{"other-role", "math.add", `{"a":1,"b":2}`, "ACL_DENIED"},
		{"right-role", "demo.whoami", "", "ACL_DENIED"},
		// Past the router, on the bus itself, the node decides just the same.
		{"", "math.add", `{"a":1,"b":2}`, "ACL_DENIED"},
	} {
		var got string
		if tt.token == "" {
			m, err := s.request(n.direct("call", tt.module), nil, []byte(tt.body))
			if err != nil {
				t.Fatal(err)
			}
			got, _ = codeOf(m)
		} else {
			s.token = tt.token
			got = s.call(tt.module, tt.body).code()
		}
		if got != tt.code {
			t.Errorf("%s with %q: %q, want %q", tt.module, tt.token, got, tt.code)
		}
	}
}

// TestReadmeProgram compiles the README's Go and runs it: its worker answers its
// caller.
func TestReadmeProgram(t *testing.T) {
	t.Parallel()
	var source strings.Builder
	fmt.Fprintf(&source, "package main\n\nimport (\n")
	for _, path := range []string{"context", "fmt", "log", "strings"} {
		fmt.Fprintf(&source, "\t%q\n", path)
	}
	for _, path := range []string{"bus", "executor", "executor/registry", "module"} {
		fmt.Fprintf(&source, "\t%q\n", "github.com/apbus/apbus/"+path)
	}
	source.WriteString(`)

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func main() {
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); worker(ctx) }()
	conns, err := bus.Connect(ctx, bus.Options{Servers: []string{"nats://127.0.0.1:4222"}})
	check(err)
	client, err := bus.NewClient(conns, bus.ClientOptions{})
	check(err)
	check(client.WaitModule(ctx, "text.shout"))
	fmt.Println("heard:", caller(ctx).Loud)
	stop()
	<-done
}
`)
	parts := 0
	for _, b := range readme(t) {
		if b.language == "go" {
			source.WriteString("\n" + b.text)
			parts++
		}
	}
	if parts < 2 {
		t.Fatalf("%d pieces of Go in the README, want a worker and a caller", parts)
	}
	server := startServer(t)
	dir := t.TempDir()
	path, binary := filepath.Join(dir, "main.go"), filepath.Join(dir, "program")
	text := strings.ReplaceAll(source.String(), "nats://127.0.0.1:4222", server.url)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	build := exec.Command("go", "build", "-o", binary, path)
	build.Dir = ".."
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("the README's Go does not compile: %v\n%s", err, out)
	}
	p := startProcess(t, "README program", binary, nil)
	if code := p.exit(requestLimit); code != 0 || p.stdout() != "heard: TEA IS READY" {
		t.Errorf("exit code %d: %s", code, p.log())
	}
}
