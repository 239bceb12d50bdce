package gateway_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	"k8s.io/utils/clock"

	"github.com/munhq/gpuscale/internal/agentapi"
	"github.com/munhq/gpuscale/internal/cloudsim/vllmsim"
	"github.com/munhq/gpuscale/internal/gateway"
	"github.com/munhq/gpuscale/internal/gateway/registry"
	"github.com/munhq/gpuscale/internal/pki"
	"github.com/munhq/gpuscale/internal/upstream/upstreamtest"
	"github.com/munhq/gpuscale/internal/workerclient"
)

const (
	installation = "5f2c91ab"
	model        = "Qwen/Qwen3-0.6B"
)

func TestMain(m *testing.M) { os.Exit(m.Run()) }

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// world is a gateway that listens, in front of workers over mutual TLS.
type world struct {
	t       *testing.T
	ca      *pki.CA
	gw      *gateway.Gateway
	reg     *registry.Registry
	url     string
	log     *lockedBuffer
	workers []*worker
	client  *http.Client
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) write(text string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.b.WriteString(text + "\n")
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func newWorld(t *testing.T, change func(*gateway.Config)) *world {
	t.Helper()
	w := &world{t: t, ca: must(pki.NewCA(installation, time.Now())), log: &lockedBuffer{}}
	workers := must(workerclient.New(must(w.ca.Client(agentapi.RoleGateway, time.Hour, time.Now())), w.ca.PEM()))
	t.Cleanup(workers.Close)
	w.reg = registry.New(clock.RealClock{}, workers.Forget)
	cfg := gateway.Config{Registry: w.reg, Workers: workers, Clock: clock.RealClock{},
		Log: funcr.New(func(_, args string) { w.log.write(args) }, funcr.Options{Verbosity: 1})}
	if change != nil {
		change(&cfg)
	}
	w.gw = must(gateway.New(cfg))
	listener := must(net.Listen("tcp", "127.0.0.1:0"))
	served := make(chan error, 1)
	go func() { served <- w.gw.Serve(listener) }()
	w.url = "http://" + listener.Addr().String()
	w.client = &http.Client{Transport: &http.Transport{}}
	t.Cleanup(func() {
		w.client.CloseIdleConnections()
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = w.gw.Shutdown(ctx)
		if err := <-served; err != nil {
			t.Error(err)
		}
		// Whatever a test did, nothing stays counted.
		for uid, n := range w.reg.Outstanding() {
			if n != 0 {
				t.Errorf("%d requests stay outstanding at %s", n, uid)
			}
		}
	})
	return w
}

// worker is an agent-like server: mutual TLS, the mark, and an engine behind it.
type worker struct {
	uid      string
	engine   *vllmsim.Server
	server   *httptest.Server
	listener net.Listener // without its TLS
	endpoint string

	refuse   atomic.Value // string: the mark to refuse with
	before   atomic.Pointer[func(http.ResponseWriter, *http.Request) bool]
	requests atomic.Int64
	mu       sync.Mutex
	sent     []byte // bodies of all answers
	asked    []http.Header
	bodies   []string
	conns    map[net.Conn]bool
}

func (w *world) add(change func(*vllmsim.Config)) *worker {
	w.t.Helper()
	uid := fmt.Sprintf("uid-%d", len(w.workers))
	cfg := vllmsim.Config{Model: model}
	if change != nil {
		change(&cfg)
	}
	a := &worker{uid: uid, engine: vllmsim.New(cfg), conns: map[net.Conn]bool{}}
	a.refuse.Store("")
	pair := must(w.ca.Worker(uid, time.Hour, time.Now()))
	a.server = httptest.NewUnstartedServer(a)
	_ = a.server.Listener.Close()
	a.listener = upstreamtest.Listen(w.t)
	a.server.Listener = a.listener
	a.server.TLS = must(pki.ServerTLS(agentapi.Boot{Installation: installation, CAPEM: string(w.ca.PEM()),
		CertPEM: string(pair.CertPEM), KeyPEM: string(pair.KeyPEM)}))
	a.server.Config.ErrorLog = log.New(io.Discard, "", 0)
	a.server.StartTLS()
	w.t.Cleanup(a.server.Close)
	w.t.Cleanup(a.engine.Abort)
	a.endpoint = a.server.Listener.Addr().String()
	w.workers = append(w.workers, a)
	w.publish()
	return a
}

// publish tells the registry of all workers.
func (w *world) publish(known ...registry.Known) {
	w.reg.Apply(registry.Snapshot{Models: known, Workers: w.all(nil)})
}

// all is all workers but one.
func (w *world) all(but *worker) []registry.Worker {
	var list []registry.Worker
	for _, a := range w.workers {
		if a != but {
			list = append(list, registry.Worker{Claim: "claim-" + a.uid, ClaimUID: a.uid, Endpoint: a.endpoint,
				Models: map[string]registry.State{model: registry.Ready}})
		}
	}
	return list
}

func (a *worker) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	if mark, _ := a.refuse.Load().(string); mark != "" {
		rw.Header().Set(agentapi.HeaderRefused, mark)
		code := http.StatusServiceUnavailable
		if mark == agentapi.RefusedFull {
			code = http.StatusTooManyRequests
			rw.Header().Set("Retry-After", "1")
		}
		http.Error(rw, "refused", code)
		return
	}
	a.requests.Add(1)
	if pki.CallerRole(r, installation) != agentapi.RoleGateway {
		http.Error(rw, "not the gateway", http.StatusForbidden)
		return
	}
	body := must(io.ReadAll(r.Body))
	a.mu.Lock()
	a.asked = append(a.asked, r.Header.Clone())
	a.bodies = append(a.bodies, string(body))
	a.mu.Unlock()
	r.Body = io.NopCloser(bytes.NewReader(body))
	if before := a.before.Load(); before != nil && (*before)(rw, r) {
		return
	}
	a.engine.Handler().ServeHTTP(&tee{ResponseWriter: rw, a: a}, r)
}

func (a *worker) hook(f func(http.ResponseWriter, *http.Request) bool) { a.before.Store(&f) }

// kill is the end of the machine: connections break, nobody listens.
func (a *worker) kill() {
	_ = a.server.Listener.Close()
	a.server.CloseClientConnections()
}

// vanish is the end of the machine's network: nobody refuses a connection, none is made.
func (a *worker) vanish(t *testing.T) {
	upstreamtest.Swallow(t, a.listener)
	a.server.CloseClientConnections() // What is kept is not what is tried here.
}

func (a *worker) answers() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return string(a.sent)
}

type tee struct {
	http.ResponseWriter
	a *worker
}

func (t *tee) Write(p []byte) (int, error) {
	n, err := t.ResponseWriter.Write(p)
	t.a.mu.Lock()
	t.a.sent = append(t.a.sent, p[:n]...)
	t.a.mu.Unlock()
	return n, err
}

func (t *tee) Unwrap() http.ResponseWriter { return t.ResponseWriter }

// post sends a body and returns the answer open.
func (w *world) post(ctx context.Context, path, body string, headers ...string) (*http.Response, error) {
	r := must(http.NewRequestWithContext(ctx, http.MethodPost, w.url+path, strings.NewReader(body)))
	r.Header.Set("Content-Type", "application/json")
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	return w.client.Do(r)
}

type answer struct {
	status int
	header http.Header
	text   string
	err    error // of reading the body
}

func (w *world) ask(path, body string, headers ...string) answer {
	w.t.Helper()
	response, err := w.post(w.t.Context(), path, body, headers...)
	if err != nil {
		w.t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	return answer{response.StatusCode, response.Header, string(text), err}
}

func (w *world) get(path string, headers ...string) answer {
	w.t.Helper()
	r := must(http.NewRequestWithContext(w.t.Context(), http.MethodGet, w.url+path, nil))
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	response := must(w.client.Do(r))
	defer response.Body.Close()
	return answer{response.StatusCode, response.Header, string(must(io.ReadAll(response.Body))), nil}
}

func chat(extra string) string {
	return fmt.Sprintf(`{"model":%q,"messages":[{"role":"user","content":"a secret prompt"}]%s}`, model, extra)
}

const chatPath = "/v1/chat/completions"

// wantError checks an OpenAI-shaped error and returns its message.
func wantError(t *testing.T, a answer, status int, code string) string {
	t.Helper()
	var shaped struct {
		Error *struct {
			Message string          `json:"message"`
			Type    string          `json:"type"`
			Param   json.RawMessage `json:"param"`
			Code    string          `json:"code"`
		} `json:"error"`
	}
	if err := json.Unmarshal([]byte(a.text), &shaped); err != nil || shaped.Error == nil {
		t.Fatalf("status %d, not an error in OpenAI's shape: %q", a.status, a.text)
	}
	e := shaped.Error
	if a.status != status || e.Code != code || e.Message == "" || e.Type == "" || e.Param == nil {
		t.Errorf("got %d %s, want %d with code %s", a.status, a.text, status, code)
	}
	return e.Message
}

// eventually fails the test if condition does not come true.
func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !condition() {
		select {
		case <-ctx.Done():
			t.Fatalf("never happened: %s", what)
		case <-tick.C:
		}
	}
}

func (w *world) metrics() string {
	rec := httptest.NewRecorder()
	w.gw.MetricsHandler().ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	return rec.Body.String()
}

func (w *world) wantMetric(line string) {
	w.t.Helper()
	eventually(w.t, "metric "+line, func() bool { return strings.Contains(w.metrics(), line+"\n") })
}
