//go:build !unix

package bindings

import (
	"os"
	"syscall"
)

// There are no process groups here: a command is killed by itself.

func ownGroup() *syscall.SysProcAttr { return nil }

func endGroup(pid int) { killGroup(pid) }

func killGroup(pid int) {
	if p, err := os.FindProcess(pid); err == nil {
		_ = p.Kill() // gone already when it fails
	}
}
