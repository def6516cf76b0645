package task_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/module"
	"github.com/apbus/apbus/task"
)

func TestRule10_ResultsAndTheirTime(t *testing.T) {
	big := `{"s":"` + strings.Repeat("x", 40<<10) + `"}`
	for _, out := range []string{`{"small":1.0}`, big} {
		t.Run(fmt.Sprint(len(out)), func(t *testing.T) {
			bubble(t, func(t *testing.T, f *fixture) {
				ctx := context.Background()
				id := f.submit(task.Submission{ModuleID: "job.safe"})
				f.succeed(f.run("n1", "job.safe"), out)
				read := func() {
					t.Helper()
					res, err := f.Result(ctx, task.ResultRequest{TaskID: id})
					if err != nil || string(res.Output) != out || res.Status != task.Completed {
						t.Errorf("%d bytes, %+v, %v", len(res.Output), res.Task, err)
					}
				}
				read()
				if entries := f.mem.Len(); entries != 1+len(out)/(40<<10) {
					t.Errorf("%d entries", entries)
				}
				f.crash()
				read()
				wait(59 * time.Minute)
				read()
				wait(2 * time.Minute)
				_, err := f.Result(ctx, task.ResultRequest{TaskID: id})
				wantCode(t, err, module.CodeTaskExpired)
				_, err = f.Get(ctx, id)
				wantCode(t, err, module.CodeTaskExpired)
				f.crash()
				_, err = f.Get(ctx, id)
				wantCode(t, err, module.CodeTaskExpired)
				for _, never := range []string{"", "x", "5b8ee3f0-96a9-4f6c-8b55-3b8a8f2f1a11"} {
					_, err = f.Get(ctx, never)
					wantCode(t, err, module.CodeTaskNotFound)
				}
			})
		})
	}
}

func TestRule10_FailedAndDeadAreKeptLonger(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		id := f.submit(task.Submission{ModuleID: "job.safe"})
		f.fail(f.run("n1", "job.safe"), errors.New("no"))
		gone := f.submit(task.Submission{ModuleID: "job.safe"})
		f.cancel(gone)
		wait(7*24*time.Hour - time.Minute)
		f.want(id, task.Failed, "")
		if _, err := f.Get(context.Background(), gone); module.AsError(err).Code != module.CodeTaskExpired {
			t.Errorf("cancelled: %v", err)
		}
		res, err := f.Result(context.Background(), task.ResultRequest{TaskID: id})
		if err != nil || res.Status != task.Failed || res.Error.Code() != module.CodeInternal {
			t.Errorf("%+v, %v", res, err)
		}
		wait(2 * time.Minute)
		if _, err := f.Get(context.Background(), id); module.AsError(err).Code != module.CodeTaskExpired {
			t.Errorf("failed: %v", err)
		}
	})
}

func TestRule10_ReportsThatCannotBeKept(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		for _, out := range []string{``, `null`, `[1]`, `{"a":`, `{"s":"` + strings.Repeat("x", 600<<10) + `"}`} {
			id := f.submit(task.Submission{ModuleID: "job.safe", Retry: &task.RetryOptions{MaxRetries: ptr(3)}})
			f.succeed(f.run("n1", "job.safe"), out)
			r := f.want(id, task.Failed, "")
			wantCode(t, r.Error.Err(), module.CodeTaskResultInvalid)
			if r.Attempt != 1 {
				t.Errorf("%d attempts", r.Attempt)
			}
		}
		g := f.run2("job.safe")
		_, err := f.Finish(context.Background(), task.FinishReport{LeaseRef: g.LeaseRef, Outcome: "vanished"})
		wantCode(t, err, module.CodeInvalidInput)
	})
}

// run2 submits a task and runs it.
func (f *fixture) run2(moduleID string) task.Grant {
	f.submit(task.Submission{ModuleID: moduleID})
	return f.run("n1", moduleID)
}

func TestRule11_WaitingForAResult(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		ctx := context.Background()
		id := f.submit(task.Submission{ModuleID: "job.safe"})
		res, err := f.Result(ctx, task.ResultRequest{TaskID: id, WaitMS: 5000})
		if err != nil || res.Status != task.Pending {
			t.Fatalf("%+v, %v", res, err)
		}
		got := make(chan task.Result, 1)
		go func() {
			res, err := f.Result(ctx, task.ResultRequest{TaskID: id, WaitMS: 60_000})
			if err != nil {
				t.Error(err)
			}
			got <- res
		}()
		wait(10 * time.Second)
		f.succeed(f.run("n1", "job.safe"), `{"ok":1}`)
		if res := <-got; string(res.Output) != `{"ok":1}` {
			t.Errorf("%+v", res)
		}
		short, stop := context.WithTimeout(ctx, time.Second)
		defer stop()
		other := f.submit(task.Submission{ModuleID: "job.safe"})
		_, err = f.Result(short, task.ResultRequest{TaskID: other, WaitMS: 60_000})
		wantCode(t, err, module.CodeTaskStoreUnavailable)
	})
}

// follow collects the events of a task in the background.
func follow(f *fixture, id string, after int64) (got chan task.Event) {
	got = make(chan task.Event, 1000)
	go func() {
		defer close(got)
		for e, err := range task.Follow(context.Background(), f.Writer, id, after) {
			if err != nil {
				return
			}
			got <- e
		}
	}()
	return got
}

func kinds(events []task.Event) string {
	var b strings.Builder
	for _, e := range events {
		b.WriteString(e.Kind)
		if e.Transition != nil {
			b.WriteString(":" + e.Transition.Cause)
		}
		b.WriteString(" ")
	}
	return strings.TrimSpace(b.String())
}

func drain(ch chan task.Event) (list []task.Event) {
	for e := range ch {
		list = append(list, e)
	}
	return list
}

func TestRule11_Events(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		ctx := context.Background()
		id := f.submit(task.Submission{ModuleID: "job.effect", Retry: &task.RetryOptions{MaxRetries: ptr(1)}})
		all := follow(f, id, 0)
		wait(time.Second)
		g := f.run("n1", "job.effect")
		for i := range 3 {
			if err := f.Progress(ctx, task.ProgressReport{LeaseRef: g.LeaseRef, Done: float64(i), Total: 3}); err != nil {
				t.Fatal(err)
			}
			wait(time.Second)
		}
		page, err := f.Events(ctx, task.EventsRequest{TaskID: id})
		if err != nil || page.Ended {
			t.Fatalf("%+v, %v", page, err)
		}
		if got := kinds(page.Events); got != "snapshot transition:submitted transition:started progress" {
			t.Errorf("in the middle: %s", got)
		}
		resumed := follow(f, id, page.Next)
		f.fail(g, errors.New("no"))
		wait(2 * time.Second)
		f.succeed(f.run("n1", "job.effect"), `{}`)
		whole := drain(all)
		if got, want := kinds(whole), "snapshot transition:submitted transition:started progress progress progress transition:GENERAL_INTERNAL_ERROR transition:due transition:started end:completed"; got != want {
			t.Errorf("followed:\n%s, want\n%s", got, want)
		}
		for i := 1; i < len(whole); i++ {
			if whole[i].Number <= whole[i-1].Number {
				t.Errorf("numbers do not rise: %d after %d", whole[i].Number, whole[i-1].Number)
			}
		}
		if got, want := kinds(drain(resumed)), "transition:GENERAL_INTERNAL_ERROR transition:due transition:started end:completed"; got != want {
			t.Errorf("resumed:\n%s, want\n%s", got, want)
		}
		last := whole[len(whole)-1]
		if last.Task == nil || last.Task.Status != task.Completed {
			t.Errorf("the end: %+v", last)
		}
		if got := kinds(drain(follow(f, id, last.Number))); got != "end:completed" {
			t.Errorf("a reader that had the end: %s", got)
		}
		if got := kinds(drain(follow(f, id, last.Number+1e9))); got != "gap end:completed" {
			t.Errorf("a reader that knows more than there is: %s", got)
		}
		_, err = f.Events(ctx, task.EventsRequest{TaskID: "none"})
		wantCode(t, err, module.CodeTaskNotFound)
	})
}

func TestRule11_AReaderBehindTheTimelineSeesAGap(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		id := f.submit(task.Submission{ModuleID: "job.effect", Retry: &task.RetryOptions{MaxRetries: ptr(200), RetryDelayMS: ptr(int64(0))}})
		first := f.get(id).Number
		for range 60 {
			f.fail(f.run("n1", "job.effect"), errors.New("no"))
			wait(time.Millisecond)
		}
		r := f.get(id)
		if len(r.Timeline) != 100 || r.TimelineDropped != 81 {
			t.Errorf("%d kept, %d dropped", len(r.Timeline), r.TimelineDropped)
		}
		page, err := f.Events(context.Background(), task.EventsRequest{TaskID: id, After: first})
		if err != nil || page.Events[0].Kind != task.EventGap || page.Events[0].Task == nil || len(page.Events) != 101 {
			t.Errorf("%s, %v", kinds(page.Events), err)
		}
	})
}

func TestRule11_AReaderResumesAcrossWriters(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		ctx := context.Background()
		id := f.submit(task.Submission{ModuleID: "job.safe"})
		g := f.run("n1", "job.safe") // not written yet
		if err := f.Progress(ctx, task.ProgressReport{LeaseRef: g.LeaseRef, Done: 1, Total: 2}); err != nil {
			t.Fatal(err)
		}
		page, err := f.Events(ctx, task.EventsRequest{TaskID: id})
		if err != nil {
			t.Fatal(err)
		}
		f.crash()
		again, err := f.Events(ctx, task.EventsRequest{TaskID: id, After: page.Next})
		if err != nil || kinds(again.Events) != "gap" || again.Events[0].Task.Detail != task.Queued {
			t.Errorf("%s, %v", kinds(again.Events), err)
		}
		f.succeed(g, `{}`) // its node goes on
		end, err := f.Events(ctx, task.EventsRequest{TaskID: id, After: again.Next})
		if err != nil || !strings.HasSuffix(kinds(end.Events), "end:completed") || !end.Ended {
			t.Errorf("%s, %v", kinds(end.Events), err)
		}
	})
}

func TestRule13_ReadersGetRedactedRecords(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		ctx := context.Background()
		f.info["pay.charge"] = task.Described{Descriptor: module.Descriptor{ID: "pay.charge",
			InputSchema:  map[string]any{"type": "object", "properties": map[string]any{"card": map[string]any{"type": "string", "x-sensitive": true}}},
			OutputSchema: map[string]any{"type": "object", "properties": map[string]any{"iban": map[string]any{"type": "string", "x-sensitive": true}}},
		}}
		c, err := contextwire.EncodeContext(module.NewContext(module.ContextOptions{Data: map[string]any{"api_key": "s3cret-a"}}), contextwire.JSON)
		if err != nil {
			t.Fatal(err)
		}
		secrets := []string{"s3cret-a", "s3cret-b", "s3cret-c", "s3cret-d", "s3cret-e"}
		var ids []string
		for _, m := range []string{"pay.charge", "un.known"} {
			ids = append(ids, f.submit(task.Submission{ModuleID: m, Context: c, Inputs: []byte(`{"card":"s3cret-b","password":"s3cret-c","ok":1}`)}))
		}
		shown := func(what string, v any) {
			t.Helper()
			b, err := json.Marshal(v)
			if err != nil {
				t.Fatal(err)
			}
			for _, s := range secrets {
				// Of an unknown module only names tell; "card" is none.
				if strings.Contains(string(b), s) && !(s == "s3cret-b" && strings.Contains(string(b), "un.known")) {
					t.Errorf("%s shows %s: %s", what, s, b)
				}
			}
		}
		g := f.run("n1", "pay.charge")
		if !strings.Contains(string(g.Inputs), "s3cret-b") {
			t.Error("the attempt does not get its inputs")
		}
		if err := f.Checkpoint(ctx, task.CheckpointReport{LeaseRef: g.LeaseRef, Checkpoint: []byte(`{"token":"s3cret-e"}`)}); err != nil {
			t.Fatal(err)
		}
		f.succeed(g, `{"iban":"s3cret-d"}`)
		for _, id := range ids {
			shown("Get", f.get(id))
			ev, err := f.Events(ctx, task.EventsRequest{TaskID: id})
			if err != nil {
				t.Fatal(err)
			}
			shown("Events", ev)
		}
		page, err := f.List(ctx, task.ListRequest{})
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range page.Tasks {
			shown("List", r)
		}
		if _, err := f.PutSchedule(ctx, task.ScheduleSpec{Name: "s", Cron: "@daily", Task: task.Submission{ModuleID: "pay.charge", Inputs: []byte(`{"card":"s3cret-b"}`)}}, "ann", false); err != nil {
			t.Fatal(err)
		}
		ss, err := f.Schedules(ctx)
		if err != nil {
			t.Fatal(err)
		}
		shown("Schedules", ss)

		raw, err := f.RawInputs(ctx, ids[0], "auditor")
		if err != nil || !strings.Contains(string(raw), "s3cret-b") {
			t.Errorf("raw inputs %s, %v", raw, err)
		}
		tl := f.get(ids[0]).Timeline
		if last := tl[len(tl)-1]; last.Cause != "inputs_read" || last.Actor != "auditor" {
			t.Errorf("the reading is not recorded: %+v", last)
		}
	})
}

func TestRule14_RecordsThatCannotBeUsed(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		ctx := context.Background()
		good := f.submit(task.Submission{ModuleID: "job.safe"})
		newer := f.submit(task.Submission{ModuleID: "job.safe"})
		f.close()
		log := f.mem.Lead()
		e, _, err := log.Get(ctx, task.KeyTask+newer)
		if err != nil {
			t.Fatal(err)
		}
		odd := []task.Entry{
			{Key: task.KeyTask + newer, Body: []byte(strings.Replace(string(e.Body), `"v":1`, `"v":9`, 1))},
			{Key: task.KeyTask + "11111111-1111-4111-8111-111111111111", Body: []byte("\x00garbage")},
			{Key: task.KeyTask + "22222222-2222-4222-8222-222222222222", Body: []byte(`{"v":1,"task_id":"22222222-2222-4222-8222-222222222222"}`)},
			{Key: task.KeyTask + "not-an-id", Body: e.Body},
			{Key: task.KeySchedule + "broken", Body: []byte(`{`)},
			{Key: task.KeyQueue + "job.broken", Body: []byte(`7`)},
		}
		if err := log.Commit(ctx, odd); err != nil {
			t.Fatal(err)
		}
		f.lead()
		wait(time.Second)
		if r := f.want(newer, task.Pending, task.Blocked); r.BlockedBy != task.BlockedNewer || r.V != 9 {
			t.Errorf("%+v", r)
		}
		page, err := f.List(ctx, task.ListRequest{Filter: task.Filter{Detail: task.Blocked}})
		if err != nil || len(page.Tasks) != 4 || page.Unreadable != 4 {
			t.Fatalf("%+v, %v", page, err)
		}
		for _, r := range page.Tasks {
			if _, err := f.Get(ctx, r.TaskID); err != nil {
				t.Errorf("%s is listed and cannot be read: %v", r.TaskID, err)
			}
			_, err := f.Cancel(ctx, task.CancelAsk{TaskID: r.TaskID})
			wantCode(t, err, module.CodeTaskUnreadable)
			_, err = f.Retry(ctx, task.ActAsk{TaskID: r.TaskID})
			wantCode(t, err, module.CodeTaskUnreadable)
			wantCode(t, f.Delete(ctx, r.TaskID, "ann"), module.CodeTaskUnreadable)
		}
		if _, err := f.Bulk(ctx, task.BulkRequest{Action: task.ActionCancel, Filter: task.Filter{Detail: task.Blocked}}); err != nil {
			t.Error(err)
		}
		gs := f.claim("n1", 10, "job.safe")
		if len(gs) != 1 || gs[0].TaskID != good {
			t.Fatalf("grants %+v", gs)
		}
		wait(100 * time.Hour)
		for _, o := range odd {
			if e, ok, err := log.Get(ctx, o.Key); err != nil || !ok || string(e.Body) != string(o.Body) {
				t.Errorf("%s was touched: %s, %v, %v", o.Key, e.Body, ok, err)
			}
		}
	})
}

func TestRule14_ARecordThatTurnsOutToBeBad(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		ctx := context.Background()
		bad := f.submit(task.Submission{ModuleID: "job.effect"})
		good := f.submit(task.Submission{ModuleID: "job.effect"})
		f.close()
		log := f.mem.Lead()
		e, _, err := log.Get(ctx, task.KeyTask+bad)
		if err != nil {
			t.Fatal(err)
		}
		head, _, _ := strings.Cut(string(e.Body), `"inputs"`)
		if err := log.Commit(ctx, []task.Entry{{Key: e.Key, Body: []byte(head + "garbage")}}); err != nil {
			t.Fatal(err)
		}
		f.lead()
		gs := f.claim("n1", 10, "job.effect")
		if len(gs) != 1 || gs[0].TaskID != good {
			t.Fatalf("grants %+v", gs)
		}
		if r := f.want(bad, task.Pending, task.Blocked); r.BlockedBy != task.BlockedUnreadable {
			t.Errorf("%+v", r)
		}
		if s := f.Stats(); s.Unreadable != 1 || s.QueuedTasks != 0 || s.Active != 1 {
			t.Errorf("%+v", s)
		}
	})
}

func TestListPages(t *testing.T) {
	for _, newest := range []bool{false, true} {
		bubble(t, func(t *testing.T, f *fixture) {
			ctx := context.Background()
			var want []string
			for i := range 57 {
				id := f.submit(task.Submission{ModuleID: []string{"job.safe", "job.effect"}[i%2]})
				if i%2 == 0 {
					want = append(want, id)
				}
			}
			if newest {
				for i, j := 0, len(want)-1; i < j; i, j = i+1, j-1 {
					want[i], want[j] = want[j], want[i]
				}
			}
			var got []string
			req := task.ListRequest{Filter: task.Filter{ModuleID: "job.safe", Status: task.Pending}, Limit: 10, NewestFirst: newest}
			for {
				page, err := f.List(ctx, req)
				if err != nil {
					t.Fatal(err)
				}
				for _, r := range page.Tasks {
					got = append(got, r.TaskID)
				}
				if len(got) == 10 { // new ones do not disturb
					f.submit(task.Submission{ModuleID: "job.effect"})
				}
				if req.Cursor = page.Cursor; req.Cursor == "" {
					break
				}
			}
			if strings.Join(got, " ") != strings.Join(want, " ") {
				t.Errorf("newest %v: %d listed, want %d", newest, len(got), len(want))
			}
			if page, err := f.List(ctx, task.ListRequest{Filter: task.Filter{Query: want[3][:13]}}); err != nil || len(page.Tasks) != 1 {
				t.Errorf("search: %d, %v", len(page.Tasks), err)
			}
			for _, req := range []task.ListRequest{
				{Limit: -1}, {Limit: 5000}, {Cursor: "x"}, {Cursor: "n-1", NewestFirst: false}, {Filter: task.Filter{Status: "odd"}},
				{Filter: task.Filter{Detail: "odd"}}, {Filter: task.Filter{Parent: "odd"}},
			} {
				_, err := f.List(ctx, req)
				wantCode(t, err, module.CodeInvalidInput)
			}
		})
	}
}

func TestRecordsBeyondMemoryAreReadFromTheLog(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		for i := range 50 {
			f.submit(task.Submission{ModuleID: "job.effect", Inputs: fmt.Appendf(nil, `{"i":%d}`, i), RunAt: []string{"", time.Now().Add(time.Minute).Format(time.RFC3339)}[i%2]})
		}
		if s := f.Stats(); s.HeldBytes > 10_000 {
			t.Errorf("%d bytes are held", s.HeldBytes)
		}
		wait(2 * time.Minute)
		gs := f.claim("n1", 50, "job.effect")
		for len(gs) < 50 {
			more := f.claim("n1", 50, "job.effect")
			if len(more) == 0 {
				break
			}
			gs = append(gs, more...)
		}
		seen := map[string]bool{}
		for _, g := range gs {
			seen[string(g.Inputs)] = true
		}
		if len(seen) != 50 {
			t.Errorf("%d tasks granted", len(seen))
		}
	}, func(o *task.WriterOptions) { o.HeldBytes = 5000 })
}

func TestReportsOfAttemptsThatNeverWereHoldNoRecords(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		var refs []task.LeaseRef
		for range 100 {
			id := f.submit(task.Submission{ModuleID: "job.safe"})
			refs = append(refs, task.LeaseRef{TaskID: id, Attempt: 7, Epoch: 7}) // the next one is the first
		}
		f.crash()
		<-f.Ready()
		reads := f.Stats().LogReads
		a, err := f.Renew(context.Background(), task.RenewRequest{Node: "n1", Refs: refs})
		if err != nil {
			t.Fatal(err)
		}
		for i, v := range a.Verdicts {
			if !v.Lost {
				t.Errorf("renewal %d of what never was: %+v", i, v)
			}
		}
		if s := f.Stats(); s.LogReads < reads+100 || s.HeldBytes > 10_000 {
			t.Errorf("%d bytes are held after %d reads", s.HeldBytes, s.LogReads-reads)
		}
	}, func(o *task.WriterOptions) { o.HeldBytes = 5000 })
}
