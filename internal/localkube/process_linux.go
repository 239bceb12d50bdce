package localkube

import "syscall"

// childAttr gives a component a process group of its own, so that an interrupt typed at the terminal reaches only the
// parent, which may still need the cluster to shut down in order; and has the kernel end it when the parent dies.
func childAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
