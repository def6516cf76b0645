//go:build unix

package backend

import (
	"os/exec"
	"syscall"
)

// ownGroup makes the command the leader of a process group, all of which is killed
// when the context ends.
func ownGroup(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
}

// killGroup ends what the command left behind. The group keeps its ID as long as
// one of its processes lives, so no stranger can be hit.
func killGroup(cmd *exec.Cmd) {
	if cmd.Process != nil {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	}
}
