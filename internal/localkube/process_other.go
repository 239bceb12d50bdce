//go:build !linux

package localkube

import "syscall"

// childAttr gives a component a process group of its own, so that an interrupt typed at the terminal reaches only the
// parent, which may still need the cluster to shut down in order. Outside Linux nothing ends the components of a
// parent that was killed.
func childAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true}
}
