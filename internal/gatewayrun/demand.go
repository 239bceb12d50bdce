package gatewayrun

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/utils/clock"

	"github.com/munhq/gpuscale/internal/gateway"
	"github.com/munhq/gpuscale/internal/pki"
	"github.com/munhq/gpuscale/internal/wish"
)

// demand is where the gateway says what waits, once its certificate has told whose gateway it is.
type demand struct {
	url    string
	clock  clock.Clock
	opened chan struct{}
	// store is set before opened is closed.
	store *wish.Store
}

// newDemand is nil where there is nowhere to say it, or no claims that come of it.
func newDemand(cfg Config) (*demand, error) {
	if cfg.RedisURL == "" || cfg.Rest == nil {
		return nil, nil
	}
	if err := wish.Check(cfg.RedisURL); err != nil {
		return nil, fmt.Errorf("REDIS_URL: %w", err)
	}
	return &demand{url: cfg.RedisURL, clock: cfg.Clock, opened: make(chan struct{})}, nil
}

// open does not connect yet: a Redis that is away keeps no gateway from serving.
func (d *demand) open(ca []byte) error {
	if d == nil {
		return nil
	}
	installation, err := pki.Installation(ca)
	if err != nil {
		return fmt.Errorf("the gateway's certificate: %w", err)
	}
	if d.store, err = wish.Open(d.url, installation, d.clock); err != nil {
		return fmt.Errorf("REDIS_URL: %w", err)
	}
	close(d.opened)
	return nil
}

// writer is nil where there is nowhere to write.
func (d *demand) writer() gateway.DemandWriter {
	if d == nil {
		return nil
	}
	return d
}

var errNotOpened = errors.New("it is not known yet whose gateway this is")

// Put is gateway.DemandWriter's.
func (d *demand) Put(ctx context.Context, id string, entries map[string]wish.Entry) error {
	select {
	case <-d.opened:
		return d.store.Put(ctx, id, entries)
	default:
		return errNotOpened
	}
}

// Remove is gateway.DemandWriter's.
func (d *demand) Remove(ctx context.Context, id string) error {
	select {
	case <-d.opened:
		return d.store.Remove(ctx, id)
	default:
		return nil
	}
}

// write writes, as soon as it can, until the function that it returns is called: requests wait until the gateway's grace
// is over, which is after the end of ctx.
func (d *demand) write(ctx context.Context, gw *gateway.Gateway) (end func()) {
	if d == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		select {
		case <-d.opened:
			gw.WriteDemand(ctx)
			_ = d.store.Close() // What was to be written was, or expires.
		case <-ctx.Done():
		}
	}()
	return func() {
		cancel()
		<-ended
	}
}
