package integration_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/apbus/apbus/jetstream"
	"github.com/apbus/apbus/module"
	"github.com/apbus/apbus/task"
)

var (
	chaosSeed  = flag.Uint64("chaos.seed", 0, "what the chaos tests do; 0 is something new each time")
	chaosTasks = flag.Int("chaos.tasks", 2000, "how many tasks the chaos test submits")
)

// chaosLease is the lease of the tasks in chaos.
const chaosLease = 2 * time.Second

// chaosSpan is roughly how long the load goes on: with more tasks they come faster.
func chaosSpan() time.Duration {
	return min(max(8*time.Second, time.Duration(*chaosTasks)*1500*time.Microsecond), 45*time.Second)
}

// part is a process that chaos befalls: a router, the one with the server, or a node.
type part struct {
	*process
	wire  *wire // nil for the router with the server
	start func()
	api   atomic.Pointer[string] // of a router
	boot  string                 // of a node
	until time.Time              // the fault it has now is over
	mend  func()                 // and this ends it
}

// chaos is a system in trouble.
type chaos struct {
	*system
	rng     *rand.Rand
	server  *part
	routers []*part // the one with the server is the first
	nodes   []*part
	faults  map[string]int
	client  *jetstream.TaskClient
	web     *http.Client
}

// startChaos starts a router with the server, two routers and three nodes, each
// with a wire of its own to the server.
func startChaos(t *testing.T, seed uint64) *chaos {
	t.Helper()
	c := &chaos{
		system: newSystem(t), rng: rand.New(rand.NewPCG(seed, 0)), faults: map[string]int{},
		web: &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: 32}},
	}
	t.Cleanup(c.web.CloseIdleConnections)
	c.server = &part{}
	listen := "127.0.0.1:0"
	c.server.start = func() {
		p := c.launch("server", "apbus-router", "--listen", "127.0.0.1:0", "--embed-listen", listen,
			"--data", filepath.Join(c.dir, "nats"), "--durability", "process-safe", "--task-lease", chaosLease.String())
		facts := p.facts("apbus-router:")
		c.nats = facts["nats"]
		listen = strings.TrimPrefix(c.nats, "nats://")
		api := facts["http"]
		c.server.process = p
		c.server.api.Store(&api)
	}
	c.server.start()
	c.routers = append(c.routers, c.server)
	for i := range 2 {
		r := &part{wire: newWire(t, listen)}
		r.start = func() {
			p := c.launch(fmt.Sprint("router", i+1), "apbus-router", "--listen", "127.0.0.1:0", "--nats", r.wire.url(), "--task-lease", chaosLease.String())
			api := p.facts("apbus-router:")["http"]
			r.process = p
			r.api.Store(&api)
		}
		r.start()
		c.routers = append(c.routers, r)
	}
	for i := range 3 {
		n := &part{wire: newWire(t, listen)}
		id := fmt.Sprint("n", i+1)
		n.start = func() {
			n.process = c.launch(id, "apbus-node", "--nats", n.wire.url(), "--id", id, "--examples=math,demo",
				"--effect-log", c.effects, "--task-slots", "16")
			n.boot = n.facts("apbus-node:")["boot"]
		}
		n.start()
		c.nodes = append(c.nodes, n)
	}
	c.client = taskClient(t, c.nats)
	return c
}

func (c *chaos) launch(name, binary string, args ...string) *process {
	c.t.Helper()
	return startProcess(c.t, name, program(c.t, binary), nil, args...)
}

// befall does one of the things that happen.
func (c *chaos) befall() {
	c.t.Helper()
	var whole []*part
	for _, p := range append(append([]*part{}, c.routers...), c.nodes...) {
		if p.mend == nil {
			whole = append(whole, p)
		}
	}
	p := whole[c.rng.IntN(len(whole))]
	millis := func(from, to int) time.Duration { return time.Duration(from+c.rng.IntN(to-from)) * time.Millisecond }
	kinds := []string{"kill", "kill", "freeze", "stall", "cut"}
	if p == c.server {
		kinds = []string{"kill", "kill", "freeze"}
	}
	kind := kinds[c.rng.IntN(len(kinds))]
	if len(c.faults) == 0 { // whatever the seed, the server is killed under the load
		p, kind = c.server, "kill"
	}
	// Past the lease of what it does, and sometimes not.
	d := millis(200, 2*int(chaosLease.Milliseconds()))
	if p == c.server {
		d /= 2
	}
	switch kind {
	case "kill":
		p.kill()
		p.mend = p.start
		d = millis(50, 1000)
	case "freeze":
		p.freeze()
		p.mend = p.thaw
	case "stall":
		p.wire.stall()
		p.mend = p.wire.heal
	case "cut":
		p.wire.cut()
		p.mend = p.wire.heal
	}
	p.until = time.Now().Add(d)
	c.faults[kind+" of a "+strings.TrimRight(p.name, "0123456789")]++
	c.t.Logf("%s: %s for %v", p.name, kind, d)
}

// mendDue ends the faults whose time is over, all of them with all set, and says how
// many there still are.
func (c *chaos) mendDue(all bool) (left int) {
	c.t.Helper()
	// The server comes first: nothing else starts without it.
	for _, p := range append(append([]*part{}, c.routers...), c.nodes...) {
		if p.mend == nil {
			continue
		}
		if !all && time.Now().Before(p.until) || p != c.server && c.server.mend != nil {
			left++
			continue
		}
		mend := p.mend
		p.mend = nil
		mend()
	}
	return left
}

// job is a task that was acknowledged.
type job struct {
	module, key string
	retry       bool
}

// submissions is a load that tells which tasks were acknowledged.
type submissions struct {
	c    *chaos
	wg   sync.WaitGroup
	left atomic.Int64

	mu   sync.Mutex
	jobs map[string]job // by task ID
}

// submit has callers submit n tasks over HTTP, each until it is acknowledged.
func (c *chaos) submit(ctx context.Context, n int, seed uint64) *submissions {
	const callers, batch = 8, 10
	s := &submissions{c: c, jobs: map[string]job{}}
	s.left.Store(int64(n))
	// The load lasts about as long as the faults do.
	pause := 2 * chaosSpan() * callers * batch / time.Duration(n)
	for w := range callers {
		rng := rand.New(rand.NewPCG(seed, uint64(w+1)))
		s.wg.Go(func() {
			for round := 0; ctx.Err() == nil; round++ {
				if s.left.Add(-batch) < 0 {
					return
				}
				s.batch(ctx, rng, fmt.Sprintf("%d-%d", w, round), batch)
				<-time.After(time.Duration(rng.Int64N(int64(pause) + 1)))
			}
		})
	}
	return s
}

func (s *submissions) batch(ctx context.Context, rng *rand.Rand, name string, n int) {
	jobs := make([]job, n)
	subs := make([]task.Submission, n)
	for i := range jobs {
		key := fmt.Sprintf("%s-%d", name, i)
		j := job{key: key}
		var in string
		switch k := rng.IntN(10); {
		case k < 4:
			j.module, in = "math.add", fmt.Sprintf(`{"a":%d,"b":1}`, i)
		case k < 6:
			j.module, in = "demo.sleep", fmt.Sprintf(`{"ms":%d}`, rng.IntN(100))
		default:
			j.module, in, j.retry = "demo.effect", fmt.Sprintf(`{"key":%q,"ms":%d}`, key, rng.IntN(100)), k == 9
		}
		jobs[i] = j
		subs[i] = task.Submission{ModuleID: j.module, Inputs: json.RawMessage(in), IdempotencyKey: key}
		if j.retry {
			subs[i].OnCrash = task.CrashRetry
		}
	}
	body, err := json.Marshal(map[string]any{"tasks": subs})
	if err != nil {
		s.c.t.Error(err)
		return
	}
	for ctx.Err() == nil {
		receipts := s.c.post(ctx, *s.c.routers[rng.IntN(len(s.c.routers))].api.Load(), body)
		done := len(receipts) == n
		s.mu.Lock()
		for i, r := range receipts {
			if r.Error != nil || r.TaskID == "" {
				s.c.t.Errorf("task %s was refused: %v", jobs[i].key, r.Error)
				continue
			}
			s.jobs[r.TaskID] = jobs[i]
		}
		s.mu.Unlock()
		if done {
			return
		}
		<-time.After(50 * time.Millisecond)
	}
}

// post submits at one router; nil when it did not say that everything is durable.
func (c *chaos) post(ctx context.Context, api string, body []byte) []task.Verdict {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, api+"/v1/tasks", bytes.NewReader(body))
	if err != nil {
		return nil
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := c.web.Do(req)
	if err != nil {
		return nil
	}
	defer func() { _ = res.Body.Close() }()
	raw, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != http.StatusAccepted {
		return nil
	}
	var answer task.SubmitAnswer
	if json.Unmarshal(raw, &answer) != nil {
		return nil
	}
	return answer.Receipts
}

// all reads every task there is.
func (c *chaos) all(ctx context.Context) (map[string]task.Record, error) {
	seen := map[string]task.Record{}
	for cursor := ""; ; {
		page, err := c.client.List(ctx, task.ListRequest{Cursor: cursor, Limit: 200})
		if err != nil {
			return nil, err
		}
		for _, r := range page.Tasks {
			seen[r.TaskID] = r
		}
		if cursor = page.Cursor; cursor == "" {
			return seen, nil
		}
	}
}

// witness remembers the end of every task as it was first seen.
type witness struct {
	mu   sync.Mutex
	ends map[string]task.Record
}

func (w *witness) look(ctx context.Context, c *chaos) {
	for ctx.Err() == nil {
		began := time.Now()
		if seen, err := c.all(ctx); err == nil {
			w.mu.Lock()
			for id, r := range seen {
				if _, known := w.ends[id]; !known && r.Status.Terminal() {
					w.ends[id] = r
				}
			}
			w.mu.Unlock()
		}
		select {
		case <-ctx.Done():
		case <-time.After(max(time.Second, 3*time.Since(began))): // it is not the load
		}
	}
}

// TestChaos submits tasks over HTTP while the processes of the system are killed,
// frozen past their leases and thawed, and cut off from the server. Every task that
// was acknowledged ends, once; those that may run twice complete; an effect that may
// be had only once never is had twice without anybody's knowing.
func TestChaos(t *testing.T) {
	t.Parallel()
	seed := *chaosSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("seed %d: go test ./integration -run TestChaos -chaos.seed %d -chaos.tasks %d", seed, seed, *chaosTasks)
	c := startChaos(t, seed)
	ctx, stop := context.WithCancelCause(t.Context())
	defer stop(nil)
	load := c.submit(ctx, *chaosTasks, seed)
	seen := &witness{ends: map[string]task.Record{}}
	watching, blind := context.WithCancelCause(ctx)
	var watch sync.WaitGroup
	watch.Go(func() { seen.look(watching, c) })

	// Ten faults at least, at most two at a time, and on until all is submitted, but not
	// for much longer than that should take: what is left then comes undisturbed.
	began := time.Now()
	for n := 0; n < 10 || load.left.Load() > 0; {
		if n >= 10 && time.Since(began) > 3*chaosSpan()/2 {
			break
		}
		if c.mendDue(false) < 2 {
			c.befall()
			n++
		}
		<-time.After(time.Duration(100+c.rng.IntN(400)) * time.Millisecond)
	}
	for c.mendDue(true) > 0 {
		t.Log("mending goes on")
	}
	healed := time.Now()
	t.Logf("healed after %v: %v", healed.Sub(began), c.faults)
	c.nothingStuck(ctx, healed)
	load.wg.Wait()
	jobs := load.jobs
	if len(jobs) < *chaosTasks/10*10 {
		t.Errorf("%d of %d tasks were acknowledged", len(jobs), *chaosTasks)
	}
	eventually(t, 2*time.Minute, "every task has ended", func() bool {
		for _, status := range []task.Status{task.Pending, task.Running} {
			page, err := c.client.List(ctx, task.ListRequest{Filter: task.Filter{Status: status}, Limit: 1})
			if err != nil || len(page.Tasks) > 0 {
				return false
			}
		}
		return true
	})
	t.Logf("all have ended %v after it", time.Since(healed))
	blind(errors.New("all have ended"))
	watch.Wait()
	records, err := c.all(ctx)
	if err != nil {
		t.Fatal(err)
	}
	c.judge(jobs, records, seen.ends)
}

// nothingStuck checks that within two leases after the end of all faults no task is
// held for a process that is no more.
func (c *chaos) nothingStuck(ctx context.Context, healed time.Time) {
	c.t.Helper()
	alive := map[string]bool{}
	for _, n := range c.nodes {
		alive[n.boot] = true
	}
	var stuck []string
	eventually(c.t, time.Until(healed.Add(2*chaosLease))+takeoverLimit, "no task is held for a process that is no more", func() bool {
		stuck = nil
		page, err := c.client.List(ctx, task.ListRequest{Filter: task.Filter{Status: task.Running}, Limit: 1000})
		if err != nil {
			return false
		}
		for _, r := range page.Tasks {
			if r.Lease != nil && !alive[r.Lease.Boot] && r.Lease.Boot != "" {
				stuck = append(stuck, r.TaskID)
			}
		}
		return len(stuck) == 0
	})
}

// takeoverLimit is how long the tasks may be without a writer, on a busy machine.
const takeoverLimit = 3*time.Second + 2*slack

// judge holds what became of the tasks against what was promised.
func (c *chaos) judge(jobs map[string]job, records, ends map[string]task.Record) {
	c.t.Helper()
	effects := map[string]map[int]int{} // by key and attempt
	for _, line := range c.effectLines() {
		words := strings.Fields(line)
		attempt, err := strconv.Atoi(words[1])
		if len(words) != 3 || err != nil {
			c.t.Fatalf("effect %q", line)
		}
		if effects[words[0]] == nil {
			effects[words[0]] = map[int]int{}
		}
		effects[words[0]][attempt]++
	}
	outcomes := map[string]int{}
	for id, j := range jobs {
		r, ok := records[id]
		if !ok {
			c.t.Errorf("task %s was acknowledged and is lost", id)
			continue
		}
		outcomes[fmt.Sprint(j.module, " ", r.Status, " ", r.Error.Code())]++
		terminal := 0
		for _, tr := range r.Timeline {
			if tr.Status.Terminal() {
				terminal++
			}
		}
		if terminal != 1 || !r.Timeline[len(r.Timeline)-1].Status.Terminal() {
			c.t.Errorf("task %s ended %d times: %+v", id, terminal, r.Timeline)
		}
		if first, ok := ends[id]; ok && (first.Status != r.Status || first.Number != r.Number) {
			c.t.Errorf("task %s had ended as %s and is %s now: %+v", id, first.Status, r.Status, r.Timeline)
		}
		if j.module != "demo.effect" {
			if r.Status != task.Completed {
				c.t.Errorf("task %s of %s, which may run twice: %s %v: %+v", id, j.module, r.Status, r.Error, r.Timeline)
			}
			continue
		}
		c.judgeEffect(id, j, r, effects[j.key])
		delete(effects, j.key)
	}
	for key := range effects {
		c.t.Errorf("the effect %s belongs to no acknowledged task", key)
	}
	c.t.Logf("%d tasks: %v", len(jobs), outcomes)
}

// judgeEffect: an attempt that was started has its effect at most once, and one that
// is known to have ended has had it. What is missing or may be missing is told.
func (c *chaos) judgeEffect(id string, j job, r task.Record, had map[int]int) {
	c.t.Helper()
	started := 0
	for _, tr := range r.Timeline {
		if tr.Cause == "started" {
			started++
		}
	}
	lines := 0
	for attempt, n := range had {
		lines += n
		if n > 1 || attempt > r.Attempt {
			c.t.Errorf("task %s: attempt %d of %d had its effect %d times: %+v", id, attempt, r.Attempt, n, r.Timeline)
		}
	}
	if lines > started {
		c.t.Errorf("task %s: %d effects of %d attempts that were started: %+v", id, lines, started, r.Timeline)
	}
	unknown := r.Error.Code() == module.CodeTaskOutcomeUnknown
	switch {
	case r.Status == task.Completed:
		if had[r.Attempt] != 1 || lines < started-r.Deliveries {
			c.t.Errorf("task %s completed with %d effects of %d attempts, %d of them lost: %+v", id, lines, started, r.Deliveries, r.Timeline)
		}
	case !j.retry && unknown && r.Attempt == 1 && r.Deliveries == 1:
	case j.retry && r.Detail == task.Dead:
	default:
		c.t.Errorf("task %s: %s %s %v: %+v", id, r.Status, r.Detail, r.Error, r.Timeline)
	}
	if !j.retry && started > 1 {
		c.t.Errorf("task %s, which may not run twice, was started %d times: %+v", id, started, r.Timeline)
	}
}
