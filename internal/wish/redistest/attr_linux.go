package redistest

import "syscall"

// childAttr runs a program out of reach of an interrupt typed at the terminal, and ends it with the test binary.
func childAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
