package task

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestTableIsAMap compares the table with a map over IDs that often have the same home.
func TestTableIsAMap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var tab table
		model := map[taskID]*item{}
		ids := rapid.Custom(func(t *rapid.T) taskID {
			// Two shards, and the last home of small ones, from where probing goes round.
			return taskID{rapid.Byte().Draw(t, "shard") % 2, rapid.SampledFrom([]byte{0, 1, 6, 7, 14, 15, 31}).Draw(t, "home"), 15: rapid.Byte().Draw(t, "last") % 8}
		})
		for range rapid.IntRange(0, 300).Draw(t, "steps") {
			id := ids.Draw(t, "id")
			switch {
			case model[id] != nil && rapid.Bool().Draw(t, "remove"):
				tab.remove(id)
				delete(model, id)
			case model[id] == nil:
				tab.remove(id) // which is not there
				it := &item{id: id}
				tab.put(it)
				model[id] = it
			}
			if tab.n != len(model) {
				t.Fatalf("%d items, want %d", tab.n, len(model))
			}
		}
		for s := range 2 {
			for _, home := range []byte{0, 1, 6, 7, 14, 15, 31} {
				for last := range 8 {
					id := taskID{byte(s), home, 15: byte(last)}
					if got := tab.get(id); got != model[id] {
						t.Fatalf("the item of %v is %p, want %p", id, got, model[id])
					}
				}
			}
		}
		for id := range model {
			tab.remove(id)
		}
		for i := range tab.shard {
			if tab.n != 0 || tab.shard[i].slots != nil {
				t.Fatal("an empty table holds memory")
			}
		}
	})
}

// TestTableIsSmall pins what the ID of a task takes, and that the table shrinks.
func TestTableIsSmall(t *testing.T) {
	var tab table
	items := make([]item, 100_000)
	for i := range items {
		items[i].id = newTaskID("default", time.Time{})
		tab.put(&items[i])
	}
	slots := func() (n int) {
		for i := range tab.shard {
			n += len(tab.shard[i].slots)
		}
		return n
	}
	if n := slots(); n > 3*len(items) {
		t.Errorf("%d places for %d items", n, len(items))
	}
	for i := range items[1000:] {
		tab.remove(items[1000+i].id)
	}
	if n := slots(); n > 16*1000+leastSlots*shards {
		t.Errorf("%d places for 1000 items", n)
	}
	for i := range items {
		if got := tab.get(items[i].id); (got == &items[i]) != (i < 1000) {
			t.Fatalf("item %d of the first 1000 that are left: %p", i, got)
		}
	}
}
