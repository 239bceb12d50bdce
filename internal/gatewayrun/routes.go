package gatewayrun

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"github.com/munhq/gpuscale/internal/gateway/backends"
	"github.com/munhq/gpuscale/internal/gateway/claims"
	"github.com/munhq/gpuscale/internal/gateway/registry"
	"github.com/munhq/gpuscale/internal/workerclient"
)

// routes carry requests to claims' workers and to plain backends alike.
type routes struct {
	plain *backends.Source
	// workers is nil until the gateway has its certificate.
	workers atomic.Pointer[workerclient.Client]
}

// Transport is gateway.Transports'.
func (r *routes) Transport(uid string) (http.RoundTripper, error) {
	if r.plain != nil {
		if t, ok := r.plain.Transport(uid); ok {
			return t, nil
		}
	}
	if workers := r.workers.Load(); workers != nil {
		return workers.Transport(uid)
	}
	return nil, errors.New("the gateway has no certificate yet")
}

func (r *routes) forget(uid string) {
	if workers := r.workers.Load(); workers != nil {
		workers.Forget(uid)
	}
}

func (r *routes) close() {
	if workers := r.workers.Load(); workers != nil {
		workers.Close()
	}
}

// sources are where the registry's picture comes from.
func sources(cfg Config, r *routes, d *demand) (registry.Source, error) {
	var list []registry.Source
	if cfg.Rest != nil {
		secret, err := watchSecret(cfg)
		if err != nil {
			return nil, err
		}
		list = append(list, &cluster{cfg: cfg, secret: secret, routes: r, demand: d})
	}
	if len(cfg.Backends) > 0 {
		r.plain = backends.New(cfg.Backends, backends.Options{Key: cfg.BackendKey, Clock: cfg.Clock, Log: cfg.Log})
		list = append(list, r.plain)
	}
	if len(list) == 0 {
		return nil, errors.New("neither a cluster nor a backend to serve")
	}
	return registry.Together(list...), nil
}

// cluster is a source of one cluster's claims, as soon as the gateway has the certificate to reach their workers.
type cluster struct {
	cfg    Config
	secret *secretWatch
	routes *routes
	demand *demand
}

// Run is registry.Source's.
func (c *cluster) Run(ctx context.Context, apply func(registry.Snapshot)) error {
	own, err := c.secret.first(ctx)
	if err != nil {
		return unlessEnded(ctx, err)
	}
	workers, err := workerclient.New(own.pair, own.ca)
	if err != nil {
		return fmt.Errorf("the gateway's certificate: %w", err)
	}
	c.routes.workers.Store(workers)
	if err := c.demand.open(own.ca); err != nil {
		return err
	}
	cached, err := claims.OpenCache(c.cfg.Rest)
	if err != nil {
		return fmt.Errorf("the cache of claims: %w", err)
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return cached.Start(ctx) })
	g.Go(func() error { return claims.New(cached).Run(ctx, apply) })
	g.Go(func() error { return c.secret.renew(ctx, workers) })
	return unlessEnded(ctx, g.Wait())
}
