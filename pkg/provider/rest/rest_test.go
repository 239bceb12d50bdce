package rest

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/munhq/gpuscale/pkg/provider"
)

const secret = `p"ss/w+rd&<1234567890>`

func client(t *testing.T, h http.HandlerFunc, change func(*Config)) *Client {
	t.Helper()
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	c := Config{
		BaseURL: srv.URL + "/", Secrets: []string{secret}, RetryMin: time.Microsecond, RetryMax: 50 * time.Millisecond,
		Authorise: func(h http.Header) { h.Set("X-Key", url.QueryEscape(secret)) },
	}
	if change != nil {
		change(&c)
	}
	out, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestTheRequestIsSentAsWritten(t *testing.T) {
	var got *http.Request
	var body string
	c := client(t, func(w http.ResponseWriter, r *http.Request) {
		got = r
		b, _ := io.ReadAll(r.Body)
		body = string(b)
		w.WriteHeader(http.StatusTeapot)
		fmt.Fprint(w, "short")
	}, nil)
	for _, write := range []bool{true, false} {
		r, err := c.Do(t.Context(), Call{Method: http.MethodPut, Path: "/a/7/", Query: url.Values{"q": {"x y"}}, Write: write,
			Body: map[string]string{"k": "<&>"}})
		if err != nil || r.Status != http.StatusTeapot || string(r.Body) != "short" {
			t.Fatalf("%+v, %v", r, err)
		}
		if got.Method != http.MethodPut || got.URL.Path != "/a/7/" || got.URL.RawQuery != "q=x+y" || body != `{"k":"<&>"}` ||
			got.Header.Get("X-Key") != url.QueryEscape(secret) || got.Header.Get("Content-Type") != "application/json" {
			t.Errorf("sent %s %s with %v and %q", got.Method, got.URL, got.Header, body)
		}
	}
	if _, err := c.Do(t.Context(), Call{Method: "GET", Path: "/a"}); err != nil || body != "" || got.Header.Get("Content-Type") != "" {
		t.Errorf("a call without a body sent %q as %q, %v", body, got.Header.Get("Content-Type"), err)
	}
}

// cut breaks the connection without an answer.
func cut(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }

func status(s int, header ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		for i := 0; i+1 < len(header); i += 2 {
			w.Header().Set(header[i], header[i+1])
		}
		w.WriteHeader(s)
	}
}

func TestOnlyReadsAreRepeated(t *testing.T) {
	for _, c := range []struct {
		name        string
		serve       http.HandlerFunc
		read, write int32
		phase       Phase
	}{
		{"502", status(502), 3, 1, ""}, {"503", status(503), 3, 1, ""}, {"504", status(504), 3, 1, ""},
		{"500", status(500), 1, 1, ""}, {"429", status(429), 1, 1, ""}, {"404", status(404), 1, 1, ""}, {"200", status(200), 1, 1, ""},
		{"503 with a long wait", status(503, "Retry-After", "60"), 1, 1, ""},
		{"503 with a short wait", status(503, "Retry-After", "0.01"), 3, 1, ""},
		{"redirect", status(307, "Location", "/elsewhere"), 1, 1, ""},
		{"cut", cut, 3, 1, AnswerLost},
	} {
		for _, write := range []bool{false, true} {
			var calls atomic.Int32
			cl := client(t, func(w http.ResponseWriter, r *http.Request) {
				calls.Add(1)
				if r.ContentLength != 2 {
					t.Errorf("%s: attempt %d came with %d bytes", c.name, calls.Load(), r.ContentLength)
				}
				c.serve(w, r)
			}, nil)
			_, err := cl.Do(t.Context(), Call{Method: "POST", Path: "/x/", Body: struct{}{}, Write: write})
			want := c.read
			if write {
				want = c.write
			}
			if calls.Load() != want {
				t.Errorf("%s, write %v: sent %d times; want %d", c.name, write, calls.Load(), want)
			}
			var e *Error
			if errors.As(err, &e); c.phase == "" && err != nil || c.phase != "" && (e == nil || e.Phase != c.phase) {
				t.Errorf("%s, write %v: %v; want phase %q", c.name, write, err, c.phase)
			}
		}
	}
}

// refusing is a base URL at which nothing listens.
func refusing(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return "http://" + l.Addr().String()
}

func TestWhatAFailureMeans(t *testing.T) {
	longer := func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, strings.Repeat("x", 2000)) }
	shorter := func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "100")
		fmt.Fprint(w, "half")
	}
	hang := func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }
	for _, c := range []struct {
		name        string
		serve       http.HandlerFunc
		change      func(*Config)
		phase       Phase
		read, write provider.Kind
	}{
		{"nothing listens", hang, func(c *Config) { c.BaseURL = refusing(t) }, NotSent, provider.Unavailable, provider.Unavailable},
		{"no such host", hang, func(c *Config) { c.BaseURL = "http://no-such-host.invalid" }, NotSent, provider.Unavailable, provider.Unavailable},
		{"cut", cut, nil, AnswerLost, provider.Unavailable, provider.Unknown},
		{"too slow", hang, func(c *Config) { c.Timeout = 20 * time.Millisecond }, AnswerLost, provider.Unavailable, provider.Unknown},
		{"too long", longer, func(c *Config) { c.MaxBody = 1000 }, AnswerBroken, provider.Unknown, provider.Unknown},
		{"cut in the body", shorter, nil, AnswerBroken, provider.Unknown, provider.Unknown},
	} {
		for _, write := range []bool{false, true} {
			cl := client(t, c.serve, c.change)
			_, err := cl.Do(t.Context(), Call{Method: "GET", Path: "/", Write: write})
			var e *Error
			if !errors.As(err, &e) || e.Phase != c.phase || e.Ended != nil {
				t.Errorf("%s, write %v: %v; want phase %q", c.name, write, err, c.phase)
				continue
			}
			want := c.read
			if write {
				want = c.write
			}
			if f := Fault("p", "op", write, err); f.Kind != want || f.Provider != "p" || f.Op != "op" || !errors.Is(f, err) {
				t.Errorf("%s, write %v: %v; want kind %s", c.name, write, f, want)
			}
		}
	}
	exact := client(t, longer, func(c *Config) { c.MaxBody = 2000 })
	if r, err := exact.Do(t.Context(), Call{Method: "GET", Path: "/"}); err != nil || len(r.Body) != 2000 {
		t.Errorf("an answer of just the limit: %d bytes, %v", len(r.Body), err)
	}
}

func TestAContextThatEndsFirst(t *testing.T) {
	arrived := make(chan struct{}, 10)
	for _, write := range []bool{false, true} {
		c := client(t, func(_ http.ResponseWriter, r *http.Request) {
			arrived <- struct{}{}
			<-r.Context().Done()
		}, nil)
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			<-arrived
			cancel()
		}()
		_, err := c.Do(ctx, Call{Method: "GET", Path: "/", Write: write})
		want := provider.Unavailable
		if write {
			want = provider.Unknown
		}
		if f := Fault("p", "op", write, err); f.Kind != want || !errors.Is(f, context.Canceled) {
			t.Errorf("write %v: %v of kind %s; want the context's error as %s", write, f, f.Kind, want)
		}
		if _, err := c.Do(ctx, Call{Method: "GET", Path: "/", Write: write}); !errors.Is(err, context.Canceled) {
			t.Errorf("write %v, cancelled beforehand: %v", write, err)
		}
		select {
		case <-arrived:
			t.Errorf("a call that was cancelled beforehand was sent")
		default:
		}
	}
}

// failing is a transport whose error shows everything it was given.
type failing struct{}

func (failing) RoundTrip(r *http.Request) (*http.Response, error) {
	return nil, fmt.Errorf("%w: refused %v %s %s", io.ErrClosedPipe, r.Header, secret,
		base64.StdEncoding.EncodeToString([]byte(secret)))
}

func TestNoErrorShowsASecret(t *testing.T) {
	c := client(t, cut, func(c *Config) { c.Transport = failing{} })
	_, err := c.Do(t.Context(), Call{Method: "GET", Path: "/", Write: true})
	texts := []string{fmt.Sprint(err), fmt.Sprintf("%+v", err), fmt.Sprintf("%#v", err), fmt.Sprintf("%+v %#v", c, c),
		c.Redact(`the key is ` + secret), c.Redact(`{"key":"p\"ss/w+rd&<1234567890>"}`),
		c.Redact(`{"key":"p\"ss/w+rd\u0026\u003c1234567890\u003e"}`)}
	_, err = New(Config{BaseURL: "ftp://user:" + secret + "@x", Secrets: []string{secret}})
	texts = append(texts, fmt.Sprint(err))
	for _, s := range texts {
		if strings.Contains(s, "1234567890") || strings.Contains(s, base64.StdEncoding.EncodeToString([]byte(secret))) {
			t.Errorf("shows the secret: %s", s)
		}
	}
	if !strings.Contains(texts[0], "[redacted]") {
		t.Errorf("says nothing at all: %s", texts[0])
	}
	if got := c.Redact(strings.Repeat("ж", 5000)); len([]rune(got)) != maxText+1 {
		t.Errorf("%d characters of a long text are kept", len([]rune(got)))
	}
}

func TestRetryAfter(t *testing.T) {
	now := time.Date(2026, 8, 1, 12, 0, 0, 0, time.UTC)
	for v, want := range map[string]time.Duration{
		"": 0, "3": 3 * time.Second, " 2 ": 2 * time.Second, "0.5": 500 * time.Millisecond, "-1": 0, "soon": 0, "NaN": 0,
		"1e30": maxRetryAfter, "86400": maxRetryAfter,
		"Sat, 01 Aug 2026 12:00:30 GMT": 30 * time.Second, "Sat, 01 Aug 2026 11:00:00 GMT": 0, "Sun, 02 Aug 2026 12:00:00 GMT": maxRetryAfter,
	} {
		if got := retryAfter(http.Header{"Retry-After": {v}}, now); got != want {
			t.Errorf("%q is %s; want %s", v, got, want)
		}
	}
}

// handClock is moved by hand; waiters are told when their time has come.
type handClock struct {
	mu      sync.Mutex
	now     time.Time
	waits   map[chan time.Time]time.Time
	waiting chan time.Duration
}

func (c *handClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *handClock) After(d time.Duration) <-chan time.Time {
	c.mu.Lock()
	ch := make(chan time.Time, 1)
	c.waits[ch] = c.now.Add(d)
	c.mu.Unlock()
	c.waiting <- d
	return ch
}

func (c *handClock) step(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
	for ch, at := range c.waits {
		if !at.After(c.now) {
			delete(c.waits, ch)
			ch <- c.now
		}
	}
}

func TestPaceIsKeptPerEndpoint(t *testing.T) {
	clock := &handClock{now: time.Unix(0, 0), waits: map[chan time.Time]time.Time{}, waiting: make(chan time.Duration, 9)}
	var sent atomic.Int32
	c := client(t, func(http.ResponseWriter, *http.Request) { sent.Add(1) }, func(c *Config) {
		c.Clock, c.Paces = clock, map[string]time.Duration{"slow": 5 * time.Second, "other": time.Second}
	})
	do := func(ctx context.Context, endpoint string) error {
		_, err := c.Do(ctx, Call{Endpoint: endpoint, Method: "GET", Path: "/", Write: true})
		return err
	}
	for _, endpoint := range []string{"slow", "other", "unpaced", "unpaced"} {
		if err := do(t.Context(), endpoint); err != nil {
			t.Fatal(err)
		}
	}
	done := make(chan error, 1)
	go func() { done <- do(t.Context(), "slow") }()
	if d := <-clock.waiting; d != 5*time.Second || sent.Load() != 4 {
		t.Fatalf("the second waits %s with %d sent; want 5s with 4", d, sent.Load())
	}
	// A caller that leaves gives its turn back.
	ctx, cancel := context.WithCancel(t.Context())
	left := make(chan error, 1)
	go func() { left <- do(ctx, "slow") }()
	if d := <-clock.waiting; d != 10*time.Second {
		t.Errorf("the third waits %s; want 10s", d)
	}
	cancel()
	if err := <-left; !errors.Is(err, context.Canceled) {
		t.Errorf("the one that left got %v", err)
	}
	clock.step(5 * time.Second)
	if err := <-done; err != nil || sent.Load() != 5 {
		t.Errorf("the second: %v with %d sent", err, sent.Load())
	}
	go func() { done <- do(t.Context(), "slow") }()
	if d := <-clock.waiting; d != 5*time.Second {
		t.Errorf("after one left, the next waits %s; want 5s", d)
	}
	clock.step(5 * time.Second)
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestABudgetIsSharedByAllEndpoints(t *testing.T) {
	clock := &handClock{now: time.Unix(0, 0), waits: map[chan time.Time]time.Time{}, waiting: make(chan time.Duration, 9)}
	var sent atomic.Int32
	c := client(t, func(http.ResponseWriter, *http.Request) { sent.Add(1) }, func(c *Config) {
		c.Clock, c.Budget = clock, Budget{Calls: 3, Every: 2 * time.Second}
		c.Paces = map[string]time.Duration{"slow": 5 * time.Second}
	})
	do := func(endpoint string) error {
		_, err := c.Do(t.Context(), Call{Endpoint: endpoint, Method: "GET", Path: "/", Write: true})
		return err
	}
	for _, endpoint := range []string{"a", "b", "slow"} {
		if err := do(endpoint); err != nil {
			t.Fatal(err)
		}
	}
	for _, next := range []struct {
		endpoint string
		wait     time.Duration
	}{{"c", 2 * time.Second}, {"slow", 3 * time.Second}} {
		done := make(chan error, 1)
		before := sent.Load()
		go func() { done <- do(next.endpoint) }()
		if d := (<-clock.waiting).Round(time.Millisecond); d != next.wait || sent.Load() != before {
			t.Errorf("%s waits %s with %d sent; want %s with %d", next.endpoint, d, sent.Load(), next.wait, before)
		}
		clock.step(next.wait)
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	// What is not used is saved up, to the budget's size and no further.
	clock.step(time.Hour)
	for range 3 {
		if err := do("a"); err != nil {
			t.Fatal(err)
		}
	}
	done := make(chan error, 1)
	go func() { done <- do("a") }()
	if d := <-clock.waiting; d != 2*time.Second {
		t.Errorf("the fourth waits %s; want 2s", d)
	}
	clock.step(2 * time.Second)
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestATurnAfterTheDeadlineIsNotWaitedFor(t *testing.T) {
	var sent atomic.Int32
	c := client(t, func(http.ResponseWriter, *http.Request) { sent.Add(1) }, func(c *Config) {
		c.Paces = map[string]time.Duration{"e": time.Hour}
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	call := Call{Endpoint: "e", Method: http.MethodPut, Path: "/", Write: true}
	if _, err := c.Do(ctx, call); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		_, err := c.Do(ctx, call)
		f := Fault("p", "create", true, err)
		if f.Kind != provider.RateLimited || f.RetryAfter < 59*time.Minute || f.RetryAfter > time.Hour || sent.Load() != 1 {
			t.Errorf("%v of kind %s after %s with %d sent; want it refused for about an hour", f, f.Kind, f.RetryAfter, sent.Load())
		}
	}
}

func TestRetriesKeepThePace(t *testing.T) {
	clock := &handClock{now: time.Unix(0, 0), waits: map[chan time.Time]time.Time{}, waiting: make(chan time.Duration, 9)}
	c := client(t, status(503), func(c *Config) {
		c.Clock, c.Paces = clock, map[string]time.Duration{"e": 5 * time.Second}
	})
	done := make(chan Reply, 1)
	go func() {
		r, err := c.Do(t.Context(), Call{Endpoint: "e", Method: "GET", Path: "/"})
		if err != nil {
			t.Error(err)
		}
		done <- r
	}()
	for range DefaultReadAttempts - 1 {
		select {
		case d := <-clock.waiting:
			if d != 5*time.Second {
				t.Errorf("a retry waits %s; want 5s", d)
			}
			clock.step(5 * time.Second)
		case <-done:
			t.Fatal("a retry was not paced")
		}
	}
	if r := <-done; r.Status != 503 {
		t.Errorf("status %d", r.Status)
	}
}

func TestABaseURLIsChecked(t *testing.T) {
	for _, u := range []string{"", "console.vast.ai", "ftp://x", "https://", "://", "http://[::1"} {
		if c, err := New(Config{BaseURL: u}); err == nil || c != nil {
			t.Errorf("%q is accepted", u)
		}
	}
}
