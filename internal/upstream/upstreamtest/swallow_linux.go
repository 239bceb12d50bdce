package upstreamtest

import (
	"syscall"
	"testing"
)

// Swallow drops every packet that arrives for a TCP connection, or a listener that Listen made, from now on, before the
// kernel has seen it: a listener accepts nothing and refuses nothing, a connection acknowledges nothing. Connections that a
// listener has accepted before are not touched. It may be called from any goroutine.
func Swallow(t testing.TB, socket any) {
	t.Helper()
	s, ok := socket.(syscall.Conn)
	if !ok {
		t.Errorf("%T has no file descriptor", socket)
		return
	}
	raw, err := s.SyscallConn()
	if err != nil {
		t.Error(err)
		return
	}
	var attached error
	nothing := []syscall.SockFilter{{Code: syscall.BPF_RET | syscall.BPF_K}} // of each packet so many bytes are let through: none
	//nolint:staticcheck // One instruction is no reason for the module that it names instead.
	attach := func(fd uintptr) { attached = syscall.AttachLsf(int(fd), nothing) }
	if err := raw.Control(attach); err != nil || attached != nil {
		t.Error(err, attached)
	}
}
