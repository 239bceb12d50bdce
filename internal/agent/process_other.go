//go:build unix && !linux

package agent

import "syscall"

// childAttr gives an engine a process group of its own, by which it is killed with all its workers. Outside Linux an
// agent that is killed leaves its engines behind; workers are Linux machines.
func childAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true}
}

// killMarked does nothing outside Linux: an engine's processes that left its group stay.
func killMarked(string) {}
