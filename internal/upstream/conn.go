package upstream

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"syscall"
	"time"
)

var errHeader = errors.New("the answer's headers are too long")

// place is where a connection leads, as a URL has it.
type place struct{ scheme, host string }

// conn is a connection. It belongs to one request at a time.
type conn struct {
	net.Conn // with TLS, where there is any

	raw       net.Conn
	to        place
	idle      *pool
	maxHeader int64
	since     time.Time // of its being kept

	// Of the request:

	ctx    context.Context
	stop   func() bool
	reader *bufio.Reader
	// left is how much more may be read before an answer's head is there; negative after it.
	left int64
	// heard: something was read.
	heard bool
	// sent has the outcome once all was sent; nil where that was before the answer was read.
	sent chan error
}

// Read is the reader's.
func (c *conn) Read(p []byte) (int, error) {
	if c.left == 0 {
		return 0, errHeader
	}
	if c.left > 0 && int64(len(p)) > c.left {
		p = p[:c.left]
	}
	n, err := c.Conn.Read(p)
	if n > 0 {
		c.heard = true
		if c.left > 0 {
			c.left -= int64(n)
		}
	}
	return n, err
}

func (c *conn) abort() { _ = c.Close() } // It is given up.

// end is the end of the request. keep tells whether the connection is as it should be.
func (c *conn) end(keep bool) {
	if c.sent != nil {
		select {
		case err := <-c.sent:
			keep = keep && err == nil
		default: // The server answered before it had the whole request, and what is left of it is in the way.
			keep = false
		}
	}
	reader, alive := c.reader, c.stop()
	keep = keep && alive && reader.Buffered() == 0
	c.ctx, c.stop, c.sent, c.reader = nil, nil, nil, nil
	reader.Reset(nil)
	readers.Put(reader)
	if !keep || !c.idle.put(c) {
		c.abort()
	}
}

// begin makes the connection a request's.
func (c *conn) begin(ctx context.Context) {
	c.ctx, c.stop = ctx, context.AfterFunc(ctx, c.abort)
	c.reader, _ = readers.Get().(*bufio.Reader) // Nothing else is put in.
	c.reader.Reset(c)
}

// readers are shared by all connections: one that nobody uses needs none.
var readers = sync.Pool{New: func() any { return bufio.NewReaderSize(nil, readBytes) }}

// quiet tells whether nothing came while it was kept: neither its end nor what nobody asked for.
func (c *conn) quiet() bool {
	s, ok := c.raw.(syscall.Conn)
	if !ok {
		return true
	}
	fd, err := s.SyscallConn()
	if err != nil {
		return false
	}
	nothing := false
	err = fd.Read(func(fd uintptr) bool {
		var b [1]byte
		_, _, err := syscall.Recvfrom(int(fd), b[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		nothing = errors.Is(err, syscall.EAGAIN) || errors.Is(err, syscall.EINTR)
		return true
	})
	return err == nil && nothing
}

// answer is an answer's body.
type answer struct {
	body io.Reader
	c    *conn
	keep bool

	mu sync.Mutex
	// over is what Read says once the connection is no longer its own.
	over error
}

// Read passes on what the server sent. At the body's end the connection is free for others.
func (a *answer) Read(p []byte) (int, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.over != nil {
		return 0, a.over
	}
	n, err := a.body.Read(p)
	if err == nil {
		return n, nil
	}
	whole := errors.Is(err, io.EOF)
	if !whole {
		err = cause(a.c.ctx, err)
	}
	a.end(err, whole && a.keep)
	return n, err
}

// Close gives the connection up, unless the body was read. It waits for a Read that is under way, which the end of the
// request's context ends.
func (a *answer) Close() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.over == nil {
		a.end(http.ErrBodyReadAfterClose, false)
	}
	return nil
}

func (a *answer) end(over error, keep bool) {
	a.over = over
	a.c.end(keep)
	a.c, a.body = nil, nil
}

// pool keeps connections that nobody uses. The last to come is the first to go, so that those that are not needed age.
type pool struct {
	most  int
	after time.Duration // 0: they are kept for ever

	mu     sync.Mutex
	conns  []*conn
	closed bool
	timer  *time.Timer
	set    bool
}

// take returns a connection there that seems alive, or nil.
func (p *pool) take(to place) *conn {
	for {
		p.mu.Lock()
		p.closed = false
		n := len(p.conns)
		if n == 0 {
			p.mu.Unlock()
			return nil
		}
		c := p.conns[n-1]
		p.conns[n-1] = nil
		p.conns = p.conns[:n-1]
		p.mu.Unlock()
		if c.to == to && !p.old(c) && c.quiet() {
			return c
		}
		c.abort()
	}
}

func (p *pool) old(c *conn) bool {
	return p.after > 0 && time.Since(c.since) >= p.after //gpuscale:clock a server's time for idle connections is real
}

// put keeps c unless there are enough.
func (p *pool) put(c *conn) bool {
	c.since = time.Now() //gpuscale:clock as above
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || len(p.conns) >= p.most {
		return false
	}
	p.conns = append(p.conns, c)
	p.wake(p.after)
	return true
}

// wake has the old ones looked for in a time, unless that is to happen already.
func (p *pool) wake(in time.Duration) {
	switch {
	case p.after <= 0 || p.set:
		return
	case p.timer == nil:
		p.timer = time.AfterFunc(in, p.expire)
	default:
		p.timer.Reset(in)
	}
	p.set = true
}

func (p *pool) expire() {
	p.mu.Lock()
	n := 0
	for n < len(p.conns) && p.old(p.conns[n]) {
		n++
	}
	old := append([]*conn(nil), p.conns[:n]...)
	p.conns = append(p.conns[:0], p.conns[n:]...)
	clear(p.conns[len(p.conns):cap(p.conns)])
	p.set = false
	if len(p.conns) > 0 {
		p.wake(p.after - time.Since(p.conns[0].since)) //gpuscale:clock as above
	}
	p.mu.Unlock()
	for _, c := range old {
		c.abort()
	}
}

func (p *pool) close() {
	p.mu.Lock()
	conns := p.conns
	p.conns, p.closed = nil, true
	if p.timer != nil {
		p.timer.Stop()
	}
	p.set = false
	p.mu.Unlock()
	for _, c := range conns {
		c.abort()
	}
}
