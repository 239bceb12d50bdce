//go:build !linux

package process

import "syscall"

// ownSession gives the child a process group. Elsewhere than on Linux nothing ends it when the parent is killed.
func ownSession() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// killSession kills the child's process group; engines in groups of their own are left to the agent.
func killSession(leader int) { _ = syscall.Kill(-leader, syscall.SIGKILL) }

func pauseSession(leader int, on bool) {
	signal := syscall.SIGCONT
	if on {
		signal = syscall.SIGSTOP
	}
	_ = syscall.Kill(-leader, signal)
}
