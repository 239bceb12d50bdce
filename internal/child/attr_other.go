//go:build !linux

package child

import "syscall"

// Attr gives a command a process group of its own, so that an interrupt typed at the terminal reaches only the parent,
// which may still need the child to end in order. Outside Linux nothing ends the children of a parent that was killed.
func Attr(syscall.Signal) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true}
}
