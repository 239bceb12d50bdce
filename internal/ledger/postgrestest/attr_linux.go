package postgrestest

import "syscall"

// childAttr runs a program as someone else where as is set, out of reach of an interrupt typed at the terminal, and ends
// it with the test binary.
func childAttr(as *syscall.Credential) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Credential: as, Pdeathsig: syscall.SIGQUIT}
}
