//go:build conformance

package conformance_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/apbus/apbus/schema"
)

// A driver runs one case of its file. It reports what differs from what the case
// expects with Errorf, and must read every expectation: one that no driver looks
// at is a failure of its own.
type driver func(c *kase)

// folder is where the published cases are.
func folder() string {
	if dir := os.Getenv("APBUS_CONFORMANCE"); dir != "" {
		return dir
	}
	return filepath.Join("..", "..", "shared", "conformance")
}

// TestConformance runs every case of every file. The last line it prints counts
// them.
func TestConformance(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(folder(), "*.json"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no published cases in %s; set APBUS_CONFORMANCE to their folder", folder())
	}
	var names []string
	for _, f := range files {
		names = append(names, strings.TrimSuffix(filepath.Base(f), ".json"))
	}
	all := drivers()
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if !slices.Contains(names, name) {
			t.Errorf("a driver without a file: %s", name)
		}
	}
	met := make(map[string]bool)
	for _, e := range exceptions {
		met[e.key()] = false
	}
	documented := documentedCounts(t)
	var sum tally
	for _, name := range names {
		drive, ok := all[name]
		switch {
		case later[name] != "" && !ok:
			continue
		case !ok:
			t.Errorf("a file without a driver: %s", name)
			continue
		}
		t.Run(name, func(t *testing.T) {
			n := runFile(t, name, drive, met)
			sum.add(n)
			if doc, ok := documented[name]; !ok || doc != n {
				t.Errorf("docs/conformance.md says %+v, the run says %+v", doc, n)
			}
		})
	}
	checkQuotes(t)
	for key, seen := range met {
		if !seen {
			t.Errorf("an exception for a case that there is not: %s", key)
		}
	}
	fmt.Printf("%d cases, %d passed, %d listed exceptions\n", sum.cases, sum.passed, sum.excepted)
}

func runFile(t *testing.T, name string, drive driver, met map[string]bool) (n tally) {
	raw, err := os.ReadFile(filepath.Join(folder(), name+".json"))
	if err != nil {
		t.Fatal(err)
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	var doc any
	if err := dec.Decode(&doc); err != nil {
		t.Fatal(err)
	}
	if doc, err = schema.Normalize(doc); err != nil {
		t.Fatal(err)
	}
	fileReads := &reads{}
	file := &run{t: t}
	top := &node{r: file, v: doc, reads: fileReads}
	for _, key := range []string{"driver_contract", "spec_sections", "algorithm", "format_mappings", "_why"} {
		top.opt(key).raw()
	}
	for _, c := range top.at("test_cases").list() {
		id := c.at("id").str()
		for _, variant := range variants(name) {
			sub := id
			if variant != "" {
				sub += "@" + variant
			}
			n.cases++
			key := name + "/" + sub
			e, excepted := exceptionFor(key)
			if excepted {
				met[key] = true
			}
			ok := t.Run(sub, func(t *testing.T) {
				r := &run{t: t}
				seen := &reads{}
				k := &kase{run: r, id: id, variant: variant,
					node: &node{r: r, v: c.v, reads: seen}, file: &node{r: r, v: doc, reads: fileReads}}
				k.opt("id")
				r.guard(func() { drive(k) })
				if r.done() {
					seen.unread("", c.v, func(path string) { r.Errorf("expectation not read: %s", path) })
				}
				judge(t, e, excepted, r.faults)
			})
			switch {
			case !ok:
			case excepted:
				n.excepted++
			default:
				n.passed++
			}
		}
	}
	if n.cases == 0 {
		t.Error("ran no case")
	}
	fileReads.unread("", doc, func(path string) {
		if !strings.HasPrefix(path, "test_cases") {
			t.Errorf("no driver reads %s", path)
		}
	})
	return n
}

// checkQuotes looks the quotes up where the texts lie beside the cases.
func checkQuotes(t *testing.T) {
	files := map[string]string{
		coreSeed: "seeds/core-executor.txt", architecture: "design/architecture.md",
		errorsDigest: "spec/errors-acl-approval.md", execDigest: "spec/context-executor.md",
	}
	looked := append([]exception{{file: "the order of the texts", quote: ranking, source: architecture}}, exceptions...)
	for _, e := range looked {
		name, ok := files[e.source]
		if !ok {
			continue
		}
		text, err := os.ReadFile(filepath.Join(folder(), "..", filepath.FromSlash(name)))
		if err != nil {
			continue // published without those texts
		}
		if !strings.Contains(strings.Join(strings.Fields(string(text)), " "), e.quote) {
			t.Errorf("the quote for %s is not in the %s: %q", e.key(), e.source, e.quote)
		}
	}
}

// judge compares the faults of a case with what its exception says they are.
func judge(t *testing.T, e exception, excepted bool, faults []string) {
	if !excepted {
		for _, f := range faults {
			t.Error(f)
		}
		return
	}
	if len(faults) == 0 {
		t.Error("passes, but is listed as an exception")
	}
	for _, f := range faults {
		if !strings.Contains(f, e.fault) {
			t.Errorf("fails in another way than listed (%q): %s", e.fault, f)
		}
	}
}

// variants are the ways in which each case of a file is run.
func variants(name string) []string {
	if name == "timeout_cancellation" {
		return []string{"grace=0s", "grace=5s"}
	}
	return []string{""}
}

// kase is one case as its driver sees it; at and opt read it, file reads the file
// around it.
type kase struct {
	*run
	*node
	id, variant string
	file        *node
}

// run collects what is wrong.
type run struct {
	t      *testing.T
	mu     sync.Mutex
	faults []string
	broken bool
}

// Errorf notes a difference.
func (r *run) Errorf(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.faults = append(r.faults, fmt.Sprintf(format, args...))
}

type stop struct{}

// Fatalf notes a difference and ends the driver; for the driver's own goroutine.
func (r *run) Fatalf(format string, args ...any) {
	r.Errorf(format, args...)
	r.broken = true
	panic(stop{})
}

func (r *run) done() bool { return !r.broken }

func (r *run) guard(f func()) {
	defer func() {
		if v := recover(); v != nil {
			if _, ok := v.(stop); !ok {
				r.Errorf("panic: %v\n%s", v, debug.Stack())
				r.broken = true
			}
		}
	}()
	f()
}

// bubble runs f with a clock of its own.
func (r *run) bubble(f func(ctx context.Context)) {
	synctest.Test(r.t, func(t *testing.T) { r.guard(func() { f(t.Context()) }) })
}
