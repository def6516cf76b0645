package executor_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/executor"
	"github.com/apbus/apbus/executor/acl"
	"github.com/apbus/apbus/executor/approval"
	"github.com/apbus/apbus/module"
)

// collects makes an observer that keeps what it records.
func collects(got *[]*contextwire.Evidence) executor.Option {
	return executor.WithObserver(executor.EvidenceObserver(executor.EvidenceSinkFunc(func(e *contextwire.Evidence) { *got = append(*got, e) })))
}

// Every way a call can end leaves its record, whatever the strategy (durable
// design, section 3).
func TestEvidenceOfEveryEnd(t *testing.T) {
	number := object(map[string]any{"n": map[string]any{"type": "integer"}}, "n")
	typed := func(f func(context.Context, map[string]any) (map[string]any, error)) *mod {
		return &mod{desc: module.Descriptor{ID: "m", InputSchema: number, OutputSchema: number}, execute: f}
	}
	good := map[string]any{"n": 1}
	tests := []struct {
		name   string
		m      module.Module
		inputs map[string]any
		deny   bool
		gone   bool
		opts   []executor.Option
		want   []string
	}{
		{name: "success", m: typed(echo), inputs: good, want: []string{"call ok"}},
		{name: "success of a minimal preset", m: typed(echo), inputs: good, opts: []executor.Option{executor.WithStrategy(executor.Minimal())}, want: []string{"call ok"}},
		{name: "failure of a minimal preset", m: fn("m", func(context.Context, map[string]any) (map[string]any, error) {
			return nil, module.Errorf("BROKEN", "no")
		}),
			opts: []executor.Option{executor.WithStrategy(executor.Minimal())}, want: []string{"call error BROKEN"}},
		{name: "denial", m: typed(echo), inputs: good, deny: true, want: []string{"call denied ACL_DENIED unexecuted", "acl denied ACL_DENIED unexecuted"}},
		{name: "wrong inputs", m: typed(echo), inputs: map[string]any{"n": "x"}, want: []string{"call error SCHEMA_VALIDATION_ERROR unexecuted input /n"}},
		{name: "wrong output", m: typed(func(context.Context, map[string]any) (map[string]any, error) { return map[string]any{"n": "x"}, nil }),
			inputs: good, want: []string{"call error SCHEMA_VALIDATION_ERROR output /n"}},
		{name: "a denial handed on", m: fn("m", func(context.Context, map[string]any) (map[string]any, error) {
			return nil, module.Errorf(module.CodeACLDenied, "elsewhere").At(nil, "other")
		}), want: []string{"call denied ACL_DENIED from other"}},
		{name: "gone", m: typed(echo), inputs: good, gone: true, want: []string{"call cancelled EXECUTION_CANCELLED unexecuted"}},
		{name: "timeout", m: sleeper("m", time.Hour, true, new(sec)), want: []string{"call timeout MODULE_TIMEOUT"}},
		{name: "pending", m: &mod{desc: module.Descriptor{ID: "m", Annotations: module.Annotations{RequiresApproval: true}}},
			opts: []executor.Option{executor.WithApproval(approval.NewMemory(approval.Options{}))},
			want: []string{"call pending APPROVAL_PENDING unexecuted"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var got []*contextwire.Evidence
				opts := append([]executor.Option{executor.WithACL(decides(acl.Decision{Allowed: !tt.deny})), collects(&got)}, tt.opts...)
				x := setup{modules: []module.Module{tt.m}, opts: opts}.executor(t)
				ctx, stop := context.WithCancel(t.Context())
				defer stop()
				if tt.gone {
					stop()
				}
				start := time.Now()
				_, _ = x.Invoke(ctx, &contextwire.Request{ModuleID: "m", CallID: "call-0000000000001", Attempt: 2, Inputs: tt.inputs})
				var ends []string
				for _, e := range got {
					ends = append(ends, show(e))
					if e.Call != "call-0000000000001" || e.Attempt != 2 || e.Root != "call-0000000000001" || e.ModuleID != "m" ||
						e.TraceID == "" || e.At.Before(start.Truncate(time.Millisecond)) || len(e.CallChain) != 1 || e.Budget != time.Minute {
						t.Errorf("record %+v", e)
					}
					if _, err := contextwire.EncodeEvidence(e); err != nil {
						t.Errorf("encode: %v", err)
					}
				}
				if diff := cmp.Diff(tt.want, ends); diff != "" {
					t.Errorf("records (-want +got):\n%s", diff)
				}
				_ = x.Settle(t.Context())
			})
		})
	}
}

func show(e *contextwire.Evidence) string {
	parts := []string{string(e.Type), e.Outcome, string(e.Code)}
	if e.Unexecuted {
		parts = append(parts, "unexecuted")
	}
	if e.Origin != "" {
		parts = append(parts, "from", e.Origin)
	}
	return strings.Join(strings.Fields(strings.Join(append(append(parts, e.Side), e.Fields...), " ")), " ")
}

func TestEvidenceOfStreams(t *testing.T) {
	var got []*contextwire.Evidence
	x := setup{modules: []module.Module{yields("s", module.Chunk{"a": 1}, module.Chunk{"b": 2})}, opts: []executor.Option{collects(&got)}}.executor(t)
	for range x.Stream(t.Context(), "s", nil) {
	}
	if len(got) != 1 || show(got[0]) != "stream ok" || got[0].Chunks != 2 || got[0].Mode != contextwire.ModeStream {
		t.Errorf("records %+v", got)
	}
}

// No sensitive value reaches a record: not from inputs at any depth, not from the
// error, be it as short as it may, not from a nested call, not from a stream.
func TestEvidenceHoldsNoSecrets(t *testing.T) {
	secret := map[string]any{"type": "string", "x-sensitive": true}
	schema := object(map[string]any{
		"card": secret, "pin": map[string]any{"type": "integer", "x-sensitive": true},
		"deep": map[string]any{"type": "array", "items": object(map[string]any{"card": secret})},
	})
	inputs := map[string]any{
		"card": card, "pin": 907, "password": "hunter22", "note": "plain",
		"deep": []any{map[string]any{"card": "5500-0000-0000-0004"}},
	}
	fail := func(_ context.Context, in map[string]any) (map[string]any, error) {
		return nil, fmt.Errorf("card %v with pin %v and %v of %v declined", in["card"], in["pin"], in["password"], in["deep"])
	}
	inner := &mod{desc: module.Descriptor{ID: "inner", InputSchema: schema}, execute: fail}
	outer := &mod{desc: module.Descriptor{ID: "outer", InputSchema: schema}, execute: func(ctx context.Context, in map[string]any) (map[string]any, error) {
		return module.Call(ctx, "inner", in)
	}}
	stream := streams("stream", func(_ context.Context, in map[string]any, yield func(module.Chunk, error) bool) {
		if yield(module.Chunk{"echo": "x"}, nil) {
			yield(nil, fmt.Errorf("card %v, %v", in["card"], in["pin"]))
		}
	})
	stream.desc.InputSchema = schema
	strict := map[string]any{"type": "object", "properties": schema["properties"], "required": []any{"need"}}
	refused := &mod{desc: module.Descriptor{ID: "refused", InputSchema: strict}}
	var got []*contextwire.Evidence
	x := setup{modules: []module.Module{inner, outer, stream, refused}, opts: []executor.Option{collects(&got)}}.executor(t)
	for _, id := range []string{"outer", "refused"} {
		if _, err := x.Call(t.Context(), id, inputs); err == nil {
			t.Errorf("%s did not fail", id)
		}
	}
	for range x.Stream(t.Context(), "stream", inputs) {
	}
	if len(got) != 4 {
		t.Fatalf("%d records, want 4", len(got))
	}
	for _, e := range got {
		body, err := contextwire.EncodeEvidence(e)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range []string{card, "907", "hunter22", "5500-0000-0000-0004"} {
			if strings.Contains(string(body), s) {
				t.Errorf("%s leaks %s: %s", e.ModuleID, s, body)
			}
		}
		if e.Inputs["note"] != "plain" {
			t.Errorf("%s: what is not sensitive is gone: %v", e.ModuleID, e.Inputs)
		}
	}
	if got[1].Origin != "inner" {
		t.Errorf("the origin of the outer failure is %q", got[1].Origin)
	}
}

// Large inputs are counted, not copied.
func TestEvidenceOfLargeInputs(t *testing.T) {
	var got []*contextwire.Evidence
	x := setup{modules: []module.Module{fn("m", nil)}, opts: []executor.Option{collects(&got)}}.executor(t)
	if _, err := x.Call(t.Context(), "m", map[string]any{"text": strings.Repeat("x", 1<<20)}); err != nil {
		t.Fatal(err)
	}
	if got[0].Inputs != nil || got[0].InputBytes < 1<<20 {
		t.Errorf("inputs %d, %d bytes", len(got[0].Inputs), got[0].InputBytes)
	}
}

func TestApprovalEvidence(t *testing.T) {
	at := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	base := approval.Record{Binding: approval.Binding{ModuleID: "pay.refund", CallerID: "shop"}, CreatedAt: at, ExpiresAt: at.Add(time.Hour)}
	decided := func(s approval.State) approval.Record {
		r := base
		r.State, r.DecidedAt, r.DecidedBy, r.DecidedType, r.BecauseOf = s, at.Add(time.Minute), "bob", "user", "fine"
		return r
	}
	open := func(s approval.State) approval.Record { r := base; r.State = s; return r }
	tests := []struct {
		name string
		r    approval.Record
		want string
	}{
		{"approved", decided(approval.StateApproved), "approved 1m0s"},
		{"rejected", decided(approval.StateRejected), "rejected 1m0s"},
		{"ran out", open(approval.StateExpired), "timeout 1h0m0s"},
		{"not used in time", decided(approval.StateExpired), ""},
		{"used", decided(approval.StateClaimed), ""},
		{"pending", open(approval.StatePending), ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			e, ok := executor.ApprovalEvidence(tt.r)
			got := ""
			if ok {
				got = e.Outcome + " " + e.Duration.String()
			}
			if got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

// BenchmarkEvidence compares a call with and without its record; the difference is
// what evidence costs it, to be below 3 µs.
func BenchmarkEvidence(b *testing.B) {
	var plain, recorded time.Duration
	in := map[string]any{"a": 1.5, "b": 2.5}
	x, _ := benchExecutor(b, executor.Config{})
	queue := make(chan *contextwire.Evidence, 1024)
	go func() {
		for range queue { // what a publisher does is not the call's
		}
	}()
	defer close(queue)
	sink := executor.EvidenceSinkFunc(func(e *contextwire.Evidence) {
		select {
		case queue <- e:
		default:
		}
	})
	y, _ := benchExecutor(b, executor.Config{}, executor.WithObserver(executor.EvidenceObserver(sink)))
	b.ReportAllocs()
	for b.Loop() {
		for _, run := range []struct {
			x    *executor.Executor
			took *time.Duration
		}{{x, &plain}, {y, &recorded}} {
			start := time.Now()
			for range 100 {
				if _, err := run.x.Call(context.Background(), "math.add", in); err != nil {
					b.Fatal(err)
				}
			}
			*run.took += time.Since(start)
		}
	}
	n := float64(b.N) * 100
	b.ReportMetric(float64(plain.Nanoseconds())/n, "plain-ns/call")
	b.ReportMetric(float64(recorded-plain)/n, "evidence-ns/call")
	b.ReportMetric(float64(recorded)/float64(plain), "ratio")
}
