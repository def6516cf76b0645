//go:build unix && !linux

package main

import "syscall"

// childAttributes puts a child into a process group of its own, so that Ctrl-C
// reaches only us and we stop the children in order.
func childAttributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
