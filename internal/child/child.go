// Package child runs servers, such as a local control plane's or a test's, as children that end with this process.
package child

import (
	"fmt"
	"net"
	"os/exec"
	"runtime"
)

// Start starts a command, which ends with this process where Attr says so, and returns once it runs. exited is closed when
// it has ended; its outcome is in cmd.ProcessState then. forked, which may be nil, is called when the child has its copies
// of the command's files, or will never have.
func Start(cmd *exec.Cmd, forked func()) (exited <-chan struct{}, err error) {
	started, over := make(chan error), make(chan struct{})
	go func() {
		// Linux sends the parent-death signal when the thread that forked ends, so that thread must last as long as the child.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		if forked != nil {
			forked()
		}
		started <- err
		if err == nil {
			_ = cmd.Wait() // its outcome is in cmd.ProcessState
			close(over)
		}
	}()
	return over, <-started
}

// FreePort is a port of the loopback interface that was free a moment ago. Another process may take it before it is used.
func FreePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // it does not wait
	if err != nil {
		return 0, err
	}
	defer l.Close() //nolint:errcheck // nobody ever connected to it
	addr, ok := l.Addr().(*net.TCPAddr)
	if !ok {
		return 0, fmt.Errorf("a TCP listener at %s, which has no port", l.Addr())
	}
	return addr.Port, nil
}
