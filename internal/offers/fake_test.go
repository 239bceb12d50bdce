package offers

import (
	"context"
	"sync"
	"time"

	"github.com/munhq/gpuscale/pkg/provider"
)

// fakeDriver answers searches and lists from functions and keeps account of how it was called. In a synctest bubble its
// latency costs no time.
type fakeDriver struct {
	provider.Provider // panics for every call that no test expects
	caps              provider.Capabilities
	latency           time.Duration

	mu     sync.Mutex
	search func(q provider.OfferQuery) ([]provider.Offer, error)
	list   func() ([]provider.Instance, error)
	calls  []time.Time
	active int
	// crowded is set when two calls overlapped.
	crowded bool
}

func (f *fakeDriver) Name() provider.Name                 { return provider.VastAI }
func (f *fakeDriver) Capabilities() provider.Capabilities { return f.caps }

// enter notes a call, and answers as things are when the question arrives.
func (f *fakeDriver) enter(answer func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, time.Now())
	f.active++
	f.crowded = f.crowded || f.active > 1
	answer()
}

func (f *fakeDriver) leave(ctx context.Context) error {
	defer func() {
		f.mu.Lock()
		f.active--
		f.mu.Unlock()
	}()
	if f.latency == 0 {
		return ctx.Err()
	}
	select {
	case <-time.After(f.latency):
		return nil
	case <-ctx.Done():
		return &provider.Error{Provider: provider.VastAI, Kind: provider.Unavailable, Err: ctx.Err()}
	}
}

func (f *fakeDriver) SearchOffers(ctx context.Context, q provider.OfferQuery) (out []provider.Offer, err error) {
	f.enter(func() { out, err = f.search(q) })
	if late := f.leave(ctx); late != nil {
		return nil, late
	}
	return out, err
}

func (f *fakeDriver) ListInstances(ctx context.Context, _ provider.InstanceFilter) (out []provider.Instance, err error) {
	f.enter(func() { out, err = f.list() })
	if late := f.leave(ctx); late != nil {
		return nil, late
	}
	return out, err
}

// set changes the driver's behaviour while it may be in use.
func (f *fakeDriver) set(edit func(*fakeDriver)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	edit(f)
}

func (f *fakeDriver) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.calls)
}

// tightest is the least time between two calls in a row.
func (f *fakeDriver) tightest() time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	least := time.Duration(1<<63 - 1)
	for i := 1; i < len(f.calls); i++ {
		least = min(least, f.calls[i].Sub(f.calls[i-1]))
	}
	return least
}

func failure(k provider.Kind) error {
	return provider.Errorf(provider.VastAI, "op", k, "as the test says")
}
