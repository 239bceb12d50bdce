package operator_test

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/munhq/gpuscale/api/v1alpha1"
	"github.com/munhq/gpuscale/internal/cloudsim/market"
	"github.com/munhq/gpuscale/internal/controller/claim"
	"github.com/munhq/gpuscale/internal/demand"
	"github.com/munhq/gpuscale/internal/identity"
	"github.com/munhq/gpuscale/internal/metrics"
	"github.com/munhq/gpuscale/internal/operator"
	"github.com/munhq/gpuscale/internal/wish"
	"github.com/munhq/gpuscale/internal/wish/redistest"
)

// withRedis gives the controllers a Redis.
func withRedis(r *redistest.Server) option {
	return func(w *world, _ *market.Config, _ *simOptions) {
		w.configure = func(c *operator.Config) { c.RedisURL = r.URL() }
	}
}

// asker is a gateway as the store sees it: it writes what it has at once and again every second.
type asker struct {
	t     *testing.T
	name  string
	store *wish.Store

	mu  sync.Mutex
	has map[string]wish.Entry
}

func (w *world) gatewayOn(r *redistest.Server, name string) *asker {
	w.t.Helper()
	var id identity.Identity
	w.eventually("there is an installation", func() (err error) {
		id, err = identity.Ensure(w.ctx, w.client, w.client, secretNS, time.Now())
		return err
	})
	store, err := wish.Open(r.URL(), id.Installation, clock.RealClock{})
	if err != nil {
		w.t.Fatal(err)
	}
	g := &asker{t: w.t, name: name, store: store, has: map[string]wish.Entry{}}
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		every := time.NewTicker(time.Second)
		defer every.Stop()
		for {
			select {
			case <-done:
				return
			case <-every.C:
				_ = g.write() // Redis may be away; the next one tells it all again
			}
		}
	}()
	w.t.Cleanup(func() { close(done); <-ended; _ = store.Close() })
	return g
}

func (g *asker) write() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.store.Put(g.t.Context(), g.name, g.has)
}

// holds says how many requests wait for a model.
func (g *asker) holds(model string, n int) {
	g.t.Helper()
	g.mu.Lock()
	g.has[model] = wish.Entry{Held: n}
	g.mu.Unlock()
	if err := g.write(); err != nil {
		g.t.Fatal(err)
	}
}

// lists makes a pool's models, each a GPU of its own.
func lists(names ...string) func(*v1alpha1.GPUNodePool) {
	return func(p *v1alpha1.GPUNodePool) {
		for _, n := range names {
			p.Spec.Models = append(p.Spec.Models, v1alpha1.PoolModel{Name: n, Source: "acme/tiny"})
		}
	}
}

// roomy lets a pool buy as many as a test needs.
func roomy(p *v1alpha1.GPUNodePool) {
	p.Spec.Scaling.MaxNodes = 100
	p.Spec.Limits.MaxCostPerHour = p.Spec.Limits.MaxCostPerHour.MulFrac(100, 1)
}

func offers(n int) []market.Offer {
	out := make([]market.Offer, n)
	for i := range out {
		out[i] = offer(strconv.Itoa(1001 + i))
	}
	return out
}

// created sends when each claim's creation was seen, by the models it was made for.
func (w *world) created() <-chan string {
	w.t.Helper()
	watching, err := w.client.(client.WithWatch).Watch(w.ctx, &v1alpha1.GPUNodeClaimList{})
	if err != nil {
		w.t.Fatal(err)
	}
	out := make(chan string, 1000)
	go func() {
		defer close(out)
		for e := range watching.ResultChan() {
			if c, ok := e.Object.(*v1alpha1.GPUNodeClaim); ok && e.Type == "ADDED" && len(c.Spec.Placements) > 0 {
				out <- c.Spec.Placements[0].Workload
			}
		}
	}()
	w.t.Cleanup(watching.Stop)
	return out
}

// TestAGatewayWakesAModelAtOnce: the claim for a request that finds no worker is there long before the batch window of
// pods would have closed. How long before is measured by TestWakeFigures.
func TestAGatewayWakesAModelAtOnce(t *testing.T) {
	const models, bound = 8, 5 * time.Second
	took := claimed(t, models)
	p50, p95 := took[len(took)/2], took[len(took)*95/100]
	t.Logf("from the request to the claim: p50 %s, p95 %s, most %s", p50, p95, took[len(took)-1])
	if p95 > bound {
		t.Errorf("p95 is %s", p95)
	}
}

// claimed sends a request for one model at zero after the other and returns, in order, how long it took until the claim of
// each was seen.
func claimed(t *testing.T, models int) []time.Duration {
	t.Helper()
	redis := redistest.Start(t)
	// Each is waited for until it serves; meanwhile those before it are looked at as in production.
	w := start(t, offers(models+2), withRedis(redis), polling(100*time.Millisecond, claim.DefaultTiming().ReadyPoll))
	names := []string{"first"}
	for i := range models {
		names = append(names, fmt.Sprintf("model-%02d", i))
	}
	w.pool(roomy, lists(names...), cooldown(10*time.Minute), func(p *v1alpha1.GPUNodePool) { p.Spec.Scaling.BatchWindow.Duration = time.Minute })
	f, created := w.front(redis), w.created()
	var took []time.Duration
	for i, name := range names {
		asked := time.Now()
		answer := f.asks(name, false, 1)
		select {
		case got := <-created:
			if got != name {
				t.Fatalf("a claim for %s, want %s", got, name)
			}
		case <-time.After(20 * time.Second):
			t.Fatalf("no claim for %s\n%s", name, w.dump())
		}
		took = append(took, time.Since(asked))
		if err := <-answer; err != nil {
			t.Fatalf("%s: %v\n%s", name, err, w.dump())
		}
		w.ready(i + 1)
	}
	w.rentedAtMost(len(names))
	took = took[1:] // the first waits for the controllers' start
	slices.Sort(took)
	return took
}

// ready waits for so many claims that serve.
func (w *world) ready(n int) {
	w.t.Helper()
	w.eventually(fmt.Sprintf("%d claims are Ready", n), func() error {
		got := 0
		for _, c := range w.claims() {
			if meta.IsStatusConditionTrue(c.Status.Conditions, v1alpha1.ConditionReady) {
				got++
			}
		}
		if got != n {
			return fmt.Errorf("%d are", got)
		}
		return nil
	})
}

// TestAHundredWakesBuyOne: however many gateways hold requests for a model, and however often they begin to, it is bought
// once, carried to Ready when they all give up, and given back one cooldown later.
func TestAHundredWakesBuyOne(t *testing.T) {
	redis := redistest.Start(t)
	w := start(t, offers(5), withRedis(redis))
	w.pool(lists("m"))
	gateways := make([]*asker, 10)
	for i := range gateways {
		gateways[i] = w.gatewayOn(redis, strconv.Itoa(i))
	}
	for range 10 {
		var all sync.WaitGroup
		for _, g := range gateways {
			all.Go(func() { g.holds("m", 1) })
		}
		all.Wait()
		for _, g := range gateways {
			all.Go(func() { g.holds("m", 0) })
		}
		all.Wait()
	}
	gateways[0].holds("m", 1)
	w.eventually("something is bought", func() error {
		if len(w.rented()) == 0 {
			return fmt.Errorf("nothing")
		}
		return nil
	})
	gateways[0].holds("m", 0)
	// Clients that come back and give up again while it boots.
	for range 5 {
		gateways[1].holds("m", 3)
		gateways[1].holds("m", 0)
	}
	w.eventually("it is given back", func() error {
		if claims, live := w.claims(), w.live(); len(claims)+len(live) > 0 {
			return fmt.Errorf("%d claims, %d live", len(claims), len(live))
		}
		return nil
	})
	w.rentedAtMost(1)
	for _, c := range w.watch.Ended() {
		if c.Status.InstanceID != "" && !slices.ContainsFunc(c.Status.Steps, func(s v1alpha1.Step) bool { return s.Name == "Ready" }) {
			t.Errorf("%s was bought and ended before it was Ready: %+v", c.Name, c.Status.Steps)
		}
	}
}

// TestTrafficScalesAModel: load that lasts buys the replicas that it needs, no more than the pool lets a model have, and
// nothing for a name that no pool lists. Load that is less for a minute, and not before, gives one back. The controllers'
// clock is set forward to where the times are nearly over, and then over.
func TestTrafficScalesAModel(t *testing.T) {
	redis := redistest.Start(t)
	var ahead atomic.Int64
	w := start(t, offers(5), func(w *world, _ *market.Config, _ *simOptions) {
		w.configure = func(c *operator.Config) { c.RedisURL, c.Clock = redis.URL(), jumpy{clock.RealClock{}, &ahead} }
	})
	pass := func(d time.Duration) { ahead.Add(int64(d)) }
	w.pool(lists("m"), func(p *v1alpha1.GPUNodePool) {
		target, most := int32(4), int32(2)
		p.Spec.Models[0].TargetConcurrency, p.Spec.Models[0].MaxReplicas = &target, &most
	})
	g := w.gatewayOn(redis, "one")
	g.holds("nobody's", 50)
	g.holds("m", 4)
	w.ready(1)
	w.during(3*time.Second, 1, 1, "with as much as one can take")

	g.holds("m", 40)
	w.during(2*time.Second, 1, 1, "before it has lasted") // It was read meanwhile.
	pass(demand.RiseAfter / 3)
	w.during(time.Second, 1, 1, "before it has lasted for long")
	pass(demand.RiseAfter)
	w.ready(2)
	w.during(time.Second, 2, 2, "at maxReplicas")
	w.eventually("less than before is believed", func() error {
		var unknown dto.Metric
		err := metrics.TrafficUnknown.Write(&unknown)
		if err == nil && unknown.GetGauge().GetValue() != 0 {
			err = errors.New("Redis has not been there for long enough")
		}
		return err
	})

	g.holds("m", 4)
	w.during(2*time.Second, 2, 2, "before there has been less for a time")
	pass(demand.FallAfter * 2 / 3)
	w.during(2*time.Second, 2, 2, "before there has been less for long")
	pass(demand.FallAfter / 3)
	w.eventually("one is given back", func() error {
		if n := len(w.live()); n != 1 {
			return fmt.Errorf("%d live", n)
		}
		return nil
	})
	w.during(3*time.Second, 1, 2, "with one")

	g.holds("m", 0)
	w.eventually("both are given back", func() error {
		if n := len(w.live()); n > 0 {
			return fmt.Errorf("%d live", n)
		}
		return nil
	})
	w.rentedAtMost(2)
}
