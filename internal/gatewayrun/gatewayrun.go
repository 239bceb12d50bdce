// Package gatewayrun puts the gateway together with its two sources, the claims and its own certificate, and runs it
// against one cluster.
package gatewayrun

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"github.com/munhq/gpuscale/internal/gateway"
	"github.com/munhq/gpuscale/internal/gateway/claims"
	"github.com/munhq/gpuscale/internal/gateway/registry"
	"github.com/munhq/gpuscale/internal/workerclient"
)

// Config is all that a gateway is told.
type Config struct {
	Rest *rest.Config
	// Namespace that the controller runs in: the gateway's certificate is in a Secret there.
	Namespace string
	// Listener takes the requests; Run closes it.
	Listener net.Listener
	// Keys are the API keys by name. Without any, everybody may ask.
	Keys map[string]string
	// DefaultModel is meant by requests that name none.
	DefaultModel string
	// Grace is how long answers under way may take when the gateway ends.
	Grace time.Duration
	Log   logr.Logger
	Clock clock.Clock
}

// Run serves until ctx ends, or returns why it could not. It waits for the controller to have made the gateway's
// certificate.
func Run(ctx context.Context, cfg Config) error {
	defer func() { _ = cfg.Listener.Close() }() // Serve has closed it, if it came that far.
	secret, err := watchSecret(cfg)
	if err != nil {
		return err
	}
	own, err := secret.first(ctx)
	if err != nil {
		return unlessEnded(ctx, err)
	}
	workers, err := workerclient.New(own.pair, own.ca)
	if err != nil {
		return fmt.Errorf("the gateway's certificate: %w", err)
	}
	defer workers.Close()
	known := registry.New(cfg.Clock, workers.Forget)
	//nolint:contextcheck // Its requests end with Shutdown, which comes after the end of ctx.
	gw, err := gateway.New(gateway.Config{Registry: known, Workers: workers, Clock: cfg.Clock, Log: cfg.Log, Keys: cfg.Keys,
		DefaultModel: cfg.DefaultModel})
	if err != nil {
		return err
	}
	cached, err := claims.OpenCache(cfg.Rest)
	if err != nil {
		return fmt.Errorf("the cache of claims: %w", err)
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return cached.Start(ctx) })
	g.Go(func() error { return claims.New(cached).Run(ctx, known.Apply) })
	g.Go(func() error { return secret.renew(ctx, workers) })
	g.Go(func() error { return gw.Serve(cfg.Listener) })
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
