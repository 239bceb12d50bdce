package workerclient

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"math"
	"net"
	"net/http"
	"os"
	"slices"
	"sync"
	"time"
)

// frugalConns is how many idle connections a frugal keeps: one for the looks at its worker, one for the scrapes.
const frugalConns = 2

// frugal carries the calls to one worker's agent, over connections that are as good as free between them. net/http's
// Transport has two goroutines and two buffers for each of its connections; with a thousand workers that is 20 MB to wait
// for the next question.
//
// The price is that nobody notices when the other side closes an idle connection. A request that finds one closed is sent
// again, once, on a new one: it is for calls that may be repeated, which all of an agent's are, and for bodies that can be
// read again. It knows no proxy and follows no redirect.
type frugal struct {
	config *tls.Config

	mu     sync.Mutex
	idle   []*link
	closed bool
}

// link is one connection, used by one request at a time.
type link struct {
	*tls.Conn
	endpoint string
	// expiry closes it when it was idle for long.
	expiry *time.Timer
}

var (
	readers = sync.Pool{New: func() any { return bufio.NewReaderSize(nil, 4<<10) }}
	writers = sync.Pool{New: func() any { return bufio.NewWriterSize(nil, 4<<10) }}
)

// errStale is inside the error of a kept connection that the other side had closed.
var errStale = errors.New("the kept connection was closed")

// RoundTrip sends r to the host of its URL.
func (f *frugal) RoundTrip(r *http.Request) (*http.Response, error) {
	if l := f.take(r.URL.Host); l != nil {
		response, err := f.exchange(r, l)
		if !errors.Is(err, errStale) {
			return response, err
		}
		if r.GetBody != nil {
			again := r.Clone(r.Context())
			if again.Body, err = r.GetBody(); err != nil {
				return nil, err
			}
			r = again
		}
	}
	l, err := f.dial(r.Context(), r.URL.Host)
	if err != nil {
		return nil, err
	}
	return f.exchange(r, l)
}

func (f *frugal) dial(ctx context.Context, endpoint string) (*link, error) {
	raw, err := (&net.Dialer{Timeout: dialTimeout, KeepAlive: 15 * time.Second}).DialContext(ctx, "tcp", endpoint)
	if err != nil {
		return nil, err
	}
	l := &link{Conn: tls.Client(raw, f.config), endpoint: endpoint}
	ctx, cancel := context.WithTimeout(ctx, handshakeTimeout)
	defer cancel()
	if err := l.HandshakeContext(ctx); err != nil {
		_ = raw.Close() // The handshake's error is what counts.
		return nil, err
	}
	return l, nil
}

// exchange sends the request and reads the answer's head. When the body was read to its end, the connection is kept.
func (f *frugal) exchange(r *http.Request, l *link) (*http.Response, error) {
	kept := l.expiry != nil
	// Its own deadline ends what waits on the connection; it is not used again after that.
	stop := context.AfterFunc(r.Context(), func() { _ = l.SetDeadline(time.Unix(1, 0)) })
	a := &answer{frugal: f, request: r, link: l, stop: stop, limit: &io.LimitedReader{R: l, N: maxHeaderBytes},
		reader: readers.Get().(*bufio.Reader)}
	a.reader.Reset(a.limit)
	err := send(r, l)
	if err == nil {
		_, err = a.reader.Peek(1)
	}
	if err != nil {
		a.end(false)
		if kept && r.Context().Err() == nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			return nil, errors.Join(errStale, err)
		}
		return nil, causeOf(r.Context(), err)
	}
	response, err := http.ReadResponse(a.reader, r)
	if err != nil {
		a.end(false)
		return nil, causeOf(r.Context(), err)
	}
	a.limit.N = math.MaxInt64
	a.body, a.reusable = response.Body, !response.Close
	response.Body = a
	return response, nil
}

func send(r *http.Request, to io.Writer) error {
	w := writers.Get().(*bufio.Writer)
	defer writers.Put(w)
	w.Reset(to)
	defer w.Reset(nil)
	if err := r.Write(w); err != nil {
		return err
	}
	return w.Flush()
}

// causeOf is err, or why the context ended where that is what made it.
func causeOf(ctx context.Context, err error) error {
	if ended := ctx.Err(); ended != nil {
		return ended
	}
	return err
}

// answer is the body of a response, and what is given back at its end.
type answer struct {
	frugal   *frugal
	request  *http.Request
	link     *link
	stop     func() bool
	limit    *io.LimitedReader
	reader   *bufio.Reader
	body     io.Reader
	reusable bool

	mu    sync.Mutex
	ended error
}

// Read reads the body. At its end the connection is free for the next request.
func (a *answer) Read(p []byte) (int, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.ended != nil {
		return 0, a.ended
	}
	n, err := a.body.Read(p)
	if err == nil {
		return n, nil
	}
	whole := err == io.EOF //nolint:errorlint // As io.Reader has it; one that is wrapped would be no end.
	a.ended = err
	if !whole {
		a.ended = causeOf(a.request.Context(), err)
	}
	a.end(whole && a.reusable && a.reader.Buffered() == 0)
	return n, a.ended
}

// Close gives up what was not read, and the connection with it.
func (a *answer) Close() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.ended == nil {
		a.ended = errors.New("read after the answer was closed")
		a.end(false)
	}
	return nil
}

// end gives back the reader, and the connection if it is good for another request.
func (a *answer) end(good bool) {
	a.reader.Reset(nil)
	readers.Put(a.reader)
	if a.stop() && good {
		a.frugal.keep(a.link)
		return
	}
	_ = a.link.Close() // Nothing is left to say on it.
}

// take is an idle connection to endpoint; nil when there is none. Those to where the worker was before are closed.
func (f *frugal) take(endpoint string) *link {
	f.mu.Lock()
	defer f.mu.Unlock()
	for len(f.idle) > 0 {
		l := f.idle[len(f.idle)-1]
		f.idle = f.idle[:len(f.idle)-1]
		if l.expiry.Stop() && l.endpoint == endpoint {
			return l
		}
		go l.Close() //nolint:errcheck // It says goodbye to the other side, which may not listen.
	}
	return nil
}

func (f *frugal) keep(l *link) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed || len(f.idle) >= frugalConns {
		go l.Close() //nolint:errcheck // As above.
		return
	}
	if l.expiry == nil {
		l.expiry = time.AfterFunc(idleTimeout, func() { f.expire(l) }) //gpuscale:clock it is the agent's real time-out that this one is below
	} else {
		l.expiry.Reset(idleTimeout)
	}
	f.idle = append(f.idle, l)
}

// expire closes a connection that nobody used.
func (f *frugal) expire(l *link) {
	f.mu.Lock()
	f.idle = slices.DeleteFunc(f.idle, func(o *link) bool { return o == l })
	f.mu.Unlock()
	_ = l.Close() // As above.
}

// close closes the idle connections; those in use are closed when they are done.
func (f *frugal) close() {
	f.mu.Lock()
	idle := f.idle
	f.idle, f.closed = nil, true
	f.mu.Unlock()
	for _, l := range idle {
		l.expiry.Stop()
		_ = l.Close() // As above.
	}
}
