// Package gatewayrun puts the gateway together with what it is told by, claims, plain backends, its certificate and its
// keys, and runs it.
package gatewayrun

import (
	"context"
	"errors"
	"net"
	"time"

	"github.com/go-logr/logr"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"github.com/munhq/gpuscale/internal/gateway"
	"github.com/munhq/gpuscale/internal/gateway/backends"
	"github.com/munhq/gpuscale/internal/gateway/registry"
)

// Config is all that a gateway is told. Log, Clock and Listener are required, and Rest or Backends.
type Config struct {
	// Rest is the cluster whose claims are served; nil means none.
	Rest *rest.Config
	// Namespace that the controller runs in: the gateway's certificate is in a Secret there.
	Namespace string
	// Listener takes the requests; Run closes it.
	Listener net.Listener
	// Metrics takes scrapes, at /metrics; Run closes it. Nil serves none.
	Metrics net.Listener
	// Keys are the API keys by name. Without any, everybody may ask.
	Keys map[string]gateway.Key
	// KeysFile, where not empty, is read instead, in the form of gateway.ParseKeys, and again when it changes. Run fails
	// when it cannot be read at first; later the last keys that could be read stay.
	KeysFile string
	// Backends are servers at plain URLs, BackendKey what is sent to them as their API key, where not empty.
	Backends   []backends.Backend
	BackendKey string
	// WorkerLimit is how many requests a worker may have outstanding; 0 leaves it to the worker.
	WorkerLimit int
	// DefaultModel is meant by requests that name none.
	DefaultModel string
	// Grace is how long answers under way may take when the gateway ends.
	Grace time.Duration
	// HoldLimit is how long a request for a known model waits for a worker; 0 lets none wait.
	HoldLimit time.Duration
	// RedisURL is where the controllers read what waits. Empty: requests wake no model.
	RedisURL string
	// ID tells this gateway from every other, those that ran on the same host too. It may be empty without a RedisURL.
	ID string
	// Traces takes spans of requests; nil means that there are none. Run ends it.
	Traces *sdktrace.TracerProvider
	Log    logr.Logger
	Clock  clock.Clock
}

// Run serves until ctx ends, or returns why it could not. Claims are served once the controller has made the gateway's
// certificate, plain backends at once.
func Run(ctx context.Context, cfg Config) error {
	defer func() { _ = cfg.Listener.Close() }() // Serve has closed it, if it came that far.
	if cfg.Metrics != nil {
		defer func() { _ = cfg.Metrics.Close() }() // As above.
	}
	defer flush(ctx, cfg.Traces)
	keys, err := readKeys(cfg)
	if err != nil {
		return err
	}
	routes := &routes{}
	known := registry.New(cfg.Clock, routes.forget)
	known.Limit(cfg.WorkerLimit)
	demand, err := newDemand(cfg)
	if err != nil {
		return err
	}
	source, err := sources(cfg, routes, demand)
	if err != nil {
		return err
	}
	defer routes.close()
	settings := gateway.Config{Registry: known, Workers: routes, Clock: cfg.Clock, Log: cfg.Log, Keys: keys.first,
		DefaultModel: cfg.DefaultModel, HoldLimit: cfg.HoldLimit, Demand: demand.writer(), GatewayID: cfg.ID}
	if cfg.Traces != nil {
		settings.Traces = cfg.Traces
	}
	//nolint:contextcheck // Its requests end with Shutdown, which comes after the end of ctx.
	gw, err := gateway.New(settings)
	if err != nil {
		return err
	}
	defer demand.write(ctx, gw)()
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return source.Run(ctx, known.Apply) })
	g.Go(func() error { return keys.follow(ctx, gw.SetKeys) })
	g.Go(func() error { return gw.Serve(cfg.Listener) })
	g.Go(func() error { return serveMetrics(ctx, cfg.Metrics, gw.MetricsHandler()) })
	g.Go(func() error { return shutdownAfter(ctx, gw, cfg.Grace) })
	return unlessEnded(ctx, g.Wait())
}

// shutdownAfter ends the gateway once ctx has ended; answers that outlast the grace are cut, which is no failure.
func shutdownAfter(ctx context.Context, gw *gateway.Gateway, grace time.Duration) error {
	<-ctx.Done()
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
	defer cancel()
	err := gw.Shutdown(last)
	if errors.Is(err, context.DeadlineExceeded) {
		err = nil
	}
	return err
}

func unlessEnded(ctx context.Context, err error) error {
	if errors.Is(err, context.Canceled) && ctx.Err() != nil {
		err = nil
	}
	return err
}
