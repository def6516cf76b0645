package task

import (
	"encoding/json"
	"testing"
	"time"
	"unsafe"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/apbus/apbus/module"
)

func anyRecord(rt *rapid.T) *Record {
	text := rapid.OneOf(rapid.Just(""), rapid.StringMatching(`[a-z0-9 .:-]{1,12}`), rapid.StringN(0, 8, -1))
	stamp := rapid.Custom(func(rt *rapid.T) Stamp { return Stamp(rapid.Int64Range(0, 4e15).Draw(rt, "stamp")) })
	raw := rapid.SampledFrom([]string{"", `{}`, `{"a":[1.0,"x\n"],"b":{"context":1}}`, "{\n \"k\" : null }"})
	n := rapid.Int64Range(0, 1<<53)
	r := &Record{
		V: 1, TaskID: text.Draw(rt, "id"), ModuleID: "job." + rapid.StringMatching(`[a-z]{1,5}`).Draw(rt, "module"),
		Status: rapid.SampledFrom([]Status{Pending, Completed, Failed, Cancelled, Running}).Draw(rt, "status"),
		Detail: rapid.SampledFrom([]Detail{"", Queued, BackingOff, AwaitingApproval, Dead}).Draw(rt, "detail"),
		Order:  1 + n.Draw(rt, "order"), Number: 1 + n.Draw(rt, "number"),
		SubmittedAt: stamp.Draw(rt, "t"), RestartedAt: stamp.Draw(rt, "t"), StartedAt: stamp.Draw(rt, "t"), CompletedAt: stamp.Draw(rt, "t"),
		ReadyAt: stamp.Draw(rt, "t"), ExpiresAt: stamp.Draw(rt, "t"), Priority: rapid.IntRange(0, 9).Draw(rt, "p"), Attempt: int(n.Draw(rt, "a")),
		Timeouts:       Timeouts{n.Draw(rt, "q"), n.Draw(rt, "q"), n.Draw(rt, "q")},
		IdempotencyKey: text.Draw(rt, "key"), InputDigest: text.Draw(rt, "d"), ConcurrencyKey: text.Draw(rt, "key"), Parent: text.Draw(rt, "parent"),
		Detached: rapid.Bool().Draw(rt, "b"), ApprovalID: text.Draw(rt, "ap"), Approved: rapid.Bool().Draw(rt, "b"), Rerun: rapid.Bool().Draw(rt, "b"),
		RetryCount: 3, MaxRetries: 4, RunAt: text.Draw(rt, "at"), Schedule: text.Draw(rt, "s"),
		Retry: Retry{4, n.Draw(rt, "r"), rapid.Float64Range(0.001, 1000).Draw(rt, "m"), n.Draw(rt, "r")}, OnCrash: CrashRetry,
		LastOwner: text.Draw(rt, "o"), LastEpoch: n.Draw(rt, "e"), VoidEpoch: n.Draw(rt, "e"), Deliveries: 2, TimelineDropped: rapid.IntRange(0, 3).Draw(rt, "dropped"),
		Timeline: []Transition{},
	}
	for _, to := range []*json.RawMessage{&r.Context, &r.Inputs, &r.Result, &r.Checkpoint} {
		if s := raw.Draw(rt, "raw"); s != "" {
			*to = json.RawMessage(s)
		}
	}
	if r.Status == Running || rapid.Bool().Draw(rt, "lease") {
		r.Lease = &Lease{Node: text.Draw(rt, "n"), Epoch: n.Draw(rt, "e"), Until: stamp.Draw(rt, "t"), Call: text.Draw(rt, "c")}
	}
	if rapid.Bool().Draw(rt, "more") {
		r.CancelRequested = &CancelRequest{By: text.Draw(rt, "by"), Reason: text.Draw(rt, "why"), At: stamp.Draw(rt, "t")}
		r.Progress = &Progress{Done: 1.5, Total: 3, Note: text.Draw(rt, "note"), At: stamp.Draw(rt, "t"), Number: 7}
		r.ResultRef = &ResultRef{Store: "object", Name: text.Draw(rt, "name"), Size: 9}
		e := module.Errorf("OWN_CODE", "%s", text.Draw(rt, "message")).WithDetail("n", int64(1))
		r.Error = &Failure{e}
		for range rapid.IntRange(1, 3).Draw(rt, "steps") {
			r.Timeline = append(r.Timeline, Transition{n.Draw(rt, "n"), stamp.Draw(rt, "t"), Running, Queued, text.Draw(rt, "actor"), text.Draw(rt, "node"), 1, text.Draw(rt, "cause")})
		}
	}
	return r
}

// sameFailure compares failures by what is on the wire.
var sameFailure = cmp.Comparer(func(a, b *Failure) bool {
	x, err1 := json.Marshal(a)
	y, err2 := json.Marshal(b)
	return err1 == nil && err2 == nil && string(x) == string(y)
})

func TestRecordsSurviveTheLog(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		want := anyRecord(rt)
		b := encodeRecord(want)
		got, err := decodeRecord(b)
		if err != nil {
			rt.Fatalf("%v: %s", err, b)
		}
		// Text that is not UTF-8 never gets into a record; JSON would mend it.
		if d := cmp.Diff(want, got, sameFailure, cmpopts.EquateEmpty()); d != "" {
			rt.Fatalf("(-want +got):\n%s\n%s", d, b)
		}
		// The same members as the JSON that readers get.
		plain, err := json.Marshal(want)
		if err != nil {
			rt.Fatal(err)
		}
		var x, y map[string]any
		if err := json.Unmarshal(b, &x); err != nil {
			rt.Fatal(err)
		}
		if err := json.Unmarshal(plain, &y); err != nil {
			rt.Fatal(err)
		}
		for _, m := range []map[string]any{x, y} {
			for _, k := range []string{"context", "inputs"} { // null and absent are the same
				if m[k] == nil {
					delete(m, k)
				}
			}
		}
		if d := cmp.Diff(y, x); d != "" {
			rt.Fatalf("beside encoding/json (-want +got):\n%s", d)
		}
		sameIndex(rt, b, got)
	})
}

type fataler interface {
	Fatalf(format string, args ...any)
}

// sameIndex judges the short way of reading by the long one.
func sameIndex(t fataler, b []byte, whole *Record) {
	short := new(Record)
	if !decodeIndex(b, short, "", nil) {
		return
	}
	if whole == nil {
		t.Fatalf("the index reads what cannot be read: %s", b)
	}
	want := &Record{
		V: whole.V, TaskID: whole.TaskID, ModuleID: whole.ModuleID, Status: whole.Status, Detail: whole.Detail, Order: whole.Order, Number: whole.Number,
		SubmittedAt: whole.SubmittedAt, RestartedAt: whole.RestartedAt, StartedAt: whole.StartedAt, CompletedAt: whole.CompletedAt,
		ReadyAt: whole.ReadyAt, ExpiresAt: whole.ExpiresAt, Priority: whole.Priority, Attempt: whole.Attempt, Timeouts: whole.Timeouts,
		IdempotencyKey: whole.IdempotencyKey, InputDigest: whole.InputDigest, ConcurrencyKey: whole.ConcurrencyKey, Parent: whole.Parent,
		Detached: whole.Detached, ApprovalID: whole.ApprovalID,
	}
	if d := cmp.Diff(want, short); d != "" {
		t.Fatalf("the index reads (-want +got):\n%s\nof %s", d, b)
	}
}

func TestTheIndexIsReadTheShortWay(t *testing.T) {
	r := &Record{
		V: 1, TaskID: newTaskID("x", time.Unix(1e9, 0)).String(), ModuleID: "job.one", Status: Completed, Order: 5, Number: 6, SubmittedAt: 1700000000123400,
		CompletedAt: 1700000001000000, Priority: 5, IdempotencyKey: "k", Context: json.RawMessage(`{}`), Timeline: []Transition{},
	}
	short := new(Record)
	if !decodeIndex(encodeRecord(r), short, r.TaskID, map[string]string{}) {
		t.Errorf("not %s", encodeRecord(r))
	}
}

func FuzzRecord(f *testing.F) {
	f.Add([]byte(`{}`))
	f.Add([]byte(`{"v":1,"task_id":"a","module_id":"b.c","status":"pending","order":1,"number":1,"submitted_at":1.5,"context":null}`))
	f.Add([]byte(`{"v":1,"v":2,"context":{}}`))
	f.Add(encodeRecord(&Record{V: 1, TaskID: "a", ModuleID: "b.c", Status: Pending, Detail: Queued, Order: 1, Number: 2, Timeline: []Transition{{Number: 1}}}))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := decodeRecord(b)
		if err != nil {
			return
		}
		if r.V <= RecordVersion {
			if again, err := decodeRecord(encodeRecord(r)); err != nil || again.Number != r.Number || again.Status != r.Status {
				t.Fatalf("%+v comes back as %+v, %v", r, again, err)
			}
		}
	})
}

func TestItemsAreSmall(t *testing.T) {
	if size := unsafe.Sizeof(item{}); size > 80 {
		t.Errorf("an item has %d bytes; a writer holds a million of them", size)
	}
}
