package backend_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/apbus/apbus/loop/looptest"
)

// fakeMode names the variable that makes the test binary a model.
const fakeMode = "LOOP_FAKE_MODEL"

// fakeAddr names the variable with the address to which a grandchild connects.
const fakeAddr = "LOOP_FAKE_ADDR"

func TestMain(m *testing.M) {
	if mode := os.Getenv(fakeMode); mode != "" {
		os.Exit(fakeModel(mode, os.Stdin, os.Stdout))
	}
	os.Exit(m.Run())
}

// fakeModel is a model that behaves as mode says, once it has answered the probe.
func fakeModel(mode string, in io.Reader, out io.Writer) int {
	r := bufio.NewReader(in)
	head, _ := r.Peek(len(`{"loop":1,"op":"probe"}`))
	probe := string(head) == `{"loop":1,"op":"probe"}`
	if probe && !strings.HasPrefix(mode, "probe-") {
		fmt.Fprint(out, `{"model":"fake-1"}`)
		return 0
	}
	switch mode {
	case "probe-text":
		fmt.Fprint(out, "hello")
	case "probe-anonymous":
		fmt.Fprint(out, "{}")
	case "probe-exit":
		return 3
	case "echo":
		n, _ := io.Copy(io.Discard, r)
		fmt.Fprintf(out, `{"bytes":%d}`, n)
	case "ignore-input":
		fmt.Fprint(out, `{}`)
	case "write-first":
		// Fills the pipe before it reads a byte.
		fmt.Fprint(out, strings.Repeat("x", 512<<10))
		_, _ = io.Copy(io.Discard, r)
	case "forever":
		for {
			if _, err := fmt.Fprint(out, strings.Repeat("x", 64<<10)); err != nil {
				return 1
			}
		}
	case "not-utf8":
		fmt.Fprint(out, "\xff\xfe")
	case "exit":
		return 7
	case "sleep":
		time.Sleep(time.Hour) //archtest:real-time a process that hangs
	case "fork":
		// A grandchild keeps the output open after this process has ended, which no context may end.
		child := exec.Command(os.Args[0])
		child.Env = []string{fakeMode + "=sleep"}
		child.Stdout = os.Stdout
		if err := child.Start(); err != nil {
			return 1
		}
		fmt.Fprint(out, `{}`)
	case "fork-hold", "fork-hold-sleep":
		// A grandchild with the output closed, which whoever listens can see live.
		child := exec.Command(os.Args[0])
		child.Env = []string{fakeMode + "=hold", fakeAddr + "=" + os.Getenv(fakeAddr)}
		ready, err := child.StdoutPipe()
		if err != nil || child.Start() != nil {
			return 1
		}
		_, _ = ready.Read(make([]byte, 1))
		if mode == "fork-hold-sleep" {
			time.Sleep(time.Hour) //archtest:real-time a process that hangs
		}
		fmt.Fprint(out, `{}`)
	case "hold":
		conn, err := net.Dial("tcp", os.Getenv(fakeAddr))
		if err != nil {
			return 1
		}
		fmt.Fprint(out, "1")
		_, _ = io.Copy(io.Discard, conn)
	case "hostile":
		var seed uint64
		_, _ = fmt.Sscan(os.Getenv("SEED"), &seed)
		request, _ := io.ReadAll(r)
		answer, err := looptest.NewHostile(seed+uint64(len(request))).Complete(context.Background(), string(request))
		if err != nil {
			return 1
		}
		fmt.Fprint(out, answer)
	case "env":
		fmt.Fprintf(out, "%q", os.Environ())
	case "args":
		fmt.Fprintf(out, "%q", os.Args[1:])
	}
	return 0
}
