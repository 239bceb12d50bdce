// Package workerclient is how controller and gateway talk to the agents of claims: over mutual TLS, to exactly the
// worker that the claim's certificate names, wherever its endpoint happens to lead.
//
// A worker runs on a machine that others own, so nothing that it answers is trusted further than it must be: answers
// are bounded, redirects are not followed, and an error says which of three things happened (see UnreachableError,
// IdentityError and StatusError).
package workerclient

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"github.com/munhq/gpuscale/internal/agentapi"
	"github.com/munhq/gpuscale/internal/pki"
	"github.com/munhq/gpuscale/internal/upstream"
)

const (
	// idleTimeout is below the agent's own, so that a kept connection is never one that the agent has just closed.
	idleTimeout = 60 * time.Second
	// idleConns per worker: more than an engine usually runs at once, so that a burst needs no new handshakes.
	idleConns      = 128
	maxHeaderBytes = 64 << 10
	maxAnswer      = 4 << 20
	maxErrorBody   = 4 << 10
)

// Client talks to any number of workers as one caller. It is safe for concurrent use. Connections are kept per claim:
// call Forget when a claim is gone.
type Client struct {
	pair  pki.Pair
	caPEM []byte
	// roots are the CA in caPEM, once for all workers.
	roots *x509.CertPool
	cert  atomic.Pointer[tls.Certificate]

	mu      sync.Mutex
	workers map[string]*upstream.Transport
}

// New makes a Client that shows pair and trusts the CA in caPEM.
func New(pair pki.Pair, caPEM []byte) (*Client, error) {
	c := &Client{pair: pair, caPEM: caPEM, workers: map[string]*upstream.Transport{}}
	// The claim's name does not matter here: this tells a bad pair or CA at once instead of at the first call.
	config, err := pki.ClientTLS(pair, caPEM, "check")
	if err != nil {
		return nil, err
	}
	c.roots = config.RootCAs
	if err := c.Renew(pair); err != nil {
		return nil, err
	}
	return c, nil
}

// Renew makes new connections show pair, which the same CA issued. Open ones are left alone.
func (c *Client) Renew(pair pki.Pair) error {
	cert, err := pair.Certificate()
	if err != nil {
		return err
	}
	c.cert.Store(&cert)
	return nil
}

// Transport carries any HTTP request to the worker of a claim: the request's URL has the endpoint as host, the claim's
// name is verified. Requests to one claim share connections. Its errors are the package's typed errors. The URL's scheme
// is taken as https, so that nothing is ever sent in the clear.
func (c *Client) Transport(claimUID string) (http.RoundTripper, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if t, ok := c.workers[claimUID]; ok {
		return roundTripper{t}, nil
	}
	config, err := pki.ClientTLS(c.pair, c.caPEM, claimUID)
	if err != nil {
		return nil, err
	}
	config.Certificates, config.RootCAs = nil, c.roots
	config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		return c.cert.Load(), nil
	}
	t := upstream.New(&http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		DialContext:         upstream.Dialer(upstream.ConnectTimeout, upstream.SilenceTimeout).DialContext,
		TLSClientConfig:     config,
		TLSHandshakeTimeout: upstream.HandshakeTimeout,
		IdleConnTimeout:     idleTimeout,
		MaxIdleConnsPerHost: idleConns,
		// Compression would buffer a stream, and hide from the caller what the engine sent.
		DisableCompression:     true,
		MaxResponseHeaderBytes: maxHeaderBytes,
	})
	c.workers[claimUID] = t
	return roundTripper{t}, nil
}

// Forget closes the idle connections to a claim's worker and keeps none of it. Requests in flight end by themselves.
func (c *Client) Forget(claimUID string) {
	c.mu.Lock()
	t := c.workers[claimUID]
	delete(c.workers, claimUID)
	c.mu.Unlock()
	if t != nil {
		t.CloseIdleConnections()
	}
}

// Close closes the idle connections to all workers. The Client can still be used.
func (c *Client) Close() {
	c.mu.Lock()
	workers := c.workers
	c.workers = map[string]*upstream.Transport{}
	c.mu.Unlock()
	for _, t := range workers {
		t.CloseIdleConnections()
	}
}

// Status asks the agent at endpoint ("host:port"), which must be the worker of the claim, how it is.
func (c *Client) Status(ctx context.Context, endpoint, claimUID string) (agentapi.Status, error) {
	var status agentapi.Status
	err := c.call(ctx, endpoint, claimUID, http.MethodGet, agentapi.PathStatus, nil, &status)
	return status, err
}

// PutModels tells the agent the whole desired set. A StatusError with code 409 means that it already knows a newer one.
func (c *Client) PutModels(ctx context.Context, endpoint, claimUID string, desired agentapi.DesiredModels) error {
	return c.call(ctx, endpoint, claimUID, http.MethodPut, agentapi.PathModels, desired, nil)
}

// Drain tells the agent to refuse new work, for one model or, when model is empty, for all. Repeating it is harmless.
func (c *Client) Drain(ctx context.Context, endpoint, claimUID, model string) error {
	return c.call(ctx, endpoint, claimUID, http.MethodPost, agentapi.PathDrain, agentapi.DrainRequest{Model: model}, nil)
}

// Metrics streams the agent's metrics text, at most limit bytes of it. The caller closes the reader.
func (c *Client) Metrics(ctx context.Context, endpoint, claimUID string, limit int64) (io.ReadCloser, error) {
	return c.stream(ctx, endpoint, claimUID, agentapi.PathMetrics, nil, limit)
}

// Logs streams the last lines of a model's engine, at most limit bytes of them. The caller closes the reader.
func (c *Client) Logs(ctx context.Context, endpoint, claimUID, model string, limit int64) (io.ReadCloser, error) {
	return c.stream(ctx, endpoint, claimUID, agentapi.PathLogs, url.Values{"model": {model}}, limit)
}

func (c *Client) call(ctx context.Context, endpoint, claimUID, method, path string, in, out any) error {
	var body io.Reader
	if in != nil {
		text, err := json.Marshal(in)
		if err != nil {
			return err
		}
		body = bytes.NewReader(text)
	}
	response, err := c.do(ctx, endpoint, claimUID, method, path, nil, body)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }() // Nothing is left to do for an answer that was read.
	if out == nil {
		// Read to the end, so that the connection can be used again.
		_, err = io.Copy(io.Discard, io.LimitReader(response.Body, maxAnswer))
		return typed(endpoint, err)
	}
	text, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer+1))
	switch {
	case err != nil:
		return typed(endpoint, err)
	case len(text) > maxAnswer:
		return fmt.Errorf("worker at %s: answer to %s is over %d bytes", endpoint, path, maxAnswer)
	}
	if err := json.Unmarshal(text, out); err != nil {
		return fmt.Errorf("worker at %s: answer to %s: %w", endpoint, path, err)
	}
	return nil
}

func (c *Client) stream(ctx context.Context, endpoint, claimUID, path string, query url.Values, limit int64) (io.ReadCloser, error) {
	response, err := c.do(ctx, endpoint, claimUID, http.MethodGet, path, query, nil) //nolint:bodyclose // The caller closes it.
	if err != nil {
		return nil, err
	}
	return struct {
		io.Reader
		io.Closer
	}{io.LimitReader(response.Body, limit), response.Body}, nil
}

// do sends one request and turns every answer but 2xx into a StatusError.
func (c *Client) do(ctx context.Context, endpoint, claimUID, method, path string, query url.Values, body io.Reader) (*http.Response, error) {
	transport, err := c.Transport(claimUID)
	if err != nil {
		return nil, err
	}
	target := url.URL{Scheme: "https", Host: endpoint, Path: path, RawQuery: query.Encode()}
	request, err := http.NewRequestWithContext(ctx, method, target.String(), body)
	if err != nil {
		return nil, err
	}
	if body != nil {
		request.Header.Set("Content-Type", "application/json")
	}
	// The transport itself, not an http.Client: it follows no redirect.
	response, err := transport.RoundTrip(request)
	if err != nil {
		return nil, err
	}
	if response.StatusCode/100 == 2 {
		return response, nil
	}
	defer func() { _ = response.Body.Close() }() // As above.
	text, _ := io.ReadAll(io.LimitReader(response.Body, maxErrorBody))
	return nil, &StatusError{Endpoint: endpoint, Code: response.StatusCode,
		Refused: response.Header.Get(agentapi.HeaderRefused), Message: messageOf(text)}
}

// roundTripper types the errors of a claim's transport.
type roundTripper struct{ *upstream.Transport }

// RoundTrip sends r over TLS whatever its URL's scheme says.
func (t roundTripper) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Scheme != "https" {
		copied := *r.URL
		copied.Scheme = "https"
		r = r.WithContext(r.Context())
		r.URL = &copied
	}
	response, err := t.Transport.RoundTrip(r)
	return response, typed(r.URL.Host, err)
}
