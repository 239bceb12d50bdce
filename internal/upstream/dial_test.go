package upstream_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/munhq/gpuscale/internal/upstream"
	"github.com/munhq/gpuscale/internal/upstream/upstreamtest"
)

// TestAMachineThatVanishes leaves nobody waiting: whoever connects to it, has sent a request, or is in the middle of an
// answer. One that only takes its time is waited for.
func TestAMachineThatVanishes(t *testing.T) {
	const connect, silence = 300 * time.Millisecond, 2 * time.Second
	heard, over := make(chan struct{}), make(chan struct{})
	defer close(over)
	s := serve(t, func(_ int, r *http.Request, c net.Conn) bool {
		switch what, _, _ := strings.Cut(r.URL.Path[1:], "/"); what {
		case "slow":
			time.Sleep(2 * silence)
			_, _ = io.WriteString(c, head+"Content-Length: 2\r\n\r\nok")
		case "begins":
			_, _ = io.WriteString(c, head+"Content-Length: 2\r\n\r\no")
			<-heard // Or it would be sent again.
			upstreamtest.Swallow(t, c)
		default:
			upstreamtest.Swallow(t, c)
		}
		<-over // A connection that is closed says so.
		return false
	})
	reads := serveRaw(t, func(c net.Conn) {
		_, _ = io.ReadFull(c, make([]byte, 100))
		upstreamtest.Swallow(t, c)
		<-over
	})
	gone := upstreamtest.Listen(t)
	defer gone.Close()
	upstreamtest.Swallow(t, gone)
	dials := func(b *http.Transport) { b.DialContext = upstream.Dialer(connect, silence).DialContext }
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()

	var all sync.WaitGroup
	ask := func(what, url, body string, most time.Duration) {
		tr := transport(t, dials)
		all.Go(func() {
			began := time.Now()
			response, err := post(ctx, tr, url, body)
			if err == nil {
				defer response.Body.Close()
				if _, err = io.ReadFull(response.Body, make([]byte, 1)); err == nil && what == "begins" {
					close(heard)
				}
				_, err = io.ReadAll(response.Body)
			}
			took := time.Since(began)
			if (err == nil) != (what == "slow") || took > most {
				t.Errorf("%s: %v after %s", what, err, took)
			}
		})
	}
	// A busy machine makes everything late; the kernel alone would take minutes.
	ask("slow", s.url+"/slow", "x", 15*time.Second)
	ask("begins", s.url+"/begins", "x", 15*time.Second)
	ask("before an answer", s.url+"/vanishes", "x", 15*time.Second)
	ask("while the request is sent", reads.url, strings.Repeat("x", 8<<20), 15*time.Second)
	ask("connecting", "http://"+gone.Addr().String(), "x", 3*time.Second)
	all.Wait()
}
