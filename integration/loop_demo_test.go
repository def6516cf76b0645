package integration_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestLoopDemo runs what "make demo-loop" runs, and then what it tells people to go on
// with.
func TestLoopDemo(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.Symlink(filepath.Dir(program(t, "apbus")), filepath.Join(dir, "bin")); err != nil {
		t.Fatal(err)
	}
	steps := wouldMake(t, "demo-loop")
	args := strings.Fields(steps[len(steps)-1])
	if len(args) < 2 || args[0] != "bin/apbus" || args[1] != "dev" {
		t.Fatalf("make demo-loop ends with %q, want bin/apbus dev", args)
	}
	cmd := exec.Command(filepath.Join(dir, args[0]), args[1:]...)
	cmd.Dir, cmd.Env = dir, cleanEnvironment()
	demo := startCommand(t, "make demo-loop", cmd)
	last := demo.line("  bin/apbus recs rollback ")
	out := demo.stdout()

	if !strings.Contains(out, "of which ") || !strings.Contains(out, "proposed 7, cited 7, grounded 5, kept 5, stored 5") {
		t.Errorf("it does not tell what the pass did")
	}
	_, waiting, found := strings.Cut(out, "waiting for a person\n")
	waiting, next, also := strings.Cut(waiting, "go on with:\n")
	if !found || !also {
		t.Fatalf("it shows no queue:\n%s", demo.log())
	}
	// By severity, each with its kind, its target, and what a person has to know: of the
	// failing, the denied, the slow, the missing, and of each kind that a model may
	// propose here.
	for _, want := range [][]string{
		{"high", "cluster_failure", "entity:lessons/demo.fail", "Module demo.fail failed ", " with BUSY"},
		{"medium", "flag (advice)", "host:acl/user:caller", "was refused 12 times and never let in: far.whoami"},
		{"medium", "cluster_failure", "entity:lessons/demo.sleep", "failed 12 times (50 %) with MODULE_TIMEOUT"},
		{"medium", "flag (advice)", "entity:coverage/text.wordcounts", "does not exist; near it: text.wordcount"},
		{"low", "skill", "entity:default/careful-order", "(2) Call demo.fail once, with a key."},
		{"low", "plan", "entity:default/wait-then-ask", "wait->ask if wait.slept_ms exists;"},
		{"low", "lesson", "entity:lessons/demo.fail", `record lesson on demo.fail: "After SHOP_CLOSED wait`},
		{"low", "fact", "entity:lessons/demo.sleep", "needs_timeout"},
		{"low", "query_revision", "query:discover", "outcome=error,timeout module=demo.*"},
	} {
		if !hasLine(waiting, want) {
			t.Errorf("nothing waits that says %q:\n%s", want, waiting)
		}
	}
	for _, not := range []string{"Open the ACL", "Mondays"} {
		if strings.Contains(waiting, not) {
			t.Errorf("%q waits, which may not be proposed or is not supported:\n%s", not, waiting)
		}
	}

	// The hints work as they are printed.
	if !strings.Contains(next, strings.TrimSpace(last)) {
		t.Fatalf("the hints are %q", next)
	}
	sh := exec.Command("sh", "-e", "-c", next)
	sh.Dir, sh.Env = dir, cleanEnvironment()
	p := startCommand(t, "what to go on with", sh)
	if code := p.exit(requestLimit); code != 0 {
		t.Errorf("exit code %d of\n%s\n%s", code, next, p.log())
	}
	for _, want := range []string{"pending", "BUSY", "approved", "applied", "rolled_back"} {
		if !strings.Contains(p.stdout(), want) {
			t.Errorf("going on does not show %q:\n%s", want, p.stdout())
		}
	}
}

// hasLine reports whether a line holds all the parts.
func hasLine(text string, parts []string) bool {
	for line := range strings.Lines(text) {
		all := true
		for _, p := range parts {
			all = all && strings.Contains(line, p)
		}
		if all {
			return true
		}
	}
	return false
}
