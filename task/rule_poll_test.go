package task_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apbus/apbus/task"
)

// A process that has lost an attempt may be gone with the claim that it left waiting.
// What it lost goes to somebody else, and if it lives it asks again.
func TestRule07_LostAttemptsDoNotReturnToTheWaitingClaimOfTheirProcess(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		poll := func(node, boot string) <-chan task.ClaimAnswer {
			answers := make(chan task.ClaimAnswer, 1)
			go func() {
				a, err := f.Claim(context.Background(), task.ClaimRequest{
					Node: node, Boot: boot, Modules: []string{"job.safe"}, Slots: 4, WaitMS: 60_000,
				})
				if err != nil {
					t.Errorf("claim of %s: %v", node, err)
				}
				answers <- a
			}()
			synctest.Wait()
			return answers
		}
		id := f.submit(task.Submission{ModuleID: "job.safe"})
		if a := <-poll("n1", "b1"); len(a.Grants) != 1 {
			t.Fatalf("the first claim: %+v", a)
		}
		dead := poll("n1", "b1") // asks for more, and is never heard of again
		reborn := poll("n1", "b2")
		began := time.Now()
		a := <-reborn
		if len(a.Grants) != 1 || a.Grants[0].TaskID != id {
			t.Fatalf("the other process was granted %+v", a.Grants)
		}
		if took := time.Since(began); took > 5*time.Second+10*time.Millisecond {
			t.Errorf("it took %v, more than a node has to speak of a grant", took)
		}
		if a := <-dead; len(a.Grants) > 0 {
			t.Errorf("the process that lost it was granted %+v", a.Grants)
		}
	})
}

func TestUndeliveredGrantsAreFreeAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		id := f.submit(task.Submission{ModuleID: "job.safe"})
		lost := f.claim("n1", 1, "job.safe")
		f.Undelivered([]task.LeaseRef{lost[0].LeaseRef})
		f.want(id, task.Pending, task.Queued)
		again := f.claim("n2", 1, "job.safe")
		if len(again) != 1 || again[0].TaskID != id || again[0].Attempt != 1 {
			t.Fatalf("claimed %+v", again)
		}
		f.Undelivered([]task.LeaseRef{lost[0].LeaseRef}) // late, and stale
		f.succeed(again[0], `{}`)
		if r := f.get(id); r.Deliveries != 0 || r.RetryCount != 0 || r.Attempt != 1 {
			t.Errorf("what was not delivered counts: %+v", r)
		}
	})
}

// A node that has spoken of an attempt has it, whatever a server says of the answer.
func TestWhatANodeSpokeOfIsNotUndelivered(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		id := f.submit(task.Submission{ModuleID: "job.safe"})
		got := f.claim("n1", 1, "job.safe")
		a, err := f.Renew(context.Background(), task.RenewRequest{Node: "n1", Refs: []task.LeaseRef{got[0].LeaseRef}})
		if err != nil || a.Verdicts[0].Lost {
			t.Fatalf("renewal: %+v, %v", a, err)
		}
		f.Undelivered([]task.LeaseRef{got[0].LeaseRef})
		if again := f.claim("n2", 1, "job.safe"); len(again) > 0 {
			t.Fatalf("it runs on n1 and is granted again: %+v", again)
		}
		f.succeed(got[0], `{}`)
		f.want(id, task.Completed, "")
	})
}
