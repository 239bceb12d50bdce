//go:build !linux

package postgrestest

import "syscall"

// childAttr runs a program as someone else where as is set. Outside Linux nothing ends it with a test binary that is
// killed.
func childAttr(as *syscall.Credential) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Credential: as}
}
