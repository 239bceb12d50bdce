package gateway

import (
	"context"
	"maps"
	"sync"
	"time"

	"github.com/munhq/gpuscale/internal/wish"
)

// DemandWriter is where the controllers read what is asked for. *wish.Store is one.
type DemandWriter interface {
	Put(ctx context.Context, gatewayID string, entries map[string]wish.Entry) error
	Remove(ctx context.Context, gatewayID string) error
}

const (
	// coalesce is how long changes are gathered that nobody waits for.
	coalesce = time.Second
	// rewrite is the pause after a write that failed.
	rewrite = time.Second
)

// tally counts requests by model.
type tally struct {
	mu     sync.Mutex
	models map[string]wish.Entry
	// urgent: a model is waited for that was not. changed: anything else.
	urgent, changed chan struct{}
}

func newTally() *tally {
	return &tally{models: map[string]wish.Entry{}, urgent: make(chan struct{}, 1), changed: make(chan struct{}, 1)}
}

// hold adds one to the requests that wait for a worker of the model, and tells whether it is the first. That is urgent
// where nothing serves the model: requests that its workers refuse for a moment wait too.
func (t *tally) hold(model string, urgent bool) (first bool) {
	t.mu.Lock()
	e := t.models[model]
	e.Held++
	t.models[model] = e
	t.mu.Unlock()
	if e.Held == 1 && urgent {
		signal(t.urgent)
	}
	signal(t.changed)
	return e.Held == 1
}

// release takes one away again.
func (t *tally) release(model string) {
	t.mu.Lock()
	e := t.models[model]
	e.Held--
	t.models[model] = e
	t.mu.Unlock()
	signal(t.changed)
}

// outstanding adds to the requests that a worker has.
func (t *tally) outstanding(model string, n int, now time.Time) {
	t.mu.Lock()
	e := t.models[model]
	e.Outstanding += n
	e.Last = now
	t.models[model] = e
	t.mu.Unlock()
	signal(t.changed)
}

// entries are the counts of all models; those that nothing is counted of any more and that known does not have are
// dropped.
func (t *tally) entries(known func(model string) bool) map[string]wish.Entry {
	t.mu.Lock()
	defer t.mu.Unlock()
	maps.DeleteFunc(t.models, func(model string, e wish.Entry) bool {
		return e.Held == 0 && e.Outstanding == 0 && !known(model)
	})
	return maps.Clone(t.models)
}

func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// WriteDemand writes the counts to Config.Demand until ctx ends, and then takes them away: at once when a model begins to
// be waited for, within a second after other changes, and every wish.PutEvery. What cannot be written is written again
// until it can be; requests do not wait for it. Without a Config.Demand it does nothing.
func (g *Gateway) WriteDemand(ctx context.Context) {
	if g.cfg.Demand == nil {
		return
	}
	away := false
	for ctx.Err() == nil {
		err := g.putDemand(ctx)
		if ctx.Err() != nil {
			break
		}
		switch {
		case err != nil && !away:
			g.cfg.Log.Error(err, "the demand cannot be written: requests for models that no machine runs wait, and wake none")
		case err == nil && away:
			g.cfg.Log.Info("the demand can be written again")
		}
		away = err != nil
		g.metrics.hold.wrote(err)
		g.awaitDemand(ctx, err)
	}
	// The context is over; its values and the store's own limit remain.
	if err := g.cfg.Demand.Remove(context.WithoutCancel(ctx), g.cfg.GatewayID); err != nil {
		g.cfg.Log.Info("the demand of this gateway could not be removed; it expires", "error", err.Error())
	}
}

func (g *Gateway) putDemand(ctx context.Context) error {
	return g.cfg.Demand.Put(ctx, g.cfg.GatewayID, g.tally.entries(func(model string) bool {
		_, known := g.cfg.Registry.Model(model)
		return known
	}))
}

// awaitDemand returns when it is time to write again.
func (g *Gateway) awaitDemand(ctx context.Context, failed error) {
	pause, changed := wish.PutEvery, g.tally.changed
	if failed != nil {
		pause, changed = rewrite, nil
	}
	t := g.cfg.Clock.NewTimer(pause)
	defer t.Stop()
	urgent := g.tally.urgent
	if failed != nil {
		urgent = nil // It is still to be written, with all else.
	}
	select {
	case <-ctx.Done():
	case <-t.C():
	case <-urgent:
	case <-changed:
		soon := g.cfg.Clock.NewTimer(coalesce)
		defer soon.Stop()
		select {
		case <-ctx.Done():
		case <-soon.C():
		case <-urgent:
		}
	}
}
