package operator

import (
	"context"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/munhq/gpuscale/internal/identity"
	"github.com/munhq/gpuscale/internal/traffic"
	"github.com/munhq/gpuscale/internal/wish"
)

// watchGateways watches what gateways ask for; nil where there is no store to read it from.
func watchGateways(ctx context.Context, mgr manager.Manager, cfg Config, id identity.Identity) (*traffic.Watcher, error) {
	if cfg.RedisURL == "" {
		cfg.Log.Info("no Redis: what is asked of gateways wakes no model and scales none")
		return nil, nil
	}
	store, err := wish.Open(cfg.RedisURL, id.Installation, cfg.Clock)
	if err != nil {
		return nil, err
	}
	context.AfterFunc(ctx, func() {
		if err := store.Close(); err != nil {
			cfg.Log.Error(err, "Redis not closed cleanly")
		}
	})
	w := traffic.NewWatcher(store, mgr.GetClient(), cfg.Clock, cfg.Traffic, cfg.Log.WithName("traffic"))
	return w, mgr.Add(w)
}

// uptime counts from now on, whatever happens to the clock of the day.
func uptime() func() time.Duration {
	start := time.Now()                                      //gpuscale:clock its monotonic part, which cannot be set, is what matters
	return func() time.Duration { return time.Since(start) } //gpuscale:clock as above
}
