package integration_test

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"testing"
)

// testVersion is the version that the programs under test were linked with.
const testVersion = "1.2.3-test"

// binDir is where the programs are; TestMain sets it before any test runs.
var binDir string

func TestMain(m *testing.M) {
	widen()
	dir, err := os.MkdirTemp("", "apbus-integration-")
	if err != nil {
		fmt.Fprintln(os.Stderr, "integration:", err)
		os.Exit(1)
	}
	binDir = dir
	code := m.Run()
	if err := os.RemoveAll(dir); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, "integration:", err)
		code = 1
	}
	os.Exit(code)
}

// widen lets twice as many tests run at once as there are processors, unless the
// command line says how many: most of what they do is wait for other processes.
func widen() {
	flag.Parse()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	if !given {
		_ = flag.Set("test.parallel", strconv.Itoa(2*runtime.GOMAXPROCS(0))) // a number always fits
	}
}

// buildPrograms builds the three programs, once a test run and only when a test
// asks for them.
var buildPrograms = sync.OnceValue(func() error {
	args := []string{"build", "-ldflags", "-s -w -X main.version=" + testVersion, "-o", binDir + string(filepath.Separator)}
	if raceEnabled {
		args = append(args, "-race")
	}
	cmd := exec.Command("go", append(args, "./cmd/router", "./cmd/node", "./cmd/apbus")...)
	cmd.Dir = ".."
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build the programs: %w\n%s", err, out)
	}
	return errors.Join(
		os.Rename(filepath.Join(binDir, "router"), filepath.Join(binDir, "apbus-router")),
		os.Rename(filepath.Join(binDir, "node"), filepath.Join(binDir, "apbus-node")),
	)
})

// program returns the path of one of the programs.
func program(t testing.TB, name string) string {
	t.Helper()
	if err := buildPrograms(); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(binDir, name)
}
