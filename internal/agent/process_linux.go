package agent

import "syscall"

// childAttr gives an engine a process group of its own, by which it is killed with all its workers, and has the kernel
// kill it when the agent dies without having done so.
func childAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
