//go:build !linux

package redistest

import "syscall"

// childAttr runs a program out of reach of an interrupt typed at the terminal. Outside Linux nothing ends it with a test
// binary that is killed.
func childAttr() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
