package upstream_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/munhq/gpuscale/internal/upstream"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const head = "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n"

// server says what the test tells it to, on as many connections as come.
type server struct {
	t     *testing.T
	url   string
	conns atomic.Int64
}

// serve calls answer with each request that was read whole, until it returns false; then it closes the connection.
func serve(t *testing.T, answer func(n int, r *http.Request, c net.Conn) bool) *server {
	t.Helper()
	return serveRaw(t, func(c net.Conn) {
		in := bufio.NewReader(c)
		for n := 1; ; n++ {
			r, err := http.ReadRequest(in)
			if err != nil {
				return
			}
			body, err := io.ReadAll(r.Body)
			r.Body = io.NopCloser(strings.NewReader(string(body)))
			if err != nil || !answer(n, r, c) {
				return
			}
		}
	})
}

func serveRaw(t *testing.T, handle func(net.Conn)) *server {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &server{t: t, url: "http://" + l.Addr().String()}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			s.conns.Add(1)
			go func() {
				handle(c)
				_ = c.Close()
			}()
		}
	}()
	t.Cleanup(func() { _ = l.Close(); <-ended })
	return s
}

func says(text string) func(int, *http.Request, net.Conn) bool {
	return func(_ int, _ *http.Request, c net.Conn) bool {
		_, err := io.WriteString(c, text)
		return err == nil
	}
}

func transport(t *testing.T, change func(*http.Transport)) *upstream.Transport {
	t.Helper()
	base := &http.Transport{MaxIdleConnsPerHost: 10, DisableCompression: true, MaxResponseHeaderBytes: 8 << 10}
	if change != nil {
		change(base)
	}
	u := upstream.New(base)
	t.Cleanup(u.CloseIdleConnections)
	return u
}

func post(ctx context.Context, t http.RoundTripper, url, body string) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/v1/x?y=z", strings.NewReader(body))
	if err != nil {
		panic(err)
	}
	r.Header.Set("X-Test", "yes")
	return t.RoundTrip(r)
}

// text posts and returns the answer's body.
func text(t *testing.T, tr http.RoundTripper, url, body string) (string, error) {
	t.Helper()
	response, err := post(t.Context(), tr, url, body)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	got, err := io.ReadAll(response.Body)
	return string(got), err
}

func TestBodiesOfEachKindAndWhetherTheirConnectionIsKept(t *testing.T) {
	for name, c := range map[string]struct {
		answer string
		want   string
		kept   bool
	}{
		"length":               {head + "Content-Length: 5\r\n\r\nhello", "hello", true},
		"no body":              {"HTTP/1.1 204 No Content\r\n\r\n", "", true},
		"empty":                {head + "Content-Length: 0\r\n\r\n", "", true},
		"chunks":               {head + "Transfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n", "hello", true},
		"chunks and a trailer": {head + "Transfer-Encoding: chunked\r\nTrailer: X-T\r\n\r\n5\r\nhello\r\n0\r\nX-T: v\r\n\r\n", "hello", true},
		"interim answers":      {"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + head + "Content-Length: 5\r\n\r\nhello", "hello", true},
		"said to close":        {head + "Connection: close\r\nContent-Length: 5\r\n\r\nhello", "hello", false},
		"more than announced":  {head + "Content-Length: 4\r\n\r\nhello", "hell", false},
		"HTTP/1.0":             {"HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\nhello", "hello", false},
	} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, says(c.answer))
			tr := transport(t, nil)
			for range 3 {
				if got, err := text(t, tr, s.url, "{}"); got != c.want || err != nil {
					t.Fatalf("%q, %v", got, err)
				}
			}
			if want := map[bool]int64{true: 1, false: 3}[c.kept]; s.conns.Load() != want {
				t.Errorf("%d connections, want %d", s.conns.Load(), want)
			}
		})
	}
}

func TestABodyThatEndsWithItsConnection(t *testing.T) {
	s := serve(t, func(_ int, _ *http.Request, c net.Conn) bool {
		_, _ = io.WriteString(c, head+"\r\nhello")
		return false
	})
	tr := transport(t, nil)
	for range 2 {
		if got, err := text(t, tr, s.url, "{}"); got != "hello" || err != nil {
			t.Fatalf("%q, %v", got, err)
		}
	}
}

func TestWhatBreaksOffIsNoWholeAnswer(t *testing.T) {
	for name, answer := range map[string]string{
		"length": head + "Content-Length: 10\r\n\r\nhello",
		"chunk":  head + "Transfer-Encoding: chunked\r\n\r\n9\r\nhello",
		"chunks": head + "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
		"head":   head,
		"status": "HTTP/1.1 2",
		"all":    "",
	} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, func(_ int, _ *http.Request, c net.Conn) bool {
				_, _ = io.WriteString(c, answer)
				return false
			})
			if got, err := text(t, transport(t, nil), s.url, "{}"); err == nil || errors.Is(err, io.EOF) {
				t.Errorf("%q, %v", got, err)
			}
		})
	}
}

func TestTheRequestArrivesAsItIs(t *testing.T) {
	for _, size := range []int{0, 10, 16 << 10, 16<<10 + 1, 3 << 20} {
		got := make(chan *http.Request, 1)
		s := serve(t, func(_ int, r *http.Request, c net.Conn) bool {
			got <- r
			return says(head+"Content-Length: 0\r\n\r\n")(0, r, c)
		})
		body := strings.Repeat("x", size)
		tr := transport(t, nil)
		for range 2 {
			if _, err := text(t, tr, s.url, body); err != nil {
				t.Fatal(err)
			}
			r := <-got
			sent, _ := io.ReadAll(r.Body)
			if r.Method != http.MethodPost || r.RequestURI != "/v1/x?y=z" || r.Header.Get("X-Test") != "yes" || r.ContentLength != int64(size) ||
				string(sent) != body || "http://"+r.Host != s.url {
				t.Errorf("%d bytes: %s %s %v, %d bytes", size, r.Method, r.RequestURI, r.Header, len(sent))
			}
		}
	}
}

// TestAConnectionThatDiedWhileKeptIsNotUsed: whatever the server does to it, no request is lost with it.
func TestAConnectionThatDiedWhileKeptIsNotUsed(t *testing.T) {
	for name, spoil := range map[string]func(net.Conn){
		"closed":          func(c net.Conn) { _ = c.Close() },
		"half closed":     func(c net.Conn) { _ = c.(*net.TCPConn).CloseWrite() },
		"reset":           func(c net.Conn) { _ = c.(*net.TCPConn).SetLinger(0); _ = c.Close() },
		"unasked answer":  func(c net.Conn) { _, _ = io.WriteString(c, head+"Content-Length: 3\r\n\r\nold") },
		"unasked garbage": func(c net.Conn) { _, _ = io.WriteString(c, "\x00") },
	} {
		t.Run(name, func(t *testing.T) {
			spoilt := make(chan struct{})
			over := make(chan struct{})
			defer close(over)
			s := serve(t, func(_ int, r *http.Request, c net.Conn) bool {
				_, _ = io.WriteString(c, head+"Content-Length: 5\r\n\r\nhello")
				if r.Header.Get("X-Test") == "yes" && spoil != nil {
					spoil(c)
					spoil = nil
					close(spoilt)
					<-over
				}
				return true
			})
			tr := transport(t, nil)
			if got, err := text(t, tr, s.url, "{}"); got != "hello" || err != nil {
				t.Fatalf("%q, %v", got, err)
			}
			<-spoilt
			for range 20 { // The news of it takes its time, even on loopback.
				time.Sleep(time.Millisecond)
			}
			if got, err := text(t, tr, s.url, "{}"); got != "hello" || err != nil || s.conns.Load() != 2 {
				t.Errorf("%q, %v, %d connections", got, err, s.conns.Load())
			}
		})
	}
}

// TestWhatWasSentIsNotSentAgain: but for GET, which asks for nothing to be done.
func TestWhatWasSentIsNotSentAgain(t *testing.T) {
	for method, want := range map[string]int64{http.MethodPost: 2, http.MethodGet: 3} {
		var asked atomic.Int64
		s := serve(t, func(n int, _ *http.Request, c net.Conn) bool {
			asked.Add(1)
			_ = n == 1 && says(head+"Content-Length: 0\r\n\r\n")(n, nil, c)
			return n == 1
		})
		tr := transport(t, nil)
		var reused, sent []bool
		do := func() error {
			ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{
				GotConn:      func(i httptrace.GotConnInfo) { reused = append(reused, i.Reused) },
				WroteHeaders: func() { sent = append(sent, true) },
			})
			r, err := http.NewRequestWithContext(ctx, method, s.url, nil)
			if err != nil {
				t.Fatal(err)
			}
			response, err := tr.RoundTrip(r)
			if err == nil {
				err = response.Body.Close()
			}
			return err
		}
		if err := do(); err != nil {
			t.Fatal(err)
		}
		if err := do(); (err == nil) != (method == http.MethodGet) || asked.Load() != want {
			t.Errorf("%s: %v, the server was asked %d times", method, err, asked.Load())
		}
		if int64(len(reused)) != want || reused[0] || !reused[1] || int64(len(sent)) != want {
			t.Errorf("%s: traced %v, %v", method, reused, sent)
		}
	}
}

// TestAnAnswerBeforeTheRequestIsThere: a server may refuse a body that it does not read.
func TestAnAnswerBeforeTheRequestIsThere(t *testing.T) {
	for name, stays := range map[string]bool{"and the connection stays": true, "and it is closed": false} {
		t.Run(name, func(t *testing.T) {
			over := make(chan struct{})
			s := serveRaw(t, func(c net.Conn) {
				_, _ = http.ReadRequest(bufio.NewReaderSize(c, 1<<10))
				_, _ = io.WriteString(c, "HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\n\r\nno!")
				if stays {
					<-over
				} else {
					_ = c.(*net.TCPConn).CloseWrite()
					_, _ = io.CopyN(io.Discard, c, 1<<20)
				}
			})
			tr := transport(t, nil)
			for range 2 {
				if got, err := text(t, tr, s.url, strings.Repeat("x", 32<<20)); got != "no!" || err != nil {
					t.Errorf("%q, %v", got, err)
				}
			}
			close(over)
			if n := s.conns.Load(); n != 2 {
				t.Errorf("%d connections: one with half a request in it was used again", n)
			}
		})
	}
}

func TestTheEndOfTheContextClosesTheConnection(t *testing.T) {
	for name, answer := range map[string]string{"before the answer": "", "within it": head + "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n"} {
		t.Run(name, func(t *testing.T) {
			asked, closed := make(chan struct{}), make(chan struct{})
			s := serve(t, func(_ int, _ *http.Request, c net.Conn) bool {
				_, _ = io.WriteString(c, answer)
				close(asked)
				_, _ = io.Copy(io.Discard, c)
				close(closed)
				return false
			})
			ctx, cancel := context.WithCancelCause(t.Context())
			why := errors.New("the client left")
			go func() {
				<-asked
				if answer == "" {
					cancel(why)
				}
			}()
			response, err := post(ctx, transport(t, nil), s.url, "{}")
			if answer != "" {
				if err != nil {
					t.Fatal(err)
				}
				if _, err := io.ReadFull(response.Body, make([]byte, 5)); err != nil {
					t.Fatal(err)
				}
				cancel(why)
				_, err = io.ReadAll(response.Body)
				_ = response.Body.Close()
				if !errors.Is(err, why) {
					t.Error(err)
				}
			} else if !errors.Is(err, why) {
				t.Error(err)
			}
			<-closed
		})
	}
}

func TestABodyThatIsNotReadCostsItsConnection(t *testing.T) {
	closed := make(chan struct{})
	s := serve(t, func(_ int, _ *http.Request, c net.Conn) bool {
		_, _ = io.WriteString(c, head+"Content-Length: 5\r\n\r\nhe")
		_, _ = io.Copy(io.Discard, c)
		close(closed)
		return false
	})
	response, err := post(t.Context(), transport(t, nil), s.url, "{}")
	if err != nil {
		t.Fatal(err)
	}
	_ = response.Body.Close()
	<-closed
}

func TestKeptConnectionsAreFewAndAge(t *testing.T) {
	var closed atomic.Int64
	begin := make(chan struct{})
	s := serveRaw(t, func(c net.Conn) {
		in := bufio.NewReader(c)
		for {
			if _, err := http.ReadRequest(in); err != nil {
				closed.Add(1)
				return
			}
			<-begin
			_, _ = io.WriteString(c, head+"Content-Length: 0\r\n\r\n")
		}
	})
	tr := transport(t, func(b *http.Transport) { b.MaxIdleConnsPerHost, b.IdleConnTimeout = 2, 50*time.Millisecond })
	done := make(chan error, 5)
	for range 5 {
		go func() {
			_, err := text(t, tr, s.url, "")
			done <- err
		}()
	}
	eventually(t, "all are asked", func() bool { return s.conns.Load() == 5 })
	close(begin)
	for range 5 {
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "three are too many", func() bool { return closed.Load() >= 3 })
	eventually(t, "two are old", func() bool { return closed.Load() == 5 })
}

func TestClosingWhatIsKept(t *testing.T) {
	var closed atomic.Int64
	s := serve(t, says(head+"Content-Length: 2\r\n\r\nok"))
	tr := transport(t, func(b *http.Transport) {
		b.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
			c, err := (&net.Dialer{}).DialContext(ctx, network, address)
			return &counted{c, &closed}, err
		}
	})
	if _, err := text(t, tr, s.url, ""); err != nil {
		t.Fatal(err)
	}
	tr.CloseIdleConnections()
	if n := closed.Load(); n != 1 {
		t.Errorf("%d closed", n)
	}
	response, err := post(t.Context(), tr, s.url, "")
	if err != nil {
		t.Fatal(err)
	}
	tr.CloseIdleConnections()
	if _, err := io.ReadAll(response.Body); err != nil || closed.Load() != 2 {
		t.Errorf("%v, %d closed, with one under way at the time", err, closed.Load())
	}
}

type counted struct {
	net.Conn
	closed *atomic.Int64
}

func (c *counted) Close() error {
	c.closed.Add(1)
	return c.Conn.Close()
}

func TestAnAnswersHeadIsBounded(t *testing.T) {
	for name, answer := range map[string]string{
		"a line":  "HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", 9<<10),
		"lines":   "HTTP/1.1 200 OK\r\n" + strings.Repeat("X: y\r\n", 3<<10),
		"interim": strings.Repeat("HTTP/1.1 100 Continue\r\n\r\n", 9),
	} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, says(answer))
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			if _, err := post(ctx, transport(t, nil), s.url, ""); err == nil || ctx.Err() != nil {
				t.Error(err)
			}
		})
	}
}

func TestOverTLS(t *testing.T) {
	var conns atomic.Int64
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n, _ := io.Copy(io.Discard, r.Body)
		_, _ = fmt.Fprintf(w, "%s %d", r.Proto, n)
	}))
	s.EnableHTTP2 = true
	s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			conns.Add(1)
		}
	}
	s.StartTLS()
	defer s.Close()
	trusting, _ := s.Client().Transport.(*http.Transport)
	config := trusting.TLSClientConfig.Clone()
	config.NextProtos = nil
	tr := transport(t, func(b *http.Transport) { b.TLSClientConfig = config })
	for _, size := range []int{0, 100, 1 << 20} {
		if got, err := text(t, tr, s.URL, strings.Repeat("x", size)); err != nil || got != fmt.Sprintf("HTTP/1.1 %d", size) {
			t.Errorf("%d bytes: %q, %v", size, got, err)
		}
	}
	if conns.Load() != 1 {
		t.Errorf("%d connections", conns.Load())
	}
	if _, err := text(t, transport(t, nil), s.URL, ""); err == nil {
		t.Error("a certificate that nobody trusts is taken")
	}
}

func TestAProxyIsNotPassedBy(t *testing.T) {
	var through atomic.Int64
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		through.Add(1)
		_, _ = io.WriteString(w, r.RequestURI)
	}))
	defer proxy.Close()
	tr := transport(t, func(b *http.Transport) {
		b.Proxy = func(r *http.Request) (*url.URL, error) { return r.URL.Parse(proxy.URL) }
	})
	if got, err := text(t, tr, "http://engine.example", ""); got != "http://engine.example/v1/x?y=z" || err != nil || through.Load() != 1 {
		t.Errorf("%q, %v", got, err)
	}
}

// FuzzAnswers: whatever a server says, the client ends, and no byte of one answer is taken for another's.
func FuzzAnswers(f *testing.F) {
	for _, seed := range []string{"", "HTTP/1.1 200 OK\r\n\r\n", head + "Content-Length: 5\r\n\r\nhello", head + "Content-Length: -1\r\n\r\n",
		head + "Transfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n", "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\nx",
		"HTTP/1.1 100 Continue\r\n\r\n", head + "Content-Length: 1\r\nContent-Length: 2\r\n\r\nxx", "\x16\x03\x01\x00", "HTTP/9.9 999 \r\n\r\n",
		head + "Content-Length: 0\r\n\r\n" + head + "Content-Length: 3\r\n\r\nold"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, answer string) {
		var asked atomic.Int64
		s := serve(t, func(_ int, _ *http.Request, c net.Conn) bool {
			if asked.Add(1) == 1 {
				_, _ = io.WriteString(c, answer)
				return false
			}
			return says(head+"Content-Length: 3\r\n\r\nnew")(0, nil, c)
		})
		tr := transport(t, nil)
		defer tr.CloseIdleConnections()
		_, _ = text(t, tr, s.url, "{}") // It may fail; what matters is the next.
		_, err := text(t, tr, s.url, "{}")
		for range 3 { // The first connection's end may not have been seen.
			if err == nil {
				break
			}
			var got string
			if got, err = text(t, tr, s.url, "{}"); err == nil && got != "new" {
				t.Errorf("%q", got)
			}
		}
		if err != nil {
			t.Error(err)
		}
	})
}

func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !holds() {
		select {
		case <-ctx.Done():
			t.Fatalf("never: %s", what)
		case <-tick.C:
		}
	}
}
