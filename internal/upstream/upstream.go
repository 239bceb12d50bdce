// Package upstream sends HTTP/1.1 requests over connections that it keeps, and reads the answers, all on the goroutine of
// whoever asks. net/http's Transport has two goroutines for each connection, so that a short request crosses from one to
// another four times; here it crosses none.
package upstream

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"sync"
)

const (
	// atOnce is the largest body that is sent before the answer is read. The kernel takes it whatever the server does: a
	// connection that waits for a request has nothing else to send. A larger one is sent while the answer is read, since
	// a server may answer, and read no further, before it has it all.
	atOnce = 16 << 10
	// maxInterim is how many answers with a status of 1xx may come before the real one.
	maxInterim     = 5
	readBytes      = 4 << 10
	maxHeaderBytes = 1 << 20
)

// Transport is an http.RoundTripper for one server. What it does is what its Base would do, as far as a Base for HTTP/1.1
// can be told: Proxy, DialContext, TLSClientConfig, TLSHandshakeTimeout, IdleConnTimeout, MaxIdleConnsPerHost
// and MaxResponseHeaderBytes. DisableCompression must be set, and nothing else has an effect. Where a proxy is
// between, the Base carries the request itself.
//
// A request that was sent is not sent again but for GET and HEAD on a connection that the server closed meanwhile. Traces
// (net/http/httptrace) get GotConn, and WroteHeaders before any of it is sent. It is safe for concurrent use. When the server
// moves, so that a request's URL has another host or scheme than those before, what is kept to the old place is dropped.
type Transport struct {
	base *http.Transport
	tls  *tls.Config
	idle pool
}

// New makes a Transport. base is not to be changed any more.
func New(base *http.Transport) *Transport {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if base.TLSClientConfig != nil {
		config = base.TLSClientConfig.Clone()
	}
	config.DynamicRecordSizingDisabled = true // A request is of use only when all of it is there.
	return &Transport{base: base, tls: config, idle: pool{most: base.MaxIdleConnsPerHost, after: base.IdleConnTimeout}}
}

// CloseIdleConnections closes what is kept, and what requests under way leave, until the next request.
func (t *Transport) CloseIdleConnections() {
	t.idle.close()
	t.base.CloseIdleConnections()
}

// RoundTrip is http.RoundTripper's. The end of the request's context closes the connection. The answer's body must be
// read to its end for the connection to be used again, and closed in any case.
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	if t.base.Proxy != nil {
		if proxy, err := t.base.Proxy(r); proxy != nil || err != nil {
			return t.base.RoundTrip(r) // It reports the error too.
		}
	}
	ctx := r.Context()
	again := r.Method == http.MethodGet || r.Method == http.MethodHead
	for {
		c, reused, err := t.connection(ctx, r)
		if err != nil {
			closeBody(r)
			return nil, cause(ctx, err)
		}
		c.begin(ctx)
		if trace := httptrace.ContextClientTrace(ctx); trace != nil && trace.GotConn != nil {
			trace.GotConn(httptrace.GotConnInfo{Conn: c.Conn, Reused: reused, WasIdle: reused})
		}
		response, err := c.exchange(r)
		if err == nil {
			return response, nil
		}
		c.end(false)
		if !again || !reused || c.heard || ctx.Err() != nil || r.Body != nil && r.Body != http.NoBody {
			return nil, cause(ctx, err)
		}
		again = false
	}
}

// cause is the context's where it ended.
func cause(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

func closeBody(r *http.Request) {
	if r.Body != nil {
		_ = r.Body.Close() // It was not read.
	}
}

// connection takes one that is kept, or makes one.
func (t *Transport) connection(ctx context.Context, r *http.Request) (c *conn, reused bool, err error) {
	if err := ctx.Err(); err != nil {
		return nil, false, err
	}
	if c := t.idle.take(place{r.URL.Scheme, r.URL.Host}); c != nil {
		return c, true, nil
	}
	raw, err := t.dial(ctx, r)
	if err != nil {
		return nil, false, err
	}
	c = &conn{Conn: raw, raw: raw, to: place{r.URL.Scheme, r.URL.Host}, idle: &t.idle, maxHeader: cmp.Or(t.base.MaxResponseHeaderBytes, maxHeaderBytes)}
	if r.URL.Scheme == "https" {
		if c.Conn, err = t.handshake(ctx, raw, r.URL.Hostname()); err != nil {
			_ = raw.Close() // The reason why is in err.
			return nil, false, err
		}
	}
	return c, false, nil
}

func (t *Transport) dial(ctx context.Context, r *http.Request) (net.Conn, error) {
	port := r.URL.Port()
	if port == "" {
		port = map[bool]string{true: "443", false: "80"}[r.URL.Scheme == "https"]
	}
	dial := t.base.DialContext
	if dial == nil {
		dial = (&net.Dialer{}).DialContext
	}
	return dial(ctx, "tcp", net.JoinHostPort(r.URL.Hostname(), port))
}

func (t *Transport) handshake(ctx context.Context, raw net.Conn, host string) (net.Conn, error) {
	config := t.tls
	if config.ServerName == "" {
		config = config.Clone()
		config.ServerName = host
	}
	if t.base.TLSHandshakeTimeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, t.base.TLSHandshakeTimeout)
		defer cancel()
	}
	c := tls.Client(raw, config)
	err := c.HandshakeContext(ctx)
	return c, err
}

var heads = sync.Pool{New: func() any { return &bytes.Buffer{} }}

// send writes the request. A body that is large is still being sent when it returns.
func (c *conn) send(r *http.Request) error {
	if r.Body != nil && r.Body != http.NoBody && (r.ContentLength < 0 || r.ContentLength > atOnce) {
		sent := make(chan error, 1)
		c.sent = sent
		go func() {
			w := bufio.NewWriterSize(c.Conn, atOnce)
			sent <- errors.Join(r.Write(w), w.Flush())
		}()
		return nil
	}
	c.sent = nil
	head, _ := heads.Get().(*bytes.Buffer) // Nothing else is put in.
	head.Reset()
	defer heads.Put(head)
	if err := r.Write(head); err != nil {
		return err
	}
	_, err := c.Conn.Write(head.Bytes()) // One write: one packet, and one record of TLS.
	return err
}

// exchange sends the request and reads the answer's head.
func (c *conn) exchange(r *http.Request) (*http.Response, error) {
	c.heard = false
	// Whatever came of the sending, the server may have answered: with why it wants no more of it, for one.
	failed := c.send(r)
	for range maxInterim + 1 {
		c.left = c.maxHeader
		response, err := http.ReadResponse(c.reader, r)
		c.left = -1
		switch {
		case err != nil && failed != nil:
			return nil, fmt.Errorf("%w (%w)", failed, err)
		case err != nil:
			return nil, err
		case response.StatusCode/100 == 1 && response.StatusCode != http.StatusSwitchingProtocols:
			continue
		}
		a := &answer{body: response.Body, c: c}
		a.keep = failed == nil && !response.Close && response.StatusCode != http.StatusSwitchingProtocols
		if response.Body == http.NoBody {
			a.end(io.EOF, a.keep)
		}
		response.Body = a
		return response, nil
	}
	return nil, fmt.Errorf("more than %d answers with a status of 1xx", maxInterim)
}
