package acl_test

import (
	"log/slog"
	"path/filepath"
	"sync"
	"testing"

	"github.com/apbus/apbus/executor/acl"
)

// Checks keep their answers while rules come and go, are reloaded and recompiled.
func TestConcurrentUse(t *testing.T) {
	path := filepath.Join(t.TempDir(), "acl.yaml")
	write(t, path, "rules:\n  - {callers: ['*'], targets: [one], effect: allow}\n  - {callers: ['*'], targets: [two], effect: deny}\n")
	p, err := acl.Load(path, acl.Options{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	var writers, readers sync.WaitGroup
	writers.Go(func() {
		for range 50 {
			if err := p.Reload(); err != nil {
				t.Error(err)
			}
		}
	})
	writers.Go(func() {
		for range 200 {
			if err := p.AddRule(when(deny("x", "y"), obj{"later": 1})); err != nil {
				t.Error(err)
			}
			if err := p.RegisterCondition("later", holding); err != nil {
				t.Error(err)
			}
			p.RemoveRule([]string{"x"}, []string{"y"})
		}
	})
	for range 2 {
		readers.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				q := acl.Query{CallerID: "a", TargetID: "one", Context: call(0, "")}
				if !p.Check(t.Context(), q) {
					t.Error("one was refused")
				}
				if q.TargetID = "two"; p.Check(t.Context(), q) {
					t.Error("two was granted")
				}
				p.Validate()
			}
		})
	}
	writers.Wait()
	close(done)
	readers.Wait()
}
