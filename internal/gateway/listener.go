package gateway

import (
	"errors"
	"net"
	"sync"
	"time"
)

// listener makes clientConns.
type listener struct{ net.Listener }

// Accept is net.Listener's.
func (l listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &clientConn{Conn: c}, nil
}

// clientConn sets a deadline for reading when somebody reads. net/http and the gateway set nine for each request, most of
// them while nobody does, and each is a timer of the runtime's.
type clientConn struct {
	net.Conn

	mu          sync.Mutex
	wanted, set time.Time
	reading     int
}

// Read is net.Conn's.
func (c *clientConn) Read(p []byte) (int, error) {
	if err := c.begin(); err != nil {
		return 0, err
	}
	defer c.end()
	return c.Conn.Read(p)
}

func (c *clientConn) begin() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.apply(); err != nil {
		return err
	}
	c.reading++
	return nil
}

func (c *clientConn) end() {
	c.mu.Lock()
	c.reading--
	c.mu.Unlock()
}

func (c *clientConn) apply() error {
	if c.wanted.Equal(c.set) {
		return nil
	}
	c.set = c.wanted
	return c.Conn.SetReadDeadline(c.wanted)
}

// SetReadDeadline holds for a Read that is under way too. A closed connection's error may be left to the next Read.
func (c *clientConn) SetReadDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wanted = t
	if c.reading == 0 {
		return nil
	}
	return c.apply()
}

// SetDeadline is net.Conn's.
func (c *clientConn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

// CloseWrite lets net/http close a connection so that the client still reads the answer.
func (c *clientConn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return errors.ErrUnsupported
}
