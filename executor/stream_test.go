package executor_test

import (
	"context"
	"errors"
	"iter"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/apbus/apbus/cancel"
	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/executor"
	"github.com/apbus/apbus/executor/acl"
	"github.com/apbus/apbus/executor/middleware"
	"github.com/apbus/apbus/module"
)

type chunks = []module.Chunk

// streamer is a module that streams as told; a plain call runs execute.
type streamer struct {
	mod
	stream func(ctx context.Context, in map[string]any, yield func(module.Chunk, error) bool)
}

func (s *streamer) Stream(ctx context.Context, in map[string]any) iter.Seq2[module.Chunk, error] {
	return func(yield func(module.Chunk, error) bool) { s.stream(ctx, in, yield) }
}

func streams(id string, f func(ctx context.Context, in map[string]any, yield func(module.Chunk, error) bool)) *streamer {
	return &streamer{mod: mod{desc: module.Descriptor{ID: id, Annotations: module.Annotations{Streaming: true}}}, stream: f}
}

// yields streams the given chunks.
func yields(id string, list ...module.Chunk) *streamer {
	return streams(id, func(_ context.Context, _ map[string]any, yield func(module.Chunk, error) bool) {
		for _, c := range list {
			if !yield(c, nil) {
				return
			}
		}
	})
}

// read ranges over a stream to its end.
func read(s iter.Seq2[module.Chunk, error]) (got chunks, err error) {
	for c, e := range s {
		if e != nil {
			if err != nil || c != nil {
				return got, errors.Join(errors.New("an error was not the last element"), e, err)
			}
			err = e
			continue
		}
		got = append(got, c)
	}
	return got, err
}

func n(i int64) module.Chunk { return module.Chunk{"n": i} }

func TestStream(t *testing.T) {
	boom := errors.New("boom")
	number := object(map[string]any{"n": map[string]any{"type": "integer"}}, "n")
	tests := []struct {
		name   string
		m      module.Module
		inputs map[string]any
		opts   []executor.Option
		call   []module.CallOption
		want   chunks
		code   module.Code
	}{
		{name: "chunks in order", m: yields("m", n(1), n(2), n(3)), want: chunks{n(1), n(2), n(3)}},
		{name: "chunks become json", m: yields("m", module.Chunk{"n": 1, "at": time.Unix(0, 0).UTC()}),
			want: chunks{{"n": int64(1), "at": "1970-01-01T00:00:00Z"}}},
		{name: "no chunks", m: yields("m")},
		{name: "no stream is one chunk", m: fn("m", echo), inputs: map[string]any{"n": 7}, want: chunks{n(7)}},
		{name: "no stream fails", m: fn("m", func(context.Context, map[string]any) (map[string]any, error) { return nil, boom }),
			code: module.CodeModuleExecuteError},
		{name: "fails on the way", m: streams("m", func(_ context.Context, _ map[string]any, yield func(module.Chunk, error) bool) {
			_ = yield(n(1), nil) && yield(nil, boom) && yield(n(2), nil)
		}), want: chunks{n(1)}, code: module.CodeModuleExecuteError},
		{name: "panics on the way", m: streams("m", func(_ context.Context, _ map[string]any, yield func(module.Chunk, error) bool) {
			_ = yield(n(1), nil)
			panic("x")
		}), want: chunks{n(1)}, code: module.CodeModuleExecuteError},
		{name: "exits on the way", m: streams("m", func(_ context.Context, _ map[string]any, yield func(module.Chunk, error) bool) {
			_ = yield(n(1), nil)
			runtime.Goexit()
		}), want: chunks{n(1)}, code: module.CodeModuleExecuteError},
		{name: "goes on after its end", m: streams("m", func(_ context.Context, _ map[string]any, yield func(module.Chunk, error) bool) {
			_ = yield(nil, boom)
			_ = yield(n(1), nil)
		}), code: module.CodeModuleExecuteError},
		{name: "chunk is nil", m: yields("m", n(1), nil, n(2)), want: chunks{n(1)}, code: module.CodeInvalidInput},
		{name: "chunk has no json form", m: yields("m", n(1), module.Chunk{"f": func() {}}), want: chunks{n(1)}, code: module.CodeModuleExecuteError},
		{name: "wrong inputs", m: func() module.Module { s := yields("m", n(1)); s.desc.InputSchema = number; return s }(),
			code: module.CodeSchemaValidation},
		{name: "malformed id", m: yields("m"), inputs: map[string]any{"n": func() {}}, code: module.CodeInvalidInput},
		{name: "denied", m: yields("m", n(1)), opts: []executor.Option{executor.WithACL(decides(acl.Decision{}))}, code: module.CodeACLDenied},
		{name: "before fails, recovered as one chunk", m: yields("m", n(1)), opts: []executor.Option{executor.WithMiddleware(&middleware.Funcs{Label: "w",
			OnBefore: func(context.Context, *middleware.Call) (map[string]any, error) { return nil, boom },
			OnFailure: func(context.Context, *middleware.Call, *module.Error) (middleware.Recovery, error) {
				return middleware.Recovery{Output: n(9)}, nil
			}})}, want: chunks{n(9)}},
		{name: "stopped early by run_until", m: yields("m", n(1)), call: []module.CallOption{module.CallUntil(func(s module.PipelineState) bool {
			return s.StepName == executor.StepModuleLookup
		})}, want: chunks{{}}},
		{name: "minimal", m: yields("m", n(1), n(2)), opts: []executor.Option{executor.WithStrategy(executor.Minimal())}, want: chunks{n(1), n(2)}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			x, reg := setup{modules: []module.Module{tt.m}, opts: tt.opts}.build(t)
			got, err := read(x.Stream(t.Context(), "m", tt.inputs, tt.call...))
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("chunks (-want +got):\n%s", diff)
			}
			if code := module.CodeOf(err); code != tt.code {
				t.Errorf("code %q, want %q (%v)", code, tt.code, err)
			}
			if e, _ := reg.Get("m"); e.InFlight() != 0 || x.Debt() != 0 {
				t.Errorf("held %d times, debt %d", e.InFlight(), x.Debt())
			}
		})
	}
	x := setup{}.executor(t)
	_, err := read(x.Stream(t.Context(), "No", nil))
	wantCode(t, err, module.CodeInvalidModuleID)
	_, err = read(x.Stream(t.Context(), "gone", nil))
	wantCode(t, err, module.CodeModuleNotFound)
}

func TestStreamChunkNotObject(t *testing.T) {
	x := setup{modules: []module.Module{yields("m", n(1), nil)}}.executor(t)
	_, err := read(x.Stream(t.Context(), "m", nil))
	e := wantCode(t, err, module.CodeInvalidInput)
	want := map[string]any{"code": "STREAM_CHUNK_NOT_OBJECT", "chunk_index": int64(1), "actual_type": "null"}
	if diff := cmp.Diff(want, e.Details); diff != "" {
		t.Errorf("details (-want +got):\n%s", diff)
	}
	wantStep(t, err, executor.StepExecute)
}

// Everything after the last chunk works on the merged value, once.
func TestStreamEnd(t *testing.T) {
	merged := map[string]any{"a": map[string]any{"x": int64(1), "y": int64(2)}, "n": int64(3)}
	list := chunks{{"a": map[string]any{"x": int64(1)}, "n": int64(1)}, {"a": map[string]any{"y": int64(2)}}, {"n": int64(3)}}
	fits := map[string]any{"type": "object", "required": []any{"a", "n"}}
	misfits := map[string]any{"type": "object", "required": []any{"gone"}}
	boom := module.Errorf("AFTER_FAILED", "secret hunter22 is out")
	tests := []struct {
		name   string
		schema map[string]any
		after  func(out map[string]any) (map[string]any, error)
		want   map[string]any
		post   module.Code
	}{
		{"all well", fits, func(map[string]any) (map[string]any, error) { return nil, nil }, merged, ""},
		{"after replaces", fits, func(map[string]any) (map[string]any, error) { return n(9), nil }, n(9), ""},
		{"misfit", misfits, nil, merged, module.CodeSchemaValidation},
		{"after fails", fits, func(map[string]any) (map[string]any, error) { return nil, boom }, merged, "AFTER_FAILED"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m := yields("m", list...)
			m.desc.OutputSchema = tt.schema
			var events []module.Event
			var completions []executor.Completion
			told, j := 0, &journal{}
			x := setup{log: j, modules: []module.Module{m}, opts: []executor.Option{
				executor.WithEvents(func(e module.Event) { events = append(events, e) }),
				executor.WithObserver(executor.ObserverFunc(func(c executor.Completion) { completions = append(completions, c) })),
				executor.WithMiddleware(&middleware.Funcs{Label: "w",
					OnAfter: func(_ context.Context, _ *middleware.Call, out map[string]any) (map[string]any, error) {
						if tt.after == nil {
							t.Error("after ran on a value that does not fit")
							return nil, nil
						}
						if diff := cmp.Diff(merged, out); diff != "" {
							t.Errorf("after got (-want +got):\n%s", diff)
						}
						return tt.after(out)
					},
					OnFailure: func(context.Context, *middleware.Call, *module.Error) (middleware.Recovery, error) {
						told++
						return middleware.Recovery{Output: n(0)}, nil
					}}),
			}}.executor(t)
			var got chunks
			reply, err := x.InvokeStream(t.Context(), &contextwire.Request{ModuleID: "m", Attempt: 2,
				Inputs: map[string]any{"password": "hunter22"}}, func(c module.Chunk) error {
				got = append(got, c)
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(list, got); diff != "" {
				t.Errorf("chunks (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tt.want, reply.Output); diff != "" || reply.Attempt != 2 {
				t.Errorf("reply %+v (-want +got):\n%s", reply, diff)
			}
			if len(completions) != 1 || completions[0].Err != nil || completions[0].Chunks != 3 || !completions[0].Executed {
				t.Fatalf("completions = %+v", completions)
			}
			if tt.post == "" {
				if len(events) != 0 || told != 0 || completions[0].PostError != nil {
					t.Errorf("a sound stream was reported: %v, told %d", events, told)
				}
				return
			}
			if told != 1 || completions[0].PostError == nil || completions[0].PostError.Code != tt.post {
				t.Errorf("told %d times, post error %v", told, completions[0].PostError)
			}
			if len(events) != 1 || events[0].Type != "apcore.stream.post_validation_failed" || events[0].Severity != "error" ||
				events[0].Data["error_type"] != string(tt.post) || events[0].Data["trace_id"] != completions[0].Context.TraceID() {
				t.Errorf("events = %+v", events)
			}
			if j.count("stream failed after its last chunk") != 1 || j.count("hunter22") != 0 {
				t.Errorf("log:\n%s", j)
			}
		})
	}
}

// A retry is another beginning, so it is too late for one once a chunk is out.
func TestStreamRecovery(t *testing.T) {
	tests := []struct {
		name  string
		after int64 // chunks before the failure of the first run
		want  chunks
		code  module.Code
	}{
		{"before the first chunk", 0, chunks{n(1), n(2)}, ""},
		{"after one", 1, chunks{n(1)}, "FIRST"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			runs, told := 0, 0
			x := setup{modules: []module.Module{streams("m", func(_ context.Context, _ map[string]any, yield func(module.Chunk, error) bool) {
				runs++
				for i := int64(1); i <= 2; i++ {
					if runs == 1 && i > tt.after {
						yield(nil, module.Errorf("FIRST", "no"))
						return
					}
					if !yield(n(i), nil) {
						return
					}
				}
			})}, opts: []executor.Option{executor.WithMiddleware(&middleware.Funcs{Label: "w",
				OnFailure: func(context.Context, *middleware.Call, *module.Error) (middleware.Recovery, error) {
					told++
					return middleware.Recovery{Retry: map[string]any{}}, nil
				}})}}.executor(t)
			got, err := read(x.Stream(t.Context(), "m", nil))
			if diff := cmp.Diff(tt.want, got); diff != "" || module.CodeOf(err) != tt.code || told != 1 {
				t.Errorf("%v, told %d (-want +got):\n%s", err, told, diff)
			}
		})
	}
}

func TestStreamIsNeverFarAhead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		made := int64(0)
		x := setup{modules: []module.Module{streams("m", func(_ context.Context, _ map[string]any, yield func(module.Chunk, error) bool) {
			for made < 10 && yield(n(made), nil) {
				made++
			}
		})}}.executor(t)
		read := int64(0)
		for _, err := range x.Stream(t.Context(), "m", nil) {
			if err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			if read++; made > read {
				t.Fatalf("%d chunks were made when %d were read", made, read)
			}
		}
		if read != 10 {
			t.Errorf("read %d", read)
		}
	})
}

// endless streams until it is stopped, and says why; a stubborn one goes on for a
// minute without looking.
func endless(obeys bool, why chan<- error) *streamer {
	return streams("m", func(ctx context.Context, _ map[string]any, yield func(module.Chunk, error) bool) {
		for i := int64(0); yield(n(i), nil); i++ {
			select {
			case <-time.After(sec):
			case <-ctx.Done():
			}
		}
		if !obeys {
			<-time.After(time.Minute)
		}
		why <- context.Cause(ctx)
	})
}

func TestStreamStops(t *testing.T) {
	tests := []struct {
		name   string
		obeys  bool
		limit  time.Duration
		cancel time.Duration // of the caller
		reader time.Duration // takes so long for a chunk
		leave  int64         // the reader leaves after so many
		want   module.Code
		chunks int
		after  time.Duration
		debt   int
		reason cancel.Reason
	}{
		{"own limit", true, 2500 * time.Millisecond, 0, 0, 0, module.CodeModuleTimeout, 3, 2500 * time.Millisecond, 0, cancel.Timeout},
		{"own limit, stubborn", false, 2500 * time.Millisecond, 0, 0, 0, module.CodeModuleTimeout, 3, 7500 * time.Millisecond, 1, cancel.Timeout},
		{"limit passes at a slow reader", true, 2500 * time.Millisecond, 0, 4 * sec, 0, module.CodeModuleTimeout, 1, 4 * sec, 0, cancel.Timeout},
		{"caller cancels", true, 0, 2500 * time.Millisecond, 0, 0, module.CodeExecutionCancelled, 3, 2500 * time.Millisecond, 0, cancel.Caller},
		{"caller cancels, stubborn", false, 0, 2500 * time.Millisecond, 0, 0, module.CodeExecutionCancelled, 3, 2510 * time.Millisecond, 1, cancel.Caller},
		{"reader leaves", true, 0, 0, 0, 2, "", 2, sec, 0, cancel.Caller},
		{"reader leaves, stubborn", false, 0, 0, 0, 2, "", 2, sec + 10*time.Millisecond, 1, cancel.Caller},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				why := make(chan error, 1)
				m := endless(tt.obeys, why)
				if tt.limit > 0 {
					m.desc.Timeout = &tt.limit
				}
				x, reg := setup{modules: []module.Module{m}}.build(t)
				ctx, stop := context.WithCancel(t.Context())
				defer stop()
				if tt.cancel > 0 {
					time.AfterFunc(tt.cancel, stop)
				}
				began := time.Now()
				got := 0
				var err error
				for _, e := range x.Stream(ctx, "m", nil) {
					if e != nil {
						err = e
						break
					}
					if got++; int64(got) == tt.leave {
						break
					}
					time.Sleep(tt.reader)
				}
				if took := time.Since(began); took != tt.after || got != tt.chunks || x.Debt() != tt.debt {
					t.Errorf("after %v with %d chunks and debt %d; want %v, %d, %d", took, got, x.Debt(), tt.after, tt.chunks, tt.debt)
				}
				if code := module.CodeOf(err); code != tt.want {
					t.Errorf("code %q, want %q (%v)", code, tt.want, err)
				}
				if e, _ := reg.Get("m"); e.InFlight() != tt.debt {
					t.Errorf("held %d times", e.InFlight())
				}
				if got := cancel.ReasonOf(<-why); got != tt.reason {
					t.Errorf("the module was told %q, want %q", got, tt.reason)
				}
				_ = x.Settle(t.Context())
				if e, _ := reg.Get("m"); e.InFlight() != 0 {
					t.Errorf("held %d times in the end", e.InFlight())
				}
			})
		})
	}
}

// Whatever the loop body does, the module ends and the body's own fate is its own.
func TestStreamReaderGoesWrong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		why := make(chan error, 1)
		x, reg := setup{modules: []module.Module{endless(true, why)}}.build(t)
		check := func(how string) {
			t.Helper()
			if cancel.ReasonOf(<-why) != cancel.Caller {
				t.Errorf("%s: the module was not told", how)
			}
			if e, _ := reg.Get("m"); e.InFlight() != 0 || x.Debt() != 0 {
				t.Errorf("%s: held %d times, debt %d", how, e.InFlight(), x.Debt())
			}
		}
		func() {
			defer func() {
				if v := recover(); v != "reader" {
					t.Errorf("recovered %v, want the reader's own panic", v)
				}
			}()
			for range x.Stream(t.Context(), "m", nil) {
				panic("reader")
			}
		}()
		check("panic")
		var wg sync.WaitGroup
		wg.Go(func() {
			for range x.Stream(t.Context(), "m", nil) {
				runtime.Goexit()
			}
		})
		wg.Wait()
		check("exit")
	})
}

func TestInvokeStreamSendFails(t *testing.T) {
	tests := []struct {
		name string
		err  error
		want module.Code
		told cancel.Reason
	}{
		{"coded", module.Errorf(module.CodeBusPayloadTooLarge, "too large"), module.CodeBusPayloadTooLarge, cancel.Caller},
		{"plain", errors.New("gone"), module.CodeExecutionCancelled, cancel.Caller},
		{"a cause", cancel.Because(cancel.CallerGone, "", "lost"), module.CodeExecutionCancelled, cancel.CallerGone},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			why := make(chan error, 1)
			x, reg := setup{modules: []module.Module{endless(true, why), fn("plain", echo)}}.build(t)
			reply, err := x.InvokeStream(t.Context(), &contextwire.Request{ModuleID: "m"}, func(module.Chunk) error { return tt.err })
			if reply != nil || cancel.ReasonOf(<-why) != tt.told {
				t.Errorf("reply %+v, or the module was told something else", reply)
			}
			wantCode(t, err, tt.want)
			if e, _ := reg.Get("m"); e.InFlight() != 0 {
				t.Errorf("held %d times", e.InFlight())
			}
			_, err = x.InvokeStream(t.Context(), &contextwire.Request{ModuleID: "plain"}, func(module.Chunk) error { return tt.err })
			wantCode(t, err, tt.want)
		})
	}
}

type remoteStreams struct {
	remote
	stream func(ctx context.Context, req *contextwire.Request, send func(module.Chunk) error) (*contextwire.Reply, error)
}

func (r *remoteStreams) InvokeStream(ctx context.Context, req *contextwire.Request, send func(module.Chunk) error) (*contextwire.Reply, error) {
	return r.stream(ctx, req, send)
}

func TestRemoteStream(t *testing.T) {
	over := func(r executor.Remote) *executor.Executor {
		return setup{opts: []executor.Option{executor.WithRemote(r)}}.executor(t)
	}
	_, err := read(over(&remote{}).Stream(t.Context(), "far.m", nil))
	if e := wantCode(t, err, module.CodeNotImplemented); !e.Unexecuted {
		t.Error("it does not say that nothing ran")
	}

	var seen *contextwire.Request
	x := over(&remoteStreams{stream: func(_ context.Context, req *contextwire.Request, send func(module.Chunk) error) (*contextwire.Reply, error) {
		seen = req
		for i := int64(1); i <= 3; i++ {
			if err := send(n(i)); err != nil {
				return nil, err
			}
		}
		return &contextwire.Reply{Output: n(3)}, nil
	}})
	got, err := read(x.Stream(t.Context(), "far.m", map[string]any{"k": 1}))
	if diff := cmp.Diff(chunks{n(1), n(2), n(3)}, got); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	if !seen.Stream || seen.Inputs["k"] != int64(1) || seen.Budget <= 0 || len(seen.Context.ChainView()) != 0 {
		t.Errorf("request = %+v", seen)
	}

	// A reader that leaves, and a caller that cancels, end the remote call.
	ended := make(chan error, 1)
	x = over(&remoteStreams{stream: func(ctx context.Context, _ *contextwire.Request, send func(module.Chunk) error) (*contextwire.Reply, error) {
		for {
			if err := send(n(1)); err != nil {
				if again := send(n(2)); again == nil {
					t.Error("a chunk was taken after the end")
				}
				ended <- context.Cause(ctx)
				return nil, err
			}
		}
	}})
	for range x.Stream(t.Context(), "far.m", nil) {
		break
	}
	if cause := <-ended; cancel.ReasonOf(cause) != cancel.Caller {
		t.Errorf("the remote call ended with %v", cause)
	}
	ctx, stop := context.WithCancelCause(t.Context())
	defer stop(nil)
	count := 0
	var last error
	for _, err := range x.Stream(ctx, "far.m", nil) {
		if last = err; err == nil {
			if count++; count == 2 {
				stop(cancel.Because(cancel.Remote, "ana", ""))
			}
		}
	}
	wantCode(t, last, module.CodeExecutionCancelled)
	if cause := <-ended; cancel.ReasonOf(cause) != cancel.Remote || count != 2 {
		t.Errorf("the remote call ended with %v after %d chunks", cause, count)
	}
}

// 2,000 streams with every kind of end leave nothing behind.
func TestStreamStorm(t *testing.T) {
	const calls = 2000
	synctest.Test(t, func(t *testing.T) {
		why := make(chan error, calls)
		m := endless(true, why)
		m.desc.Timeout = new(20 * sec)
		x, reg := setup{modules: []module.Module{m}}.build(t)
		var wg sync.WaitGroup
		for i := range calls {
			wg.Go(func() {
				ctx, stop := context.WithCancel(t.Context())
				defer stop()
				switch i % 4 {
				case 1:
					time.AfterFunc(time.Duration(i)*time.Millisecond, stop)
				case 2:
					c, end := context.WithTimeout(ctx, time.Duration(i)*time.Millisecond)
					defer end()
					ctx = c
				}
				count := 0
				for _, err := range x.Stream(ctx, "m", nil) {
					if count++; err == nil && i%4 == 3 && count == i%7+1 {
						break
					}
				}
			})
		}
		wg.Wait()
		if e, _ := reg.Get("m"); e.InFlight() != 0 || x.Debt() != 0 || len(why) != calls {
			t.Errorf("held %d times, debt %d, %d of %d modules ended", e.InFlight(), x.Debt(), len(why), calls)
		}
	})
}
