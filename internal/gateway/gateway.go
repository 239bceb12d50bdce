package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"go.opentelemetry.io/otel/trace"
	"k8s.io/utils/clock"

	"github.com/munhq/gpuscale/internal/gateway/registry"
)

const (
	// DefaultMaxBody is room for long prompts with pictures in them.
	DefaultMaxBody = 32 << 20

	readHeaderTimeout = 10 * time.Second
	// readBodyTimeout bounds how long a client may take to send its body. http.Server's ReadTimeout would do that too,
	// but goes on to end answers that take longer.
	readBodyTimeout = 2 * time.Minute
	idleTimeout     = 2 * time.Minute
	maxHeaderBytes  = 64 << 10
	// endTimeout is for the last words to streams that Shutdown cuts off.
	endTimeout = 2 * time.Second
)

// Transports carries requests to the worker of a claim, whose identity it verifies. *workerclient.Client is one. A
// request's URL has the worker's endpoint as host.
type Transports interface {
	Transport(claimUID string) (http.RoundTripper, error)
}

// Config is what a Gateway needs. Registry, Workers and Clock are required.
type Config struct {
	// Registry is read and counted in; whoever has the Source fills it.
	Registry *registry.Registry
	// Workers must show the gateway's role.
	Workers Transports
	Clock   clock.Clock
	Log     logr.Logger
	// Keys are the API keys by a name that may be logged. Without any, everybody may ask.
	Keys map[string]Key
	// DefaultModel is meant by requests that name none. Empty means the only known one, when there is just one.
	DefaultModel string
	// Traces takes spans; nil means that there are none.
	Traces trace.TracerProvider
	// MaxBody bounds a request's body in bytes; 0 means DefaultMaxBody.
	MaxBody int64

	// HoldLimit is how long a request for a known model waits for a worker when none is ready; 0 lets none wait.
	HoldLimit time.Duration
	// MaxHeld and MaxHeldBytes bound the requests that wait and their bodies together; 0 means DefaultMaxHeld and
	// DefaultMaxHeldBytes.
	MaxHeld      int
	MaxHeldBytes int64
	// Demand is told what waits, so that the controllers bring a worker: see WriteDemand. Without it only requests for a
	// model that is on its way already wait.
	Demand DemandWriter
	// GatewayID tells this gateway from every other, before and after it too. Demand needs it.
	GatewayID string
}

// Gateway answers the OpenAI API. It is safe for concurrent use.
type Gateway struct {
	cfg     Config
	keys    *keyring
	metrics *metrics
	tracing tracing
	handler http.Handler
	server  *http.Server
	tally   *tally
	room    *room
	access  slog.Handler
	ending  atomic.Bool
	end     context.CancelCauseFunc
}

// errClientGone is a client that takes no more.
var errClientGone = errors.New("the client is gone")

// errEnding is the cause of the end of requests that Shutdown cuts off.
var errEnding = errors.New("the gateway is shutting down")

// New makes a Gateway. It fails when something required is missing or a key is empty, and says in one log line when
// there are no keys.
func New(cfg Config) (*Gateway, error) {
	if cfg.Registry == nil || cfg.Workers == nil || cfg.Clock == nil {
		return nil, errors.New("gateway: Registry, Workers and Clock are required")
	}
	if cfg.MaxBody == 0 {
		cfg.MaxBody = DefaultMaxBody
	}
	if cfg.Demand != nil && cfg.GatewayID == "" {
		return nil, errors.New("gateway: Demand without a GatewayID")
	}
	if cfg.MaxHeld == 0 {
		cfg.MaxHeld = DefaultMaxHeld
	}
	if cfg.MaxHeldBytes == 0 {
		cfg.MaxHeldBytes = DefaultMaxHeldBytes
	}
	keys := &keyring{}
	if err := keys.set(cfg.Keys); err != nil {
		return nil, fmt.Errorf("gateway: %w", err)
	}
	if len(cfg.Keys) == 0 {
		cfg.Log.Info("no API keys are configured: whoever reaches this port can use every model")
	}
	if cfg.HoldLimit > 0 && cfg.Demand == nil {
		cfg.Log.Info("no Redis is configured: a request cannot wake a model that no machine runs")
	}
	cfg.Keys = nil
	g := &Gateway{cfg: cfg, keys: keys, metrics: newMetrics(cfg.Registry, keys), tracing: newTracing(cfg.Traces), tally: newTally(),
		room: &room{maxHeld: cfg.MaxHeld, maxBytes: cfg.MaxHeldBytes}, access: logr.ToSlogHandler(cfg.Log)}
	ctx, end := context.WithCancelCause(context.Background())
	g.end = end
	quiet := log.New(io.Discard, "", 0) // The access log has the outcome; theirs may quote a peer.
	g.handler = g.routes()
	g.server = &http.Server{
		Handler:           g.handler,
		ReadHeaderTimeout: readHeaderTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		ErrorLog:          quiet,
		BaseContext:       func(net.Listener) context.Context { return ctx },
	}
	return g, nil
}

// Handler is the API, for a server that the caller runs. Only Serve's requests are waited for by Shutdown.
func (g *Gateway) Handler() http.Handler { return g.handler }

// MetricsHandler is the Prometheus metrics, for a listener of their own.
func (g *Gateway) MetricsHandler() http.Handler { return g.metrics.handler }

// Serve answers on l until Shutdown, and then returns nil.
func (g *Gateway) Serve(l net.Listener) error {
	if err := g.server.Serve(listener{l}); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// Shutdown takes no new connections, says so at /readyz, and waits until the answers under way are finished or ctx
// ends. Those that are left then are ended, event streams with an error event, and ctx's error is returned.
func (g *Gateway) Shutdown(ctx context.Context) error {
	g.ending.Store(true)
	err := g.server.Shutdown(ctx)
	g.end(errEnding)
	if err == nil {
		return nil
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTimeout)
	defer cancel()
	if g.server.Shutdown(last) != nil {
		_ = g.server.Close() // It only repeats what closing the connections said.
	}
	return err
}

func (g *Gateway) routes() http.Handler {
	mux := http.NewServeMux()
	for _, path := range []string{"/health", "/healthz"} {
		mux.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, http.StatusOK, health{"ok"}) })
	}
	mux.HandleFunc("/readyz", g.ready)
	api := map[string]http.HandlerFunc{
		"GET /v1/models":            g.listModels,
		"GET /v1/models/{model...}": g.getModel,
		"POST /v1/chat/completions": g.generate,
		"POST /v1/completions":      g.generate,
		"POST /v1/embeddings":       g.generate,
	}
	for pattern, handle := range api {
		mux.Handle(pattern, g.observed(pattern, g.authorized(handle)))
	}
	for path, allow := range map[string]string{"/v1/models": "GET, HEAD", "/v1/chat/completions": "POST",
		"/v1/completions": "POST", "/v1/embeddings": "POST"} {
		mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Allow", allow)
			write(w, badMethod(r.Method))
		})
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) { write(w, noSuchPath()) })
	return mux
}

type health struct {
	Status string `json:"status"`
}

// ready tells a load balancer whether to send requests here.
func (g *Gateway) ready(w http.ResponseWriter, _ *http.Request) {
	switch {
	case g.ending.Load():
		writeJSON(w, http.StatusServiceUnavailable, health{"shutting down"})
	case !g.cfg.Registry.Synced() && !g.cfg.Registry.Warm():
		writeJSON(w, http.StatusServiceUnavailable, health{"waiting for the first list of workers"})
	default:
		writeJSON(w, http.StatusOK, health{"ok"})
	}
}
