package integration_test

import (
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"
)

// terminal is a program that runs on a terminal of its own.
type terminal struct {
	t      *testing.T
	screen *os.File
	cmd    *exec.Cmd
	done   chan struct{}

	mu    sync.Mutex
	shown strings.Builder
}

// onTerminal starts the command line on a terminal.
func (s *system) onTerminal(t *testing.T, args ...string) *terminal {
	t.Helper()
	screen, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = screen.Close() })
	control := func(request uintptr, arg *int32) {
		if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, screen.Fd(), request, uintptr(unsafe.Pointer(arg))); errno != 0 {
			t.Fatalf("terminal: %v", errno)
		}
	}
	var unlock, number int32
	control(syscall.TIOCSPTLCK, &unlock)
	control(syscall.TIOCGPTN, &number)
	tty, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	term := &terminal{t: t, screen: screen, done: make(chan struct{}), cmd: exec.Command(program(t, "apbus"), args...)}
	term.cmd.Env = append(cleanEnvironment(), "APBUS_ROUTER="+s.api)
	term.cmd.Stdin, term.cmd.Stdout, term.cmd.Stderr = tty, tty, tty
	term.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := term.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = tty.Close() // the program has it
	go term.read()
	t.Cleanup(func() {
		_ = term.cmd.Process.Kill()
		<-term.done
	})
	return term
}

func (s *terminal) read() {
	defer close(s.done)
	buf := make([]byte, 4096)
	for {
		n, err := s.screen.Read(buf)
		s.mu.Lock()
		s.shown.Write(buf[:n])
		s.mu.Unlock()
		if err != nil {
			break
		}
	}
	_ = s.cmd.Wait() // how it ended is in ProcessState
}

func (s *terminal) text() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.shown.String()
}

// exit waits for the end and returns the exit code and what was shown.
func (s *terminal) exit(limit time.Duration) (int, string) {
	s.t.Helper()
	select {
	case <-s.done:
		return s.cmd.ProcessState.ExitCode(), s.text()
	case <-time.After(limit):
		s.t.Fatalf("still runs after %v: %q", limit, s.text())
		return 0, ""
	}
}

// partly is a bar on its way; on a busy machine some of its steps are left out.
var partly = regexp.MustCompile(` [2468]0%`)

func TestCallsOnATerminal(t *testing.T) {
	t.Parallel()
	s, n1, n2 := startPair(t)
	for way, flags := range map[string][]string{"http": nil, "nats": {"--nats", s.nats}} {
		t.Run(way, func(t *testing.T) {
			s := s.in(t)
			run := func(args ...string) *terminal {
				return s.onTerminal(t, append(append([]string{}, flags...), args...)...)
			}

			code, shown := run("call", "demo.sleep", "ms=1000", "steps=5").exit(requestLimit)
			if code != 0 || !strings.Contains(shown, "demo.sleep [====") || !partly.MatchString(shown) {
				t.Errorf("exit code %d, no bar: %q", code, shown)
			}
			if !strings.HasSuffix(shown, "\r\x1b[K{\r\n  \"slept_ms\": 1000\r\n}\r\n") {
				t.Errorf("the bar is not taken away before the output: %q", shown)
			}
			code, shown = run("call", "text.words", "text=to be", "--stream").exit(requestLimit)
			if want := "to\r\nbe\r\n{\"count\":2}\r\n"; code != 0 || shown != want {
				t.Errorf("exit code %d, stream %q, want %q", code, shown, want)
			}
			long := run("call", "demo.sleep", "ms="+longSleep, "steps=600")
			eventually(t, startLimit, "the bar is shown", func() bool { return strings.Contains(long.text(), "demo.sleep [") })
			if _, err := long.screen.WriteString("\x03"); err != nil { // Ctrl-C
				t.Fatal(err)
			}
			if code, shown := long.exit(5 * time.Second); code != 130 || !strings.Contains(shown, "interrupted: cancelled call") {
				t.Errorf("Ctrl-C: exit code %d: %q", code, shown)
			}
			s.waitIdle(cancelLimit, n1)
			s.waitIdle(cancelLimit, n2)
		})
	}
}
