//go:build unix

package bindings

import "syscall"

// ownGroup puts a command into a process group of its own, so that what it starts
// ends with it.
func ownGroup() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// endGroup asks a group to end. One that is gone needs no asking.
func endGroup(pid int) { _ = syscall.Kill(-pid, syscall.SIGTERM) }

// killGroup ends it.
func killGroup(pid int) { _ = syscall.Kill(-pid, syscall.SIGKILL) }
