package jetstream_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/apbus/apbus/internal/natstest"
	durable "github.com/apbus/apbus/jetstream"
	"github.com/apbus/apbus/task"
)

// Three replicas: commits survive the loss of the stream's leader in the middle, and
// a deposed leader stores nothing there either.
func TestReplicas(t *testing.T) {
	c := natstest.NewCluster(t)
	o := durable.Options{JS: c.JetStream(), Replicas: 3, Durability: durable.ProcessSafe, LeaseTTL: 20 * time.Second, Logger: quiet()}
	store, err := durable.Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if store.Durability() != durable.PowerSafe {
		t.Errorf("durability with three replicas = %s", store.Durability())
	}
	r := lead(t, store)
	held := map[string]string{}
	for round, size := range []int{1, 2, 300, 1, 50, 3} {
		if round == 3 {
			go c.StopLeader("APBUS_TASKS")
		}
		batch := entries(10*round, size, fmt.Sprint("round ", round))
		if err := r.log.Commit(t.Context(), batch); err != nil {
			t.Fatalf("Commit of %d: %v", size, err)
		}
		expect(held, batch)
		last := batch[len(batch)-1]
		if e, ok, err := r.log.Get(t.Context(), last.Key); err != nil || !ok || string(e.Body) != string(last.Body) {
			t.Errorf("Get right after = %q, %v, %v", e.Body, ok, err)
		}
	}
	same(t, "with two servers left", load(t, r.log), held)
	_ = r.leave()
	next := lead(t, store)
	same(t, "as the next leader sees it", load(t, next.log), held)
	for _, size := range []int{1, 5} {
		if err := r.log.Commit(t.Context(), entries(0, size, "late")); !errors.Is(err, task.ErrDeposed) {
			t.Errorf("Commit of a deposed leader = %v", err)
		}
	}
	same(t, "at the end", load(t, next.log), held)
	_ = next.leave()
}
