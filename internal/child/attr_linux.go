package child

import "syscall"

// Attr gives a command a process group of its own, so that an interrupt typed at the terminal reaches only the parent,
// which may still need the child to end in order; and has the kernel send it end when the parent dies.
func Attr(end syscall.Signal) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: end}
}
