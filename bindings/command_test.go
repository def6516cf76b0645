package bindings_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/apbus/apbus/bindings"
	"github.com/apbus/apbus/cancel"
	"github.com/apbus/apbus/module"
)

func TestCommand(t *testing.T) {
	for _, tt := range []struct {
		name, script string
		inputs, want map[string]any
		wantReason   string
		wantCode     module.Code
	}{
		{name: "inputs in, output out", script: `cat`, inputs: map[string]any{"a": int64(9007199254740993), "b": "ü"}, want: map[string]any{"a": int64(9007199254740993), "b": "ü"}},
		{name: "no inputs", script: `cat`, want: map[string]any{}},
		{name: "input unread", script: `echo '{"ok":true}'`, inputs: map[string]any{"big": strings.Repeat("x", 1<<20)}, want: map[string]any{"ok": true}},
		{name: "several lines are one document", script: `printf '{\n"a":\n1.5}\n\n'`, want: map[string]any{"a": 1.5}},
		{name: "the call in the environment", script: `printf '{"c":"%s","m":"%s","t":"%s"}' "$APBUS_CALL" "$APBUS_MODULE" "$(echo $TRACEPARENT | cut -d- -f2)"`, want: map[string]any{"c": "0123456789abcdef", "m": "x.y", "t": traceID}},
		{name: "exit status", script: `echo '{"secret":1}'; echo secret >&2; exit 3`, wantReason: bindings.ReasonExit},
		{name: "a signal", script: `kill -9 $$`, wantReason: bindings.ReasonSignal},
		{name: "nothing", script: `:`, wantReason: bindings.ReasonNotJSON},
		{name: "no JSON", script: `echo secret`, wantReason: bindings.ReasonNotJSON},
		{name: "no object", script: `echo '["secret"]'`, wantReason: bindings.ReasonNotJSON},
		{name: "two objects", script: `echo '{}{}'`, wantReason: bindings.ReasonNotJSON},
		{name: "too much", script: `yes secret`, wantReason: bindings.ReasonTooLarge},
		{name: "its own error", script: `echo '{"error":{"code":"OUT_OF_TEA","message":"no tea","details":{"left":0},"retryable":true}}'; exit 1`, wantCode: "OUT_OF_TEA"},
		{name: "an error of the framework is not its own", script: `echo '{"error":{"code":"ACL_DENIED","message":"x"}}'; exit 1`, wantReason: bindings.ReasonExit},
		{name: "a reserved error is not its own", script: `echo '{"error":{"code":"BUS_TEA","message":"x"}}'; exit 1`, wantReason: bindings.ReasonExit},
		{name: "an error beside a success is output", script: `echo '{"error":{"code":"OUT_OF_TEA","message":"no tea"}}'`, want: map[string]any{"error": map[string]any{"code": "OUT_OF_TEA", "message": "no tea"}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			mods, _ := load(t, shell(tt.script, ""))
			out, err := execute(t, t.Context(), mods["x.y"], tt.inputs)
			switch {
			case tt.wantCode != "":
				e := module.AsError(err)
				if e == nil || e.Code != tt.wantCode || e.Message != "no tea" || e.Retryable != module.True || e.Details["left"] != int64(0) {
					t.Errorf("err = %+v", e)
				}
			case tt.wantReason != "":
				if module.CodeOf(err) != module.CodeModuleExecuteError || reason(err) != tt.wantReason {
					t.Errorf("err = %v, reason %v, want %s", err, reason(err), tt.wantReason)
				}
				if e := module.AsError(err); e != nil && strings.Contains(e.Error()+e.CauseText()+cmp.Diff(nil, e.Details), "secret") {
					t.Errorf("the error quotes what came out: %v", e)
				}
			default:
				if d := cmp.Diff(tt.want, out); err != nil || d != "" {
					t.Errorf("err = %v %s", err, d)
				}
			}
		})
	}
}

func TestCommandNotStarted(t *testing.T) {
	mods, j := load(t, "bindings:\n- module_id: x.y\n  description: d\n  command: {argv: [./no-such-program]}\n")
	if _, err := execute(t, t.Context(), mods["x.y"], nil); reason(err) != bindings.ReasonNotStarted || strings.Contains(err.Error(), "no-such-program") {
		t.Errorf("err = %v", err)
	}
	if !strings.Contains(j.String(), "no-such-program") {
		t.Errorf("the log does not say why: %s", j)
	}
}

func TestStandardErrorGoesToTheLog(t *testing.T) {
	mods, j := load(t, shell(`echo one >&2; printf 'two' >&2; echo '{}'`, ""))
	if _, err := execute(t, t.Context(), mods["x.y"], nil); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"line":"one"`, `"line":"two"`, `"module_id":"x.y"`, `"call_id":"0123456789abcdef"`, `"trace_id":"` + traceID} {
		if !strings.Contains(j.String(), want) {
			t.Errorf("the log lacks %s: %s", want, j)
		}
	}
	mods, j = load(t, shell(`yes | head -n 3000 >&2; head -c 9000 /dev/zero | tr '\0' x >&2; echo '{}'`, ""))
	if _, err := execute(t, t.Context(), mods["x.y"], nil); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(j.String(), "\n"); n != 1001 || !strings.Contains(j.String(), "says too much") {
		t.Errorf("%d records", n)
	}
}

// The environment of the node is not that of its commands.
func TestCommandEnvironment(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "key", "from a file\n")
	mods, err := bindings.Load([]string{write(t, dir, "b.yaml", `
bindings:
- module_id: x.y
  description: d
  command:
    argv: [sh, -c, 'printf "{\"hidden\":\"%s\",\"key\":\"%s\",\"file\":\"%s\",\"set\":\"%s\",\"dir\":\"%s\"}" "$HIDDEN" "$API_KEY" "$FILE_KEY" "$SET" "$(basename $PWD)"']
    pass_env: [API_KEY]
    env: {SET: plain, FILE_KEY: {file: key}}
    dir: .
`)}, bindings.Options{Env: environment})
	if err != nil {
		t.Fatal(err)
	}
	out, err := execute(t, t.Context(), mods[0], nil)
	want := map[string]any{"hidden": "", "key": "geheim", "file": "from a file", "set": "plain", "dir": filepath.Base(dir)}
	if d := cmp.Diff(want, out); err != nil || d != "" {
		t.Errorf("err = %v %s", err, d)
	}
}

// alive reports whether a process of that ID is there.
func alive(pid int) bool { return syscall.Kill(pid, 0) == nil }

// readPID waits for a script to write a process ID into a file.
func readPID(t *testing.T, path string) int {
	t.Helper()
	var pid int
	until(t, "the script has begun", func() bool {
		raw, err := os.ReadFile(path)
		pid, _ = strconv.Atoi(strings.TrimSpace(string(raw)))
		return err == nil && pid > 0
	})
	return pid
}

func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	limit := time.NewTimer(20 * time.Second)
	defer limit.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-limit.C:
			t.Fatalf("not so: %s", what)
		}
	}
}

// A call that ends takes the command and its children along, gently first.
func TestCancelledCommand(t *testing.T) {
	for _, tt := range []struct{ name, script string }{
		{"one that obeys", `echo $$ >pid; trap 'echo yes >obeyed; exit 0' TERM; sleep 60 & wait`},
		{"one that does not", `echo $$ >pid; trap '' TERM; while :; do sleep 1; done`},
		{"its child", `sleep 60 & echo $! >pid; wait`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			mods, _ := load(t, shell(tt.script, ""))
			m := mods["x.y"]
			dir := filepath.Dir(m.File())
			ctx, stop := context.WithCancelCause(t.Context())
			why := cancel.Because(cancel.Caller, "ana", "enough")
			ended := make(chan error, 1)
			go func() { _, err := execute(t, ctx, m, nil); ended <- err }()
			pid := readPID(t, filepath.Join(dir, "pid"))
			stop(why)
			select {
			case err := <-ended:
				if !errors.Is(err, why) {
					t.Errorf("err = %v, want the cause of the end", err)
				}
			case <-time.After(10 * time.Second):
				t.Fatal("the call does not end")
			}
			until(t, "the process is gone", func() bool { return !alive(pid) })
			if tt.name == "one that obeys" {
				if _, err := os.Stat(filepath.Join(dir, "obeyed")); err != nil {
					t.Error("it was not asked first")
				}
			}
		})
	}
}

// What a command leaves behind ends with it, and does not hold up its call.
func TestChildrenLeftBehind(t *testing.T) {
	mods, _ := load(t, shell(`sleep 60 & echo $! >pid; echo '{"a":1}'`, ""))
	m := mods["x.y"]
	out, err := execute(t, t.Context(), m, nil)
	if err != nil || out["a"] != int64(1) {
		t.Errorf("%v, %v", out, err)
	}
	pid := readPID(t, filepath.Join(filepath.Dir(m.File()), "pid"))
	until(t, "the child is gone", func() bool { return !alive(pid) })
}

const streams = "  annotations: {streaming: true}\n"

func TestCommandStream(t *testing.T) {
	for _, tt := range []struct {
		name, script string
		most         int
		want         []module.Chunk
		wantReason   string
		wantCode     module.Code
	}{
		{name: "lines", script: `echo '{"i":0}'; echo; echo '{"i":1}'; printf '{"i":2}'`, want: []module.Chunk{{"i": int64(0)}, {"i": int64(1)}, {"i": int64(2)}}},
		{name: "nothing", script: `:`},
		{name: "a line that is no JSON", script: `echo '{"i":0}'; echo oops; sleep 60`, want: []module.Chunk{{"i": int64(0)}}, wantReason: bindings.ReasonNotJSON},
		{name: "a failure after a line", script: `echo '{"i":0}'; exit 4`, want: []module.Chunk{{"i": int64(0)}}, wantReason: bindings.ReasonExit},
		{name: "its own error after a line", script: `echo '{"i":0}'; echo '{"error":{"code":"OUT_OF_TEA","message":"no tea"}}'; exit 1`, want: []module.Chunk{{"i": int64(0)}}, wantCode: "OUT_OF_TEA"},
		{name: "an error line of a success is a chunk", script: `echo '{"error":1}'; echo '{"i":0}'`, want: []module.Chunk{{"error": int64(1)}, {"i": int64(0)}}},
		{name: "a last error line of a success is a chunk", script: `echo '{"i":0}'; echo '{"error":1}'`, want: []module.Chunk{{"i": int64(0)}, {"error": int64(1)}}},
		{name: "too much", script: `while :; do echo '{"i":0}'; done`, most: -1, wantReason: bindings.ReasonTooLarge},
		{name: "a line too long", script: `yes | tr -d '\n'`, wantReason: bindings.ReasonTooLarge},
		{name: "a reader that leaves", script: `echo '{"i":0}'; while :; do echo '{"i":1}'; done`, most: 2, want: []module.Chunk{{"i": int64(0)}, {"i": int64(1)}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			mods, _ := load(t, shell(tt.script, streams))
			got, err := chunks(t, t.Context(), mods["x.y"], nil, tt.most)
			if tt.most >= 0 {
				if d := cmp.Diff(tt.want, got); d != "" {
					t.Error(d)
				}
			}
			if code := module.CodeOf(err); tt.wantCode != "" && code != tt.wantCode {
				t.Errorf("code = %s, want %s", code, tt.wantCode)
			}
			if tt.wantReason != "" && reason(err) != tt.wantReason || (tt.wantReason == "" && tt.wantCode == "" && err != nil) {
				t.Errorf("err = %v, want reason %q", err, tt.wantReason)
			}
		})
	}
}

// A reader that takes its time gets everything, also what a command wrote that has
// ended long since.
func TestSlowReader(t *testing.T) {
	mods, _ := load(t, shell(`for i in 0 1 2 3 4 5 6 7; do echo "{\"i\":$i}"; done; echo done >ended`, streams))
	m := mods["x.y"]
	n := 0
	for c, err := range m.Registrable().(module.Streamer).Stream(t.Context(), nil) {
		if err != nil {
			t.Fatal(err)
		}
		if c["i"] != int64(n) {
			t.Errorf("chunk %d is %v", n, c)
		}
		if n++; n == 1 {
			until(t, "the command has ended", func() bool {
				_, err := os.Stat(filepath.Join(filepath.Dir(m.File()), "ended"))
				return err == nil
			})
			<-time.After(400 * time.Millisecond) // longer than the pipe is waited for
		}
	}
	if n != 8 {
		t.Errorf("%d chunks", n)
	}
	out, err := execute(t, t.Context(), m, nil)
	if err != nil || out["i"] == nil {
		t.Errorf("a plain call merges: %v, %v", out, err)
	}
}

// A module is a Streamer exactly when it says so.
func TestPlainModuleDoesNotStream(t *testing.T) {
	mods, _ := load(t, shell(`cat`, ""))
	if _, ok := mods["x.y"].Registrable().(module.Streamer); ok {
		t.Error("a module without the annotation streams")
	}
}
