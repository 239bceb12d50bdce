package workerclient_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/munhq/gpuscale/internal/agentapi"
	"github.com/munhq/gpuscale/internal/pki"
	"github.com/munhq/gpuscale/internal/workerclient"
)

const (
	installation = "5f2c91ab"
	claim        = "0b8f3e52-6f0d-4b54-9c62-1f0a6c1de3aa"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// world is an installation with one worker, whose answers the test gives.
type world struct {
	ca       *pki.CA
	endpoint string
	conns    atomic.Int64
}

func newWorld(t *testing.T, handler http.HandlerFunc) *world {
	t.Helper()
	now := time.Now()
	w := &world{ca: must(pki.NewCA(installation, now))}
	pair := must(w.ca.Worker(claim, time.Hour, now))
	config := must(pki.ServerTLS(agentapi.Boot{Installation: installation, CAPEM: string(w.ca.PEM()),
		CertPEM: string(pair.CertPEM), KeyPEM: string(pair.KeyPEM)}))
	server := httptest.NewUnstartedServer(handler)
	server.TLS = config
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			w.conns.Add(1)
		}
	}
	server.StartTLS()
	t.Cleanup(server.Close)
	w.endpoint = server.Listener.Addr().String()
	return w
}

func (w *world) client(t *testing.T, role string) *workerclient.Client {
	t.Helper()
	return clientOf(t, w.ca, w.ca, role)
}

func clientOf(t *testing.T, issuer, trusted *pki.CA, role string) *workerclient.Client {
	t.Helper()
	c := must(workerclient.New(must(issuer.Client(role, time.Hour, time.Now())), trusted.PEM()))
	t.Cleanup(c.Close)
	return c
}

func TestCallsReachTheAgentOverOneConnection(t *testing.T) {
	var seen []string
	w := newWorld(t, func(rw http.ResponseWriter, r *http.Request) {
		body := must(io.ReadAll(r.Body))
		seen = append(seen, r.Method+" "+r.URL.RequestURI()+" "+string(body))
		if r.URL.Path == agentapi.PathStatus {
			_ = json.NewEncoder(rw).Encode(agentapi.Status{ClaimUID: claim, InFlight: 3})
			return
		}
		fmt.Fprint(rw, strings.Repeat("x", 100))
	})
	c := w.client(t, agentapi.RoleController)
	ctx := t.Context()
	status := must(c.Status(ctx, w.endpoint, claim))
	if status.InFlight != 3 || status.ClaimUID != claim {
		t.Errorf("status is %+v", status)
	}
	if err := c.PutModels(ctx, w.endpoint, claim, agentapi.DesiredModels{Generation: 7}); err != nil {
		t.Error(err)
	}
	if err := c.Drain(ctx, w.endpoint, claim, "m"); err != nil {
		t.Error(err)
	}
	metrics := must(c.Metrics(ctx, w.endpoint, claim, 10))
	if text := must(io.ReadAll(metrics)); len(text) != 10 {
		t.Errorf("%d bytes of metrics, want 10", len(text))
	}
	_ = metrics.Close()
	logs := must(c.Logs(ctx, w.endpoint, claim, "a b", 1000))
	_ = must(io.ReadAll(logs))
	_ = logs.Close()
	want := []string{"GET /status ", `PUT /models {"generation":7,"models":null}`, `POST /drain {"model":"m"}`,
		"GET /metrics ", "GET /logs?model=a+b "}
	if fmt.Sprint(seen) != fmt.Sprint(want) {
		t.Errorf("agent saw %q", seen)
	}
	// Metrics was cut short, so its connection is not used again.
	if n := w.conns.Load(); n > 2 {
		t.Errorf("%d connections", n)
	}
}

func TestErrorsSayWhatHappened(t *testing.T) {
	w := newWorld(t, func(rw http.ResponseWriter, r *http.Request) {
		switch r.Method {
		case http.MethodPut:
			http.Error(rw, "older than 9\nsecond line", http.StatusConflict)
		case http.MethodPost:
			rw.Header().Set(agentapi.HeaderRefused, agentapi.RefusedDraining)
			rw.WriteHeader(http.StatusServiceUnavailable)
			fmt.Fprint(rw, `{"error":{"message":"draining\u0007","code":503}}`)
		}
	})
	c := w.client(t, agentapi.RoleController)

	var status *workerclient.StatusError
	if err := c.PutModels(t.Context(), w.endpoint, claim, agentapi.DesiredModels{}); !errors.As(err, &status) ||
		status.Code != http.StatusConflict || status.Message != "older than 9" {
		t.Errorf("409: %v", err)
	}
	if err := c.Drain(t.Context(), w.endpoint, claim, ""); !errors.As(err, &status) ||
		status.Refused != agentapi.RefusedDraining || status.Message != "draining" {
		t.Errorf("marked 503: %v", err)
	}

	var unreachable *workerclient.UnreachableError
	closed := must(net.Listen("tcp", "127.0.0.1:0"))
	_ = closed.Close()
	if _, err := c.Status(t.Context(), closed.Addr().String(), claim); !errors.As(err, &unreachable) {
		t.Errorf("closed port: %v", err)
	}
	silent := must(net.Listen("tcp", "127.0.0.1:0"))
	defer silent.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := c.Status(ctx, silent.Addr().String(), claim); !errors.As(err, &unreachable) ||
		!errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("silent port: %v", err)
	}
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.Status(canceled, w.endpoint, claim); !errors.Is(err, context.Canceled) || errors.As(err, &unreachable) {
		t.Errorf("canceled: %v", err)
	}
}

func TestIdentityIsCheckedBothWays(t *testing.T) {
	w := newWorld(t, func(http.ResponseWriter, *http.Request) {})
	other := must(pki.NewCA("aaaaaaaa", time.Now()))
	plain := httptest.NewServer(http.NotFoundHandler())
	defer plain.Close()
	public := httptest.NewTLSServer(http.NotFoundHandler())
	public.Config.ErrorLog = log.New(io.Discard, "", 0)
	defer public.Close()
	ours := w.client(t, agentapi.RoleController)
	for name, c := range map[string]struct {
		client   *workerclient.Client
		endpoint string
		claim    string
		ours     bool
	}{
		"another claim's worker": {ours, w.endpoint, "another-claim", false},
		"plain HTTP":             {ours, plain.Listener.Addr().String(), claim, false},
		"a public certificate":   {ours, public.Listener.Addr().String(), claim, false},
		"refuses us":             {clientOf(t, other, w.ca, agentapi.RoleController), w.endpoint, claim, true},
		"another's worker":       {clientOf(t, other, other, agentapi.RoleController), w.endpoint, claim, false},
	} {
		_, err := c.client.Status(t.Context(), c.endpoint, c.claim)
		var identity *workerclient.IdentityError
		if !errors.As(err, &identity) || identity.Ours != c.ours {
			t.Errorf("%s: %T %v", name, err, err)
		}
	}
}

func TestRenewIsSeenByNewConnections(t *testing.T) {
	w := newWorld(t, func(rw http.ResponseWriter, r *http.Request) {
		_ = json.NewEncoder(rw).Encode(agentapi.Status{Version: pki.CallerRole(r, installation)})
	})
	c := w.client(t, agentapi.RoleController)
	if got := must(c.Status(t.Context(), w.endpoint, claim)).Version; got != agentapi.RoleController {
		t.Fatalf("role is %q", got)
	}
	if err := c.Renew(must(w.ca.Client(agentapi.RoleGateway, time.Hour, time.Now()))); err != nil {
		t.Fatal(err)
	}
	c.Forget(claim)
	if got := must(c.Status(t.Context(), w.endpoint, claim)).Version; got != agentapi.RoleGateway {
		t.Fatalf("role is %q", got)
	}
}

func TestAnswersAreBoundedAndRedirectsNotFollowed(t *testing.T) {
	w := newWorld(t, func(rw http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			http.Redirect(rw, r, "https://elsewhere.example/", http.StatusTemporaryRedirect)
			return
		}
		_, _ = rw.Write([]byte(`{"version":"`))
		chunk := []byte(strings.Repeat("x", 1<<16))
		for {
			if _, err := rw.Write(chunk); err != nil {
				return
			}
		}
	})
	c := w.client(t, agentapi.RoleController)
	if _, err := c.Status(t.Context(), w.endpoint, claim); err == nil || !strings.Contains(err.Error(), "over") {
		t.Errorf("endless answer: %v", err)
	}
	var status *workerclient.StatusError
	if err := c.Drain(t.Context(), w.endpoint, claim, ""); !errors.As(err, &status) || status.Code != 307 {
		t.Errorf("redirect: %v", err)
	}
}

func TestTransportServesAReverseProxy(t *testing.T) {
	w := newWorld(t, func(rw http.ResponseWriter, r *http.Request) { fmt.Fprint(rw, r.URL.Path) })
	c := w.client(t, agentapi.RoleGateway)
	proxy := httptest.NewServer(&httputil.ReverseProxy{
		Transport: must(c.Transport(claim)),
		Rewrite:   func(r *httputil.ProxyRequest) { r.SetURL(&url.URL{Scheme: "http", Host: w.endpoint}) },
	})
	defer proxy.Close()
	for range 5 {
		response := must(http.Get(proxy.URL + "/v1/models"))
		body := must(io.ReadAll(response.Body))
		_ = response.Body.Close()
		if string(body) != "/v1/models" {
			t.Fatalf("got %d %q", response.StatusCode, body)
		}
	}
	http.DefaultClient.CloseIdleConnections()
	if n := w.conns.Load(); n != 1 {
		t.Errorf("%d connections to the worker, want 1", n)
	}
}

func TestNewRefusesABadPair(t *testing.T) {
	ca := must(pki.NewCA(installation, time.Now()))
	pair := must(ca.Client(agentapi.RoleGateway, time.Hour, time.Now()))
	if _, err := workerclient.New(pki.Pair{CertPEM: pair.CertPEM}, ca.PEM()); err == nil {
		t.Error("no key: no error")
	}
	if _, err := workerclient.New(pair, nil); err == nil {
		t.Error("no CA: no error")
	}
	c := must(workerclient.New(pair, ca.PEM()))
	if _, err := c.Transport("a.b"); err == nil {
		t.Error("claim with a dot: no error")
	}
}
