package upstream

import (
	"net"
	"syscall"
	"time"
)

const (
	// ConnectTimeout is how long a server may take to accept a connection. The machine's kernel does that, however busy its
	// programs are, and a lost packet is sent again after a second. What takes longer leads nowhere, and whoever waits for it
	// could be asking another server.
	ConnectTimeout = 2 * time.Second
	// HandshakeTimeout is how long its program may take to finish the TLS handshake: short for the same reason, and a busy one
	// has time to answer.
	HandshakeTimeout = 5 * time.Second
	// SilenceTimeout is how long a connection lives on while nothing that is sent is acknowledged: without it the kernel would
	// try for a quarter of an hour, and the client of a machine that vanished would wait as long.
	SilenceTimeout = 30 * time.Second
)

// Dialer makes connections that end with an error once the other machine has said nothing for a time, be they idle, in the
// middle of a request or of an answer. A server that takes its time is not silent: its kernel acknowledges. Where the
// system cannot bound what was sent and not acknowledged, only idle connections are bounded.
func Dialer(connect, silence time.Duration) *net.Dialer {
	return &net.Dialer{
		Timeout: connect,
		// Two probes, the second of which finds that the time is over.
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: silence / 2, Interval: silence / 2, Count: 2}, //nolint:mnd // As said.
		Control: func(_, _ string, c syscall.RawConn) error {
			var set error
			err := c.Control(func(fd uintptr) { set = boundSilence(int(fd), silence) })
			if err != nil {
				return err
			}
			return set
		},
	}
}
