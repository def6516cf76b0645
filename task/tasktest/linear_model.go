package tasktest

import (
	"hash/maphash"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/apbus/apbus/task"
)

// single is a task as one record in one place.
type single struct {
	id     string
	status task.Status // "" before it is submitted
	owner  task.LeaseRef
	last   task.LeaseRef // of the last attempt that reported its end

	cancel   bool
	failures int
	attempt  int   // the last that was started
	finished int64 // the epoch whose output it has
}

// Judge checks that the history of each task is one that a single record in a single
// place could have: what happens takes effect at one instant between question and
// answer. It must be called outside of a bubble, since it may search for long.
func (h *History) Judge(t *testing.T) {
	t.Helper()
	model := (&porcupine.NondeterministicModel{
		Init: func() []any { return []any{single{}} },
		Step: func(state, input, _ any) []any {
			s, ok := state.(single)
			o, known := input.(op)
			if !ok || !known {
				return nil
			}
			var next []any
			for _, before := range s.silently() {
				for _, after := range before.step(o) {
					next = append(next, after)
				}
			}
			return next
		},
	}).ToModel()
	seed := maphash.MakeSeed()
	model.Hash = func(states any) (sum uint64) {
		list, _ := states.([]any)
		for _, s := range list {
			sum += maphash.Comparable(seed, s)
		}
		return sum
	}
	total, most, unknown := 0, 0, 0
	for _, key := range h.keys() {
		ops := h.ops[key]
		total, most = total+len(ops), max(most, len(ops))
		list := make([]porcupine.Operation, len(ops))
		for i, o := range ops {
			list[i] = porcupine.Operation{ClientId: o.client, Input: o, Call: o.call, Return: o.end}
		}
		const limit = 3 * time.Second
		switch got := porcupine.CheckOperationsTimeout(model, list, limit); got {
		case porcupine.Ok:
		case porcupine.Unknown: // a search that takes too long says nothing
			unknown++
		default:
			slices.SortFunc(ops, func(a, b op) int { return int(a.call - b.call) })
			lines := make([]string, len(ops))
			for i, o := range ops {
				lines[i] = o.String()
			}
			t.Errorf("seed %d: the history of task %s is %s:\n%s", h.o.Seed, key, got, strings.Join(lines, "\n"))
		}
	}
	t.Logf("%d operations on %d tasks, at most %d on one", total, len(h.keys()), most)
	if total == 0 || unknown > len(h.ids)/10 {
		t.Errorf("%d operations, and the histories of %d tasks were not judged in time", total, unknown)
	}
}

// silently is what may have become of it without a word: a grant that was not started
// is forgotten with its writer.
func (s single) silently() []single {
	if s.status != task.Pending || s.owner == (task.LeaseRef{}) {
		return []single{s}
	}
	forgotten := s
	forgotten.owner = task.LeaseRef{}
	return []single{s, forgotten}
}

// step returns what it may be after an operation that was answered so, nothing when
// it cannot have been.
func (s single) step(o op) []single {
	if o.maybe { // it may have worked, and nobody was told
		if changed := s.after(o); changed != s {
			return []single{s, changed}
		}
		return []single{s}
	}
	next := s.after(o)
	ok := false
	switch o.kind {
	case "submit":
		// One whose first answer was lost is told that it did so before.
		ok = next.id == o.id && (o.again || s.status == "")
	case "get":
		ok = o.status == s.status && o.cancel == s.cancel && o.finished == s.finished
		if s.status == task.Running || s.status == task.Completed || s.status == task.Failed {
			ok = ok && o.attempt == s.attempt
		}
	case "cancel":
		ok = o.status == next.status
		if s.status.Terminal() {
			ok = ok && o.state == task.CancelAlreadyTerminal
		} else {
			ok = ok && o.state == task.CancelAccepted
		}
	case "claim":
		ok = next != s
	case "start", "renew":
		if s.owner != o.ref {
			ok = o.lost
		} else {
			ok = !o.lost && o.told == s.cancel
		}
	case "finish":
		switch {
		case s.owner == o.ref:
			ok = !o.lost && o.status == next.status
		case s.last == o.ref: // the same report once more, answered with what the task is now
			ok = !o.lost && (o.status == s.status || !s.status.Terminal() && !o.status.Terminal())
		default:
			ok = o.lost
		}
	}
	if !ok || s.status == "" && o.kind != "submit" {
		return nil
	}
	return []single{next}
}

// after is what an operation makes of it, s itself when that is nothing.
func (s single) after(o op) single {
	if s.status == "" {
		if o.kind == "submit" {
			return single{id: o.id, status: task.Pending}
		}
		return s
	}
	owned := s.owner == o.ref
	switch {
	case s.status.Terminal():
	case o.kind == "cancel" && s.status == task.Running:
		s.cancel = true
	case o.kind == "cancel":
		s.cancel, s.status, s.owner = true, task.Cancelled, task.LeaseRef{}
	case o.kind == "claim":
		if s.owner == (task.LeaseRef{}) && o.ref.TaskID == s.id && o.ref.Attempt == s.attempt+1 {
			s.owner = o.ref
		}
	case o.kind == "start" && owned:
		s.status, s.attempt = task.Running, o.ref.Attempt
	case o.kind == "finish" && owned:
		return s.ended(o)
	}
	return s
}

// ended is the end of an attempt, reported by its owner.
func (s single) ended(o op) single {
	s.attempt, s.last, s.owner = o.ref.Attempt, o.ref, task.LeaseRef{}
	switch {
	case o.outcome == task.OutcomeCompleted:
		s.status, s.finished = task.Completed, o.ref.Epoch
	case s.cancel:
		s.status = task.Cancelled
	case s.failures == 0:
		s.status, s.failures = task.Pending, 1
	default:
		s.status = task.Failed
	}
	return s
}
