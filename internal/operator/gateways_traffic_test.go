package operator_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/munhq/gpuscale/api/v1alpha1"
	"github.com/munhq/gpuscale/internal/cloudsim/body/virtual"
	"github.com/munhq/gpuscale/internal/cloudsim/market"
	"github.com/munhq/gpuscale/internal/localkube/localkubetest"
	"github.com/munhq/gpuscale/internal/wish/redistest"
)

func (w *world) zero(within time.Duration) {
	w.t.Helper()
	w.within(within, "all is given back", func() error {
		if claims, live := w.claims(), w.live(); len(claims)+len(live) > 0 {
			return fmt.Errorf("%d claims, %d live", len(claims), len(live))
		}
		return nil
	})
}

func cooldown(d time.Duration) func(*v1alpha1.GPUNodePool) {
	return func(p *v1alpha1.GPUNodePool) { p.Spec.Scaling.CooldownPeriod.Duration = d }
}

// TestAReplicaTooManyEndsUnderSteadyTraffic: a model that needs one replica less gives one back, though its traffic never
// ends, loses no request by it, and buys none again.
func TestAReplicaTooManyEndsUnderSteadyTraffic(t *testing.T) {
	const period = 3 * time.Second
	redis := redistest.Start(t)
	w := start(t, offers(4), withRedis(redis))
	pool := w.pool(lists("m"), slow, cooldown(period), func(p *v1alpha1.GPUNodePool) {
		target := int32(8)
		p.Spec.Models[0].TargetConcurrency, p.Spec.Models[0].MinReplicas = &target, 2
	})
	w.ready(2)
	f := w.front(redis)
	answered, stop := f.traffic("m", 4, 8)
	w.during(2*period, 2, 2, "while two are wanted")
	w.edit(pool, func(p *v1alpha1.GPUNodePool) { p.Spec.Models[0].MinReplicas = 1 })
	w.eventually("one is given back", func() error {
		if n := len(w.live()); n != 1 {
			return fmt.Errorf("%d live", n)
		}
		return nil
	})
	before := answered()
	w.during(4*period, 1, 2, "with one replica less")
	if n := answered() - before; n == 0 {
		t.Error("there was no traffic")
	}
	stop()
	w.edit(pool, func(p *v1alpha1.GPUNodePool) { p.Spec.Models[0].MinReplicas = 0 })
	w.zero(time.Minute)
	w.rentedAtMost(2)
}

// TestTrafficAtTheCooldownsEdge: requests that come a little before the cooldown is over keep the one machine; those that
// come just when it is over are answered too, each by one machine at most; after the last one it goes, in time.
func TestTrafficAtTheCooldownsEdge(t *testing.T) {
	const period = 4 * time.Second
	redis := redistest.Start(t)
	w := start(t, offers(10), withRedis(redis))
	w.pool(lists("m"), cooldown(period))
	f := w.front(redis)
	last := time.Now()
	ask := func(after time.Duration) {
		time.Sleep(time.Until(last.Add(after)))
		if err := f.ask("m", false, 3); err != nil {
			t.Errorf("%s after the one before: %v", after, err)
		}
		last = time.Now()
	}
	for range 6 {
		ask(period / 2)
	}
	if n := len(w.rented()); n != 1 {
		t.Errorf("%d were bought for traffic within the cooldown", n)
	}
	const edge = 5
	for i := range edge {
		ask(period + time.Duration(i)*200*time.Millisecond)
	}
	w.rentedAtMost(1 + edge)
	bought := len(w.rented())
	// A busy machine makes everything late; the budget is 5 s.
	w.zero(period + 20*time.Second)
	t.Logf("all was given back %s after the last request, with a cooldown of %s", time.Since(last), period)
	time.Sleep(period)
	w.rentedAtMost(bought)
}

// TestRedisComesBackEmptyWhileRequestsWait: one waits for a machine that was bought before, and is answered while Redis is
// gone; one that came meanwhile wakes its model as soon as Redis is back, with nothing in it. Neither is bought twice, and
// what serves stays, whatever becomes of Redis.
func TestRedisComesBackEmptyWhileRequestsWait(t *testing.T) {
	const period = 3 * time.Second
	redis := redistest.Start(t)
	w := start(t, offers(4), withRedis(redis), func(_ *world, m *market.Config, _ *simOptions) {
		m.Body = virtual.New(virtual.Options{Env: map[string]string{"VLLM_SIM_LOAD_TIME": "4s", "VLLM_SIM_TTFT": "1ms"}})
	})
	w.pool(lists("a", "b"), cooldown(period))
	f := w.front(redis)
	first := f.asks("a", true, 5)
	w.eventually("a machine is bought", func() error {
		if n := len(w.live()); n != 1 {
			return fmt.Errorf("%d live", n)
		}
		return nil
	})
	redis.Kill(t)
	second := f.asks("b", false, 5)
	if err := <-first; err != nil {
		t.Errorf("the one that waited when Redis was lost: %v", err)
	}
	_, stop := f.traffic("a", 1, 5)
	w.during(2*period, 1, 1, "while Redis is gone")
	select {
	case err := <-second:
		t.Fatalf("it was answered by nobody: %v", err)
	default:
	}
	redis.Restart(t)
	if err := <-second; err != nil {
		t.Errorf("the one that came when Redis was gone: %v", err)
	}
	w.rentedAtMost(2)
	_, stopToo := f.traffic("b", 1, 5)
	redis.Kill(t)
	redis.Restart(t)
	w.during(3*period, 2, 2, "after Redis came back empty under traffic")
	stop()
	stopToo()
	w.zero(time.Minute)
	w.rentedAtMost(2)
}

// TestTrafficFlowsWithoutControllersAndAPIServer, and nothing of what serves is destroyed, or bought again, when they are
// back. The model is always active: it stays without traffic too, until a person says otherwise.
func TestTrafficFlowsWithoutControllersAndAPIServer(t *testing.T) {
	s := newStage(t, offers(3), localkubetest.Private())
	s.launch()
	pool := s.pool(lists("m"), slow, func(p *v1alpha1.GPUNodePool) { p.Spec.Models[0].AlwaysActive = true })
	s.ready(1)
	f := s.front(nil)
	answered, stop := f.traffic("m", 4, 10)
	stream := f.asks("m", true, 20*20) // 20 s: it lasts over all of it
	s.stop()
	if err := s.cluster.KillAPIServer(); err != nil {
		t.Fatal(err)
	}
	before := answered()
	s.during(8*time.Second, 1, 1, "without controllers and API server")
	if n := answered() - before; n == 0 {
		t.Error("nothing was answered meanwhile")
	}
	if err := f.ask("m", false, 1); err != nil {
		t.Errorf("a request that came meanwhile: %v", err)
	}
	s.requests.whileStarting(true)
	if err := s.cluster.RestartAPIServer(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.launch()
	s.during(5*time.Second, 1, 1, "when they are back")
	s.requests.whileStarting(false)
	if err := <-stream; err != nil {
		t.Errorf("the stream: %v", err)
	}
	stop()
	s.during(3*pool.Spec.Scaling.CooldownPeriod.Duration, 1, 1, "without traffic")
	s.edit(pool, func(p *v1alpha1.GPUNodePool) { p.Spec.Models[0].AlwaysActive = false })
	s.zero(time.Minute)
	s.rentedAtMost(1)
}
