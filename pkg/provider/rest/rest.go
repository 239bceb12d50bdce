// Package rest is how drivers speak JSON over HTTPS: paced per endpoint, bounded, and careful about what a failure
// means.
//
// What it guarantees, so that no driver has to:
//
//   - A write (Call.Write) reaches the wire at most once. Only reads are repeated, by hashicorp/go-retryablehttp; writes
//     never pass through it.
//   - A failure says whether the request can have arrived (Error.Phase). Anything not proved unsent counts as sent.
//   - No redirect is followed: it could turn a PUT into a GET, or carry the credentials to another host.
//   - No credential is in any error, even where the vendor echoes it, and none can be printed from a Client.
//   - A 429 is handed to the caller, not waited out: what to do about it is decided in one place, above the drivers.
package rest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/hashicorp/go-cleanhttp"
	"github.com/hashicorp/go-retryablehttp"
)

// Defaults of Config.
const (
	DefaultTimeout       = 30 * time.Second
	DefaultMaxBody       = 64 << 20 // a search of every offer of a large market is about 20 MB
	DefaultReadAttempts  = 3
	DefaultShortestRetry = time.Second
	DefaultLongestRetry  = 10 * time.Second
)

// Config says how to reach one account at one API.
type Config struct {
	// BaseURL is scheme and host, with a path prefix if the API has one. Required.
	BaseURL string
	// Transport carries the requests; nil means a pooled transport of the Client's own.
	Transport http.RoundTripper
	// Authorise puts the credentials on a request.
	Authorise func(http.Header)
	// Secrets are the strings that no error may contain.
	Secrets []string

	// Timeout bounds one attempt from dial to last byte. It does not count the wait for the pace.
	Timeout time.Duration
	// MaxBody is the most bytes of an answer that are read; a longer one is an error, never a part.
	MaxBody int64

	// ReadAttempts is how often a read is tried where it fails in passing (502, 503, 504, no connection, no answer).
	ReadAttempts int
	// RetryMin and RetryMax bound the wait between attempts of a read. An answer that asks for a longer wait is
	// handed to the caller.
	RetryMin, RetryMax time.Duration

	// Paces is the least time between two sends per endpoint, by Call.Endpoint. An endpoint not named is not paced.
	Paces map[string]time.Duration
	// Budget bounds the sends of all endpoints together.
	Budget Budget
	// Clock times paces and reads HTTP dates; nil means the system's.
	Clock Clock
}

// Client makes the calls of one account. It may be used concurrently.
type Client struct {
	base      *url.URL
	http      *http.Client
	authorise func(http.Header)
	redact    func(string) string
	pacer     *pacer
	clock     Clock
	maxBody   int64
	attempts  int
	retryMin  time.Duration
	retryMax  time.Duration
}

// New checks c and returns its Client. Errors name the setting, never a credential.
func New(c Config) (*Client, error) {
	base, err := url.Parse(strings.TrimSuffix(c.BaseURL, "/"))
	if err != nil || base.Host == "" || (base.Scheme != "https" && base.Scheme != "http") {
		return nil, fmt.Errorf("rest: base URL %q is not an http(s) URL", redactor(c.Secrets)(c.BaseURL))
	}
	transport := c.Transport
	if transport == nil {
		transport = cleanhttp.DefaultPooledTransport()
	}
	clock := c.Clock
	if clock == nil {
		clock = System
	}
	authorise := c.Authorise
	if authorise == nil {
		authorise = func(http.Header) {}
	}
	return &Client{
		base: base,
		http: &http.Client{
			Transport:     transport,
			Timeout:       or(c.Timeout, DefaultTimeout),
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
		authorise: authorise,
		redact:    redactor(c.Secrets),
		pacer:     newPacer(c.Paces, c.Budget, clock),
		clock:     clock,
		maxBody:   or(c.MaxBody, DefaultMaxBody),
		attempts:  or(c.ReadAttempts, DefaultReadAttempts),
		retryMin:  or(c.RetryMin, DefaultShortestRetry),
		retryMax:  or(c.RetryMax, DefaultLongestRetry),
	}, nil
}

func or[T int | int64 | time.Duration](v, fallback T) T {
	if v == 0 {
		return fallback
	}
	return v
}

// Call is one request.
type Call struct {
	// Endpoint names the pace that the call falls under.
	Endpoint string
	Method   string
	// Path is sent exactly as written, trailing slash included.
	Path  string
	Query url.Values
	// Body is marshalled as JSON; nil sends none.
	Body any
	// Write marks a call that changes something. It is sent at most once.
	Write bool
}

// Reply is a complete answer of any status.
type Reply struct {
	Status int
	Header http.Header
	// Body is the whole body, unredacted: pass what is shown to people through Client.Redact.
	Body []byte
	// RetryAfter is the answer's Retry-After header as a wait, 0 where it has none that can be read.
	RetryAfter time.Duration
}

// Do sends the call and returns the whole answer, whatever its status; the error is an *Error and means that there is
// no complete answer.
func (c *Client) Do(ctx context.Context, call Call) (Reply, error) {
	req, err := c.request(ctx, call)
	if err != nil {
		return Reply{}, c.fail(ctx, NotSent, err)
	}
	if err := c.pacer.wait(ctx, call.Endpoint); err != nil {
		return Reply{}, c.fail(ctx, NotSent, err)
	}
	send := c.read
	if call.Write {
		send = func(req *http.Request, _ string) (*http.Response, error) { return c.http.Do(req) }
	}
	resp, err := send(req, call.Endpoint)
	if err != nil {
		return Reply{}, c.fail(ctx, phaseOf(err), err)
	}
	defer func() { _ = resp.Body.Close() }() // what matters of the body has been read by then
	body, err := c.body(resp)
	if err != nil {
		return Reply{}, c.fail(ctx, AnswerBroken, err)
	}
	return Reply{
		Status:     resp.StatusCode,
		Header:     resp.Header,
		Body:       body,
		RetryAfter: retryAfter(resp.Header, c.clock.Now()),
	}, nil
}

// Redact takes every credential out of s and shortens it to what a person reads.
func (c *Client) Redact(s string) string { return clip(c.redact(s)) }

func (c *Client) request(ctx context.Context, call Call) (*http.Request, error) {
	var body io.Reader
	if call.Body != nil {
		var buf bytes.Buffer
		enc := json.NewEncoder(&buf)
		enc.SetEscapeHTML(false)
		if err := enc.Encode(call.Body); err != nil {
			return nil, err
		}
		body = bytes.NewReader(bytes.TrimSuffix(buf.Bytes(), []byte("\n")))
	}
	u := *c.base
	u.Path += call.Path
	u.RawQuery = call.Query.Encode()
	req, err := http.NewRequestWithContext(ctx, call.Method, u.String(), body)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", "application/json")
	if call.Body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	c.authorise(req.Header)
	return req, nil
}

// read sends a read as often as Config.ReadAttempts allows, each attempt at the endpoint's pace.
func (c *Client) read(req *http.Request, endpoint string) (*http.Response, error) {
	repeatable, err := retryablehttp.FromRequest(req)
	if err != nil {
		return nil, err
	}
	retrying := &retryablehttp.Client{
		HTTPClient:   c.http,
		RetryMax:     max(c.attempts-1, 0),
		RetryWaitMin: c.retryMin,
		RetryWaitMax: c.retryMax,
		CheckRetry:   c.worthAnother,
		Backoff: func(low, high time.Duration, attempt int, resp *http.Response) time.Duration {
			if resp != nil {
				low = max(low, retryAfter(resp.Header, c.clock.Now()))
			}
			return retryablehttp.DefaultBackoff(low, high, attempt, nil)
		},
		PrepareRetry: func(r *http.Request) error { return c.pacer.wait(r.Context(), endpoint) },
		// The last answer, whatever it is, is for the driver to judge.
		ErrorHandler: retryablehttp.PassthroughErrorHandler,
	}
	return retrying.Do(repeatable)
}

// worthAnother says which failures of a read may be gone at the next attempt. 500 is left out: at the APIs we know it
// is as often a request they cannot digest.
func (c *Client) worthAnother(ctx context.Context, resp *http.Response, err error) (bool, error) {
	if ctx.Err() != nil {
		return false, ctx.Err()
	}
	if err != nil {
		return retryablehttp.DefaultRetryPolicy(ctx, nil, err) // all but bad certificates, schemes and the like
	}
	switch resp.StatusCode {
	case http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return retryAfter(resp.Header, c.clock.Now()) <= c.retryMax, nil
	}
	return false, nil
}

// body reads the whole answer or fails: half an answer is none.
func (c *Client) body(resp *http.Response) ([]byte, error) {
	body, err := io.ReadAll(io.LimitReader(resp.Body, c.maxBody+1))
	if err != nil {
		return nil, err
	}
	if int64(len(body)) > c.maxBody {
		return nil, fmt.Errorf("the answer is longer than %d bytes", c.maxBody)
	}
	return body, nil
}
