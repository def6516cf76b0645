package integration_test

import (
	"encoding/json"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

var (
	runMutations = flag.Bool("mutations", false, "run the tests against each mutation, which takes minutes")
	oneARow      = flag.Bool("mutations.rows", false, "with -mutations: of each row of the threat table the first defence only")
)

// edit replaces text that occurs once in a file.
type edit struct{ file, old, new string }

// mutation switches one mechanism off; the tests of a package must notice.
type mutation struct {
	name  string
	edits []edit
	pkg   string
	run   string
}

var mutations = [...]mutation{
	{
		"fencing: whoever speaks of an attempt owns it",
		[]edit{{"task/machine.go", "r.Lease != nil && r.Attempt == ref.Attempt && r.Lease.Epoch == ref.Epoch", "r.Lease != nil && r.Attempt == ref.Attempt"}},
		"./task", "TestLinearizable|TestModel",
	},
	{
		"fencing: a deposed writer's commits are stored",
		[]edit{{"jetstream/log.go", "	h[headerExpectLast] = []string{strconv.FormatUint(l.fence, 10)}\n	h[headerExpectOn] = []string{l.s.names.lead()}\n", "	_ = l\n"}},
		"./jetstream", "TestLogContract",
	},
	{
		"cancel re-check: before a retry is armed",
		[]edit{{"task/machine_attempt.go", "	case r.CancelRequested != nil:\n		ru.end(r, m, Cancelled, \"\", \"node\", node, \"cancelled\")\n	case waits(", "	case waits("}},
		"./task", "TestRule08_AfterACancelOfARunningTask",
	},
	{
		"cancel re-check: when a lease has lapsed",
		[]edit{{"task/machine_attempt.go", "	case r.CancelRequested != nil:\n		r.Error = cancelled(r, m)\n		ru.end(r, m, Cancelled, \"\", \"writer\", node, string(cancel.LeaseLost))\n", ""}},
		"./task", "TestRule08_AfterACancelOfARunningTask",
	},
	{
		"cancel re-check: at renewal",
		[]edit{{"task/writer_work.go", "LeaseMS: w.opts.Lease.Milliseconds(), Cancel: it.rec.CancelRequested}", "LeaseMS: w.opts.Lease.Milliseconds()}"}},
		"./task", "TestRule08_AfterACancelOfARunningTask",
	},
	{
		"cancel re-check: when an attempt is given back",
		[]edit{{"task/machine_attempt.go", "	if r.CancelRequested != nil {\n		r.Error = cancelled(r, m)\n		ru.end(r, m, Cancelled, \"\", \"node\", node, \"cancelled\")\n		return\n	}\n", ""}},
		"./task", "TestRule08_AfterACancelOfARunningTask",
	},
	{
		"cancel re-check: when an attempt is stopped",
		[]edit{{"task/machine_attempt.go", "	case r.CancelRequested != nil:\n		r.Error = cancelled(r, m)\n		ru.end(r, m, Cancelled, \"\", \"node\", node, \"cancelled\")\n	case !r.Rerun", "	case !r.Rerun"}},
		"./task", "TestRule08_AfterACancelOfARunningTask",
	},
	{
		"digest binding: a token is good for any call",
		[]edit{{"executor/approval/record.go", "if r.Binding != b {", "if false {"}},
		"./executor/approval", "TestTokenIsBound",
	},
	{
		"digest binding: of any inputs",
		[]edit{{"executor/approval/record.go", "	b := Binding{ModuleID: r.ModuleID, Version: r.Version, CallerID: r.CallerID, Digest: digest}", "	_ = digest\n	b := Binding{ModuleID: r.ModuleID, Version: r.Version, CallerID: r.CallerID, Digest: \"the same\"}"}},
		"./executor/approval", "TestTokenIsBound",
	},
	{
		"digest binding: inputs that changed behind the gate run",
		[]edit{{"executor/step_approval.go", "	if p.approved == \"\" || (p.runnable != \"\" && p.runnable == schema.ContentHash(p.inputs)) {", "	if true {"}},
		"./executor", "TestApprovedInputsAreKept",
	},
	{
		"terminal-state check: a cancel changes what is over",
		[]edit{
			{"task/writer_cancel.go", "	if it.place.terminal() {\n		return w.settled(it.dirty), CancelAlreadyTerminal, nil\n	}\n	if err := w.hold(ctx, it); err != nil {", "	if err := w.hold(ctx, it); err != nil {"},
			{"task/writer_cancel.go", "	if it.gone || it.place.terminal() {", "	if it.gone {"},
			{"task/machine_cancel.go", "	if r.Status.Terminal() {\n		return false\n	}\n", ""},
		},
		"./task", "TestRule08_FirstTerminalWriteWins",
	},
	{
		"terminal-state check: the end of a task leaves it to its owner",
		[]edit{{"task/machine.go", "	r.Lease, r.Approved = nil, false\n", "	r.Approved = false\n"}},
		"./task", "TestLinearizable|TestModel",
	},
	{
		"lease self-cancel: a worker that cannot renew goes on",
		[]edit{{"task/worker_attempt.go", "a.alarm = time.AfterFunc(time.Until(deadline)-a.lease/5, a.lose)", "a.alarm = time.AfterFunc(1000*time.Hour, a.lose)"},
			{"task/worker_attempt.go", "a.alarm.Reset(time.Until(deadline) - a.lease/5)", "a.alarm.Reset(1000 * time.Hour)"}},
		"./task", "TestRule04_AWorkerThatCannotRenew",
	},
	{
		"takeover wait: running tasks are handed out at once",
		[]edit{{"task/writer_load.go", "b.until, b.heard = now.Add(w.opts.Lease), true", "b.until, b.heard = now, true"}},
		"./task", "TestRule07_TakeoverWaitsOneLease",
	},
	{
		"takeover wait: the lead is taken from who has it",
		[]edit{{"jetstream/elect.go", "time.Since(since) < s.o.LeaseTTL", "time.Since(since) < 0"}},
		"./jetstream", "TestOneLeads",
	},
	{
		"sync mode: a power-safe server does not sync",
		[]edit{{"bus/embed.go", "SyncAlways: o.PowerSafe", "SyncAlways: false"}},
		"./integration", "TestPowerLoss",
	},
}

// TestMutations checks that every mutation still fits the code, and with -mutations
// that the tests fail under it.
func TestMutations(t *testing.T) {
	rows := map[string]bool{}
	for _, m := range slices.Concat(mutations[:], loopMutations()) {
		row, _, _ := strings.Cut(m.name, ":")
		again := rows[row] && strings.HasPrefix(row, "threat ")
		rows[row] = true
		t.Run(m.name, func(t *testing.T) {
			overlay := mutate(t, m)
			if !*runMutations || *oneARow && again {
				return
			}
			t.Parallel() // while one is linked, another is compiled
			cmd := exec.Command("go", "test", "-count=1", "-vet=off", "-failfast", "-timeout", "5m", "-run", m.run, m.pkg)
			cmd.Dir = ".."
			// Programs that the tests build are mutated too.
			cmd.Env = append(os.Environ(), "GOFLAGS="+strings.TrimSpace(os.Getenv("GOFLAGS")+" -overlay="+overlay))
			out, err := cmd.CombinedOutput()
			switch text := string(out); {
			case err == nil:
				t.Errorf("the tests pass:\n%s", text)
			case strings.Contains(text, "[build failed]") || strings.Contains(text, "[setup failed]"):
				t.Errorf("it does not build:\n%s", text)
			case !strings.Contains(text, "--- FAIL") && !strings.Contains(text, "panic: "):
				t.Errorf("no test fails:\n%s", text)
			default:
				for line := range strings.Lines(text) {
					if strings.HasPrefix(strings.TrimSpace(line), "--- FAIL") {
						t.Log(strings.TrimSpace(line))
					}
				}
			}
		})
	}
}

// mutate writes the changed files and the overlay that puts them in their places.
func mutate(t *testing.T, m mutation) (overlay string) {
	t.Helper()
	dir := t.TempDir()
	replaced := map[string]string{}
	for _, e := range m.edits {
		file, err := filepath.Abs(filepath.Join("..", filepath.FromSlash(e.file)))
		if err != nil {
			t.Fatal(err)
		}
		source := file
		if changed := replaced[file]; changed != "" {
			source = changed
		}
		text, err := os.ReadFile(source)
		if err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(string(text), e.old); n != 1 {
			t.Fatalf("%s has the text %d times, want it once: %s", e.file, n, e.old)
		}
		replaced[file] = filepath.Join(dir, filepath.Base(file))
		if err := os.WriteFile(replaced[file], []byte(strings.Replace(string(text), e.old, e.new, 1)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	list, err := json.Marshal(map[string]any{"Replace": replaced})
	if err != nil {
		t.Fatal(err)
	}
	overlay = filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(overlay, list, 0o600); err != nil {
		t.Fatal(err)
	}
	return overlay
}
