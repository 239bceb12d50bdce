// Package traffic keeps what the gateways' traffic asks for: it reads the store that gateways write their demand to, at
// intervals and whenever a gateway wakes a model, and tells the controllers when that changes.
//
// A store that cannot be read, or has come back empty, says nothing: what was known last holds for a while, and nothing
// is bought from it. What ends a worker for want of work is the agents' own account either way.
package traffic

import (
	"context"
	"maps"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/munhq/gpuscale/api/v1alpha1"
	"github.com/munhq/gpuscale/internal/demand"
	"github.com/munhq/gpuscale/internal/metrics"
	"github.com/munhq/gpuscale/internal/wish"
)

// Store is where gateways write what they have of each model; *wish.Store is one.
type Store interface {
	// Read returns what every gateway has that has said so lately.
	Read(ctx context.Context) (wish.Demand, error)
	// Wakes signals that a gateway may have begun to ask for a model, until ctx ends. Signals may come together.
	Wakes(ctx context.Context) <-chan struct{}
}

// Intervals of a Watcher.
const (
	// readEvery bounds how late a change without a wake is seen, and with it how much longer than its cooldown a node lives.
	readEvery = time.Second
	// readTimeout bounds one reading: a store that hangs is one that cannot be read.
	readTimeout = 2 * time.Second
	// pause is the least between two readings, however many wakes there are.
	pause = 20 * time.Millisecond
)

// Watcher watches a store. Its methods may be called from anywhere; a nil Watcher knows that there is no traffic.
type Watcher struct {
	store Store
	pools client.Reader
	clock clock.WithTicker
	log   logr.Logger

	mu      sync.Mutex
	state   *State
	away    bool
	told    view
	changes []chan event.GenericEvent
}

// NewWatcher watches store for the models that pools list. It does nothing until it is started.
func NewWatcher(store Store, pools client.Reader, c clock.WithTicker, s Settings, log logr.Logger) *Watcher {
	return &Watcher{store: store, pools: pools, clock: c, log: log, state: NewState(s, c.Now())}
}

// Changes has an event whenever the replicas that traffic asks for have changed. Each call makes a channel of its own;
// all are made before Start.
func (w *Watcher) Changes() <-chan event.GenericEvent {
	c := make(chan event.GenericEvent, 1)
	if w == nil {
		return c
	}
	w.changes = append(w.changes, c)
	return c
}

// Buying are the replicas that may be bought for traffic now, by model.
func (w *Watcher) Buying() map[string]int {
	if w == nil {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.state.Buying(w.clock.Now())
}

// Keeping are the replicas that traffic keeps now, by model. known is false while a model that is not among them may be
// asked for all the same.
func (w *Watcher) Keeping() (replicas map[string]int, known bool) {
	if w == nil {
		return nil, true
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	now := w.clock.Now()
	return w.state.Keeping(now), w.state.Known(now)
}

// NeedLeaderElection is true: only who buys and ends has to know.
func (w *Watcher) NeedLeaderElection() bool { return true }

// Start watches until ctx ends.
func (w *Watcher) Start(ctx context.Context) error {
	w.mu.Lock()
	w.state.Failed(w.clock.Now()) // a standby that becomes the leader has not read since it began
	w.mu.Unlock()
	wakes := w.store.Wakes(ctx)
	for ctx.Err() == nil {
		w.look(ctx)
		if !w.wait(ctx, pause, nil) {
			return nil
		}
		w.wait(ctx, readEvery, wakes)
	}
	return nil
}

// wait is over after d, at a wake, or when ctx ends; it reports whether ctx has not.
func (w *Watcher) wait(ctx context.Context, d time.Duration, wakes <-chan struct{}) bool {
	t := w.clock.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C():
	case <-wakes:
	}
	return ctx.Err() == nil
}

// look reads the store once and tells of what has changed by it.
func (w *Watcher) look(ctx context.Context) {
	found, targets, err := w.read(ctx)
	if ctx.Err() != nil {
		return
	}
	w.mu.Lock()
	if err != nil {
		w.state.Failed(w.clock.Now())
	} else {
		w.state.Read(w.clock.Now(), found, targets)
	}
	w.mu.Unlock()
	now := w.seen()
	w.say(err, now.known)
	if !w.told.equal(now) {
		w.told = now
		for _, c := range w.changes {
			select {
			case c <- event.GenericEvent{Object: &v1alpha1.GPUNodePool{}}:
			default: // one is waiting to be read, and will see this too
			}
		}
	}
}

func (w *Watcher) read(ctx context.Context) (wish.Demand, map[string]demand.Target, error) {
	var pools v1alpha1.GPUNodePoolList
	if err := w.pools.List(ctx, &pools); err != nil {
		return wish.Demand{}, nil, err
	}
	list := make([]*v1alpha1.GPUNodePool, len(pools.Items))
	for i := range pools.Items {
		list[i] = &pools.Items[i]
	}
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	found, err := w.store.Read(ctx)
	return found, demand.Targets(list), err
}

// say tells people when the store is lost and when it is believed again.
func (w *Watcher) say(err error, known bool) {
	switch {
	case err != nil && !w.away:
		w.away = true
		w.log.Error(err, "the gateways' demand cannot be read: nothing is bought for traffic, and what it asked for last holds")
	case err == nil && w.away && known:
		w.away = false
		w.log.Info("the gateways' demand is known again")
	}
	unknown := 0.0
	if err != nil || !known {
		unknown = 1
	}
	metrics.TrafficUnknown.Set(unknown)
}

// view is what the controllers can see.
type view struct {
	buying, keeping map[string]int
	known           bool
}

func (w *Watcher) seen() view {
	v := view{buying: w.Buying()}
	v.keeping, v.known = w.Keeping()
	return v
}

func (v view) equal(o view) bool {
	return v.known == o.known && maps.Equal(v.buying, o.buying) && maps.Equal(v.keeping, o.keeping)
}
