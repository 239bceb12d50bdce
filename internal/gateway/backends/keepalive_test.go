package backends

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"sync/atomic"
	"testing"
	"time"

	"github.com/munhq/gpuscale/internal/upstream"
	"github.com/munhq/gpuscale/internal/upstream/upstreamtest"
)

// TestConnectionsAreUsedAgainAndLeftBeforeVLLMLeavesThem: vLLM closes a connection that has been idle for 5 s, and a request
// that is sent at that moment is lost.
func TestConnectionsAreUsedAgainAndLeftBeforeVLLMLeavesThem(t *testing.T) {
	var conns atomic.Int64
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "{}") }))
	server.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			conns.Add(1)
		}
	}
	server.Start()
	defer server.Close()
	to, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	transport := newTransport(to, "")
	defer transport.base.CloseIdleConnections()
	for range 20 {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+"/v1/models", nil)
		if err != nil {
			t.Fatal(err)
		}
		response, err := transport.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, response.Body) // What matters is that it was read.
		_ = response.Body.Close()                 // As above.
	}
	if n := conns.Load(); n != 1 {
		t.Errorf("%d connections for requests one after the other", n)
	}
	if idleTimeout <= 0 || idleTimeout > 4*time.Second {
		t.Errorf("they are kept for %s", idleTimeout)
	}
}

// TestAServerThatSwallowsConnectionsIsGivenUpSoon: another may be asked in its place.
func TestAServerThatSwallowsConnectionsIsGivenUpSoon(t *testing.T) {
	gone := upstreamtest.Listen(t)
	defer gone.Close()
	upstreamtest.Swallow(t, gone)
	to := &url.URL{Scheme: "http", Host: gone.Addr().String()}
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, to.String()+"/v1/models", nil)
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	response, err := newTransport(to, "").RoundTrip(r)
	if err == nil {
		_ = response.Body.Close() // It should not be there.
		t.Fatal("an answer")
	}
	if took := time.Since(began); took > 2*upstream.ConnectTimeout {
		t.Errorf("%s after %s", err, took)
	}
}
