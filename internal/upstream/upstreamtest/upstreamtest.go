// Package upstreamtest makes servers vanish as machines do whose power or network is gone: without a word.
package upstreamtest

import (
	"net"
	"testing"
)

// Listen listens on loopback, without multipath TCP, whose packets cannot be dropped.
func Listen(t testing.TB) net.Listener {
	t.Helper()
	var c net.ListenConfig
	c.SetMultipathTCP(false)
	l, err := c.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}
