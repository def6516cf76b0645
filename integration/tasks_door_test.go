package integration_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestTasksThroughTheFrontDoor submits, watches, steers and schedules tasks with the
// real programs.
func TestTasksThroughTheFrontDoor(t *testing.T) {
	t.Parallel()
	s, _, _ := startPair(t)
	running := func(n int) {
		t.Helper()
		eventually(t, startLimit, fmt.Sprintf("%d tasks are running", n), func() bool {
			return len(list(s.get("/v1/tasks?status=running&module=demo.sleep").doc, "tasks")) == n
		})
	}
	cli := func(want int, args ...string) string {
		t.Helper()
		out, p := s.cli(append([]string{"tasks"}, args...)...)
		if code := p.exit(0); code != want {
			t.Errorf("apbus tasks %q: exit code %d, want %d: %s", args, code, want, p.log())
		}
		return out
	}

	if out := cli(0, "submit", "math.add", "a=1", "b=2", "--wait"); out != `{"sum":3}` {
		t.Errorf("submit and wait: %s", out)
	}

	// Watched by its events over HTTP, resumed, and shown with its timeline.
	id := cli(0, "submit", "demo.sleep", "ms=4000", "steps=10", "--key", "once")
	watch := s.startCLI("tasks", "watch", id)
	watch.line("demo.sleep")
	if out := cli(0, "wait", id); out != `{"slept_ms":4000}` {
		t.Errorf("wait: %s", out)
	}
	if code := watch.exit(10 * time.Second); code != 0 || !strings.Contains(watch.stdout(), "\tprogress\t[") || !strings.Contains(watch.stdout(), "\tcompleted") {
		t.Errorf("watch: exit code %d: %s", code, watch.log())
	}
	events := s.events(id, "")
	if len(events) < 2 || events[len(events)-1].name != "end" {
		t.Fatalf("events %v", events)
	}
	again := s.events(id, events[len(events)-2].id)
	if len(again) != 1 || again[0].name != "end" || again[0].id != events[len(events)-1].id {
		t.Errorf("events after %s: %v, want the end only", events[len(events)-2].id, again)
	}
	if out := cli(0, "show", id); !strings.Contains(out, "pending queued\tsubmitted") || !strings.Contains(out, "running\tstarted\t1\tn") {
		t.Errorf("show: %s", out)
	}
	if out := cli(0, "submit", "demo.sleep", "ms=4000", "steps=10", "--key", "once"); out != id {
		t.Errorf("submitted again: %s, want %s", out, id)
	}

	// A failure is tried again, and a cancel stops the work on its node.
	failing := cli(0, "submit", "demo.fail", "times=1", "key=front-door", "--retries", "2")
	cli(0, "wait", failing)
	if out := cli(0, "show", failing); !strings.Contains(out, " of 2 retries") {
		t.Errorf("show a task that failed once: %s", out)
	}
	long := cli(0, "submit", "demo.sleep", "ms="+longSleep)
	running(1)
	waiting := s.startCLI("tasks", "wait", long)
	if out := cli(0, "cancel", long, "--json"); !strings.Contains(out, `"state":"accepted"`) {
		t.Errorf("cancel: %s", out)
	}
	if code := waiting.exit(10 * time.Second); code != 1 || !strings.Contains(waiting.log(), "EXECUTION_CANCELLED") {
		t.Errorf("who waited: exit code %d: %s", code, waiting.log())
	}
	running(0)

	// Who stops watching stops nothing.
	held := cli(0, "submit", "demo.sleep", "ms="+longSleep)
	watch = s.startCLI("tasks", "watch", held)
	watch.line("demo.sleep")
	watch.signal(syscall.SIGINT)
	if code := watch.exit(10 * time.Second); code != 130 || !strings.Contains(watch.log(), "the task goes on") {
		t.Errorf("interrupted: exit code %d: %s", code, watch.log())
	}
	running(1)
	cli(0, "cancel", "--module", "demo.sleep", "--status", "running")

	// Paused work waits, and a schedule submits.
	cli(0, "pause", "math.add", "--reason", "test")
	paused := cli(0, "submit", "math.add", "a=1", "b=1")
	cli(1, "wait", paused, "--timeout", "300ms")
	cli(0, "resume", "math.add")
	cli(0, "wait", paused)
	cli(0, "schedule", "put", "often", "math.add", "a=2", "b=2", "--cron", "@every 1s")
	eventually(t, 15*time.Second, "the schedule has fired twice", func() bool {
		var doc map[string]any
		_ = json.Unmarshal([]byte(cli(0, "schedule", "show", "often")), &doc)
		fired, _ := doc["fired"].(float64)
		return fired >= 2
	})
	cli(0, "schedule", "delete", "often")

	many := s.do(http.MethodPost, "/v1/tasks", `{"tasks":[{"module_id":"nobody.hosts","inputs":{"password":"`+card+`"}},{"module_id":"nobody.hosts"}]}`)
	if many.status != http.StatusAccepted || len(list(many.doc, "receipts")) != 2 {
		t.Errorf("many: %v", many)
	}
	if a := s.get("/v1/tasks?module=nobody.hosts"); len(list(a.doc, "tasks")) != 2 || strings.Contains(a.raw, card) {
		t.Errorf("listed: %v", a)
	}
	if out := cli(0, "cancel", "--module", "nobody.hosts", "--json"); !strings.Contains(out, `"changed":2`) {
		t.Errorf("bulk: %s", out)
	}
}

// events reads the events of a task that is over.
func (s *system) events(id, after string) []sse {
	s.t.Helper()
	req, err := http.NewRequestWithContext(s.t.Context(), http.MethodGet, s.api+"/v1/tasks/"+id+"/events", nil)
	if err != nil {
		s.t.Fatal(err)
	}
	if after != "" {
		req.Header.Set("Last-Event-ID", after)
	}
	c := s.read(req)
	var all []sse
	for e, ok := c.next(); ok; e, ok = c.next() {
		all = append(all, e)
	}
	return all
}

func (e sse) String() string { return fmt.Sprintf("%s %s", e.name, e.id) }
