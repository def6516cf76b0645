package task

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/apbus/apbus/module"
)

// texts are values of members: mostly plain, sometimes such that the fast reader must
// leave them to encoding/json.
func texts() *rapid.Generator[string] {
	return rapid.OneOf(rapid.StringMatching(`[a-z0-9._-]{0,12}`), rapid.SampledFrom([]string{"", "ä", `q"\`, "<&>", "\u2028", "a\nb"}))
}

func raws() *rapid.Generator[json.RawMessage] {
	return rapid.Map(rapid.SampledFrom([]string{
		"", `{}`, `{"a":1}`, `{"a":{"b":[1,2,{"c":"}]\""}]},"d":"\\\\"}`, `{"text":"[{\"\\"}`, `[]`, `{"a":null,"b":true}`, `{"ü":"😀"}`,
	}), func(s string) json.RawMessage { return json.RawMessage(s) })
}

func failures() *rapid.Generator[*Failure] {
	return rapid.SampledFrom([]*Failure{
		nil, nil, Fail(module.Errorf(module.CodeTaskLeaseLost, "not yours")),
		Fail(module.Errorf(module.CodeModuleExecuteError, "a \"quoted\" cause").WithDetail("n", int64(7))),
	})
}

func refs() *rapid.Generator[LeaseRef] {
	return rapid.Custom(func(t *rapid.T) LeaseRef {
		return LeaseRef{TaskID: texts().Draw(t, "id"), Attempt: rapid.IntRange(0, 99).Draw(t, "attempt"), Epoch: rapid.Int64Range(0, 1<<53).Draw(t, "epoch")}
	})
}

// sameAsJSON writes v by hand and by encoding/json, and reads each form in each way:
// all of them are v. fast is what the hand-written reader does.
func sameAsJSON[T any](t *rapid.T, v T, byHand []byte, fast func(*T, []byte) bool) {
	t.Helper()
	opts := cmp.Options{cmpopts.EquateEmpty(), cmp.Comparer(func(a, b *Failure) bool {
		x, _ := a.MarshalJSON()
		y, _ := b.MarshalJSON()
		return string(x) == string(y)
	})}
	standard, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	var want, got T
	if err := json.Unmarshal(standard, &want); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(byHand, &got); err != nil {
		t.Fatalf("%v: %s", err, byHand)
	}
	if d := cmp.Diff(want, got, opts); d != "" {
		t.Fatalf("written by hand: %s\n%s", d, byHand)
	}
	for _, form := range [][]byte{byHand, standard} {
		var read T
		if fast(&read, form) {
			if d := cmp.Diff(want, read, opts); d != "" {
				t.Fatalf("read by hand: %s\n%s", d, form)
			}
		}
		var cut T
		if n := rapid.IntRange(0, len(form)-1).Draw(t, "cut"); fast(&cut, form[:n]) {
			t.Fatalf("a message that was cut is read: %s", form[:n])
		}
	}
}

// TestMessagesAreTheirJSON compares the hand-written forms of messages with those of
// encoding/json.
func TestMessagesAreTheirJSON(t *testing.T) {
	must := func(t *rapid.T, b []byte, err error) []byte {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	join := func(member string, list [][]byte) []byte {
		b := append([]byte(`{"`+member), `":[`...)
		for i, e := range list {
			if i > 0 {
				b = append(b, ',')
			}
			b = append(b, e...)
		}
		return append(b, "]}"...)
	}
	count := rapid.IntRange(0, 4)
	t.Run("submit", func(t *testing.T) {
		rapid.Check(t, func(t *rapid.T) {
			var req SubmitRequest
			var parts [][]byte
			for range count.Draw(t, "n") {
				s := Submission{
					ModuleID: texts().Draw(t, "module"), Inputs: raws().Draw(t, "inputs"), IdempotencyKey: texts().Draw(t, "key"),
					RunAt: texts().Draw(t, "at"), OnCrash: OnCrash(texts().Draw(t, "crash")), ConcurrencyKey: texts().Draw(t, "ck"),
					Detached: rapid.Bool().Draw(t, "detached"), ParentTaskID: texts().Draw(t, "parent"), Context: raws().Draw(t, "context"),
				}
				if rapid.IntRange(0, 9).Draw(t, "rare") == 0 {
					s.Priority = new(rapid.IntRange(0, 9).Draw(t, "priority"))
					s.Retry = &RetryOptions{MaxRetries: new(3)}
				}
				part, err := s.AppendJSON(nil)
				req.Tasks, parts = append(req.Tasks, s), append(parts, must(t, part, err))
			}
			if req.Tasks == nil {
				req.Tasks = []Submission{}
			}
			sameAsJSON(t, req, join("tasks", parts), (*SubmitRequest).ReadJSON)
		})
	})
	t.Run("receipts", func(t *testing.T) {
		rapid.Check(t, func(t *rapid.T) {
			a := SubmitAnswer{Receipts: []Verdict{}}
			for range count.Draw(t, "n") {
				v := Verdict{Error: failures().Draw(t, "error")}
				if v.Error == nil {
					v.Receipt = &Receipt{TaskID: texts().Draw(t, "id"), Status: Pending, Detail: Queued, Deduplicated: rapid.Bool().Draw(t, "dup"), Durability: texts().Draw(t, "d")}
				}
				a.Receipts = append(a.Receipts, v)
			}
			b, err := a.AppendJSON(nil)
			sameAsJSON(t, a, must(t, b, err), (*SubmitAnswer).ReadJSON)
		})
	})
	t.Run("grants", func(t *testing.T) {
		rapid.Check(t, func(t *rapid.T) {
			a := ClaimAnswer{Grants: []Grant{}, WaitedMS: rapid.Int64Range(0, 1e6).Draw(t, "waited")}
			for range count.Draw(t, "n") {
				a.Grants = append(a.Grants, Grant{
					LeaseRef: refs().Draw(t, "ref"), ModuleID: texts().Draw(t, "module"), Call: texts().Draw(t, "call"),
					Context: raws().Draw(t, "context"), Inputs: raws().Draw(t, "inputs"), Confirm: rapid.Bool().Draw(t, "confirm"),
					LeaseMS: 15000, AttemptMS: rapid.Int64Range(0, 9).Draw(t, "attempt"), ApprovalToken: texts().Draw(t, "token"),
					IdempotencyKey: texts().Draw(t, "key"), Checkpoint: raws().Draw(t, "checkpoint"), Priority: rapid.IntRange(0, 9).Draw(t, "priority"),
				})
			}
			b, err := a.AppendJSON(nil)
			sameAsJSON(t, a, must(t, b, err), (*ClaimAnswer).ReadJSON)
		})
	})
	t.Run("reports", func(t *testing.T) {
		rapid.Check(t, func(t *rapid.T) {
			req := FinishAllRequest{Reports: []FinishReport{}}
			var parts [][]byte
			for range count.Draw(t, "n") {
				r := FinishReport{
					LeaseRef: refs().Draw(t, "ref"), Node: texts().Draw(t, "node"), Outcome: texts().Draw(t, "outcome"),
					Result: raws().Draw(t, "result"), Error: failures().Draw(t, "error"), Cause: texts().Draw(t, "cause"),
				}
				if rapid.IntRange(0, 9).Draw(t, "rare") == 0 {
					r.Progress = &Progress{Done: 1, Total: 2}
				}
				part, err := r.AppendJSON(nil)
				req.Reports, parts = append(req.Reports, r), append(parts, must(t, part, err))
			}
			sameAsJSON(t, req, join("reports", parts), (*FinishAllRequest).ReadJSON)
		})
	})
	t.Run("verdicts", func(t *testing.T) {
		rapid.Check(t, func(t *rapid.T) {
			a := FinishAllAnswer{Verdicts: []FinishVerdict{}}
			for range count.Draw(t, "n") {
				a.Verdicts = append(a.Verdicts, FinishVerdict{FinishAnswer{Status(texts().Draw(t, "status")), Detail(texts().Draw(t, "detail"))}, failures().Draw(t, "error")})
			}
			b, err := a.AppendJSON(nil)
			sameAsJSON(t, a, must(t, b, err), (*FinishAllAnswer).ReadJSON)
		})
	})
}

// TestOrdinaryMessagesAreReadFast keeps the fast readers from falling back unseen.
func TestOrdinaryMessagesAreReadFast(t *testing.T) {
	s := Submission{ModuleID: "a.b", Inputs: json.RawMessage(`{"x":"y"}`)}
	r := FinishReport{LeaseRef: LeaseRef{"t", 1, 2}, Node: "n1", Outcome: OutcomeCompleted, Result: json.RawMessage(`{"ok":true}`)}
	one, _ := s.AppendJSON(nil)
	two, _ := r.AppendJSON(nil)
	grants, _ := ClaimAnswer{Grants: []Grant{{ModuleID: "a.b", Context: json.RawMessage(`{}`), Inputs: s.Inputs}}}.AppendJSON(nil)
	receipts, _ := SubmitAnswer{[]Verdict{{Receipt: &Receipt{TaskID: "t", Status: Pending}}, {Error: Fail(module.Errorf(module.CodeTaskKeyConflict, "x"))}}}.AppendJSON(nil)
	verdicts, _ := FinishAllAnswer{[]FinishVerdict{{FinishAnswer: FinishAnswer{Status: Completed}}}}.AppendJSON(nil)
	for name, ok := range map[string]bool{
		"submit":   new(SubmitRequest).ReadJSON([]byte(`{"tasks":[` + string(one) + `]}`)),
		"reports":  new(FinishAllRequest).ReadJSON([]byte(`{"reports":[` + string(two) + `]}`)),
		"grants":   new(ClaimAnswer).ReadJSON(grants),
		"receipts": new(SubmitAnswer).ReadJSON(receipts),
		"verdicts": new(FinishAllAnswer).ReadJSON(verdicts),
	} {
		if !ok {
			t.Errorf("%s is left to encoding/json", name)
		}
	}
}
