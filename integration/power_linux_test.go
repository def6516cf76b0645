package integration_test

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/apbus/apbus/module"
	"github.com/apbus/apbus/task"
)

// sysCachestat is cachestat(2), which has this number on every architecture but alpha.
const sysCachestat = 451

// unsynced counts the pages of a part of a file that are not on the disk yet.
func unsynced(f *os.File, offset, length int64) (uint64, error) {
	part := struct{ offset, length uint64 }{uint64(offset), uint64(length)}
	var stat struct{ cached, dirty, writeback, evicted, recentlyEvicted uint64 }
	_, _, errno := syscall.Syscall6(sysCachestat, f.Fd(), uintptr(unsafe.Pointer(&part)), uintptr(unsafe.Pointer(&stat)), 0, 0, 0)
	if errno != 0 {
		return 0, errno
	}
	return stat.dirty + stat.writeback, nil
}

// diskOf copies a directory as a machine that loses its power now would find it:
// without the pages that the kernel has not written back. It returns how many those
// are. The first such page of a file is kept: its beginning may have been synced
// before an append that was not made it dirty again, and that part is on the disk.
func diskOf(from, to string) (lost int, err error) {
	err = filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		if d.IsDir() {
			return os.MkdirAll(filepath.Join(to, rel), 0o700)
		}
		n, err := diskFile(path, filepath.Join(to, rel))
		lost += n
		return err
	})
	return lost, err
}

func diskFile(from, to string) (lost int, err error) {
	f, err := os.Open(from)
	if err != nil {
		return 0, err
	}
	defer func() { _ = f.Close() }()
	data, err := os.ReadFile(from)
	if err != nil {
		return 0, err
	}
	page := os.Getpagesize()
	kept := 0
	for at := 0; at < len(data); at += page {
		end := min(at+page, len(data))
		n, err := unsynced(f, int64(at), int64(page))
		if err != nil {
			return 0, err
		}
		if n == 0 {
			kept = end
			continue
		}
		if lost++; lost == 1 {
			kept = end
			continue
		}
		clear(data[at:end])
	}
	return lost, os.WriteFile(to, data[:kept], 0o600)
}

// TestPowerLoss takes the power from a power-safe server, again and again, while
// tasks are submitted and run: what was acknowledged is found on the disk by the next.
func TestPowerLoss(t *testing.T) {
	t.Parallel()
	probe, err := os.Create(filepath.Join(t.TempDir(), "probe"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = probe.Close() }()
	if _, err := probe.WriteString("not synced"); err != nil {
		t.Fatal(err)
	}
	if n, err := unsynced(probe, 0, 10); err != nil || n != 1 {
		t.Skipf("this kernel and file system do not tell what is synced: %d pages, %v", n, err)
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	s := newSystem(t)
	var mu sync.Mutex
	jobs := map[string]string{} // acknowledged, task ID by key
	data := filepath.Join(s.dir, "nats-0")
	for round := range 4 {
		s.startRouter("--embed-listen", "127.0.0.1:0", "--data", data, "--durability", "power-safe")
		client := taskClient(t, s.nats)
		for key, id := range jobs {
			if _, err := client.Get(t.Context(), id); err != nil {
				t.Fatalf("seed %d, round %d: the task of %s was acknowledged: %v", seed, round, key, err)
			}
		}
		if round == 3 {
			s.startNode("n1", "math")
			for _, id := range jobs {
				if out := taskOutput(t, client, id); out["sum"] != 2.0 {
					t.Errorf("output %v", out)
				}
			}
			break
		}
		n := s.startNode(fmt.Sprint("r", round), "math")
		var wg sync.WaitGroup
		over := make(chan struct{})
		for w := range 4 {
			wg.Go(func() {
				for i := 0; ; i++ {
					select {
					case <-over:
						return
					default:
					}
					key := fmt.Sprintf("%d-%d-%d", round, w, i)
					a, err := client.Submit(t.Context(), task.SubmitRequest{Tasks: []task.Submission{{
						ModuleID: "math.add", Inputs: []byte(`{"a":1,"b":1}`), IdempotencyKey: key,
					}}})
					if err != nil {
						if e := module.AsError(err); e == nil || e.Code != module.CodeTaskStoreUnavailable {
							t.Errorf("submit: %v", err)
						}
						return
					}
					mu.Lock()
					jobs[key] = a.Receipts[0].TaskID
					mu.Unlock()
				}
			})
		}
		acknowledged := func() int {
			mu.Lock()
			defer mu.Unlock()
			return len(jobs)
		}
		before := acknowledged()
		eventually(t, startLimit, "tasks are acknowledged", func() bool { return acknowledged() >= before+4 })
		<-time.After(time.Duration(rng.IntN(600)) * time.Millisecond)
		s.router.freeze()
		next := filepath.Join(s.dir, fmt.Sprint("nats-", round+1))
		lost, err := diskOf(data, next)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
		s.router.kill()
		n.kill()
		close(over)
		client.Close()
		wg.Wait()
		t.Logf("round %d: %d tasks were acknowledged, %d pages were not on the disk", round, len(jobs), lost)
		data = next
	}
	if len(jobs) < 10 {
		t.Errorf("only %d tasks were acknowledged", len(jobs))
	}
}
