package operator_test

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/utils/clock"

	"github.com/munhq/gpuscale/api/v1alpha1"
	"github.com/munhq/gpuscale/internal/cloudsim/body/virtual"
	"github.com/munhq/gpuscale/internal/cloudsim/market"
	"github.com/munhq/gpuscale/internal/operator"
	"github.com/munhq/gpuscale/internal/traffic"
	"github.com/munhq/gpuscale/internal/wish/redistest"
)

// during insists on so many live instances, and no more rented than that ever, for a time.
func (w *world) during(d time.Duration, live, rented int, when string) {
	w.t.Helper()
	for began := time.Now(); time.Since(began) < d; time.Sleep(50 * time.Millisecond) {
		w.mustLive(live, when)
		if got := len(w.rented()); got != rented {
			w.t.Fatalf("%d rented %s, want %d\n%s", got, when, rented, w.dump())
		}
	}
}

// TestLosingRedisEndsAndBuysNothing kills Redis, stops it in the middle of everything and brings it back empty while a
// model is asked for that no request has reached: only Redis shows that it is wanted. Its node outlives many cooldowns;
// when the node is lost while Redis is, nothing is bought until Redis says again that somebody waits.
func TestLosingRedisEndsAndBuysNothing(t *testing.T) {
	const cooldown = time.Second
	redis := redistest.Start(t)
	w := start(t, offers(4), withRedis(redis))
	w.pool(lists("m"), func(p *v1alpha1.GPUNodePool) { p.Spec.Scaling.CooldownPeriod.Duration = cooldown })
	g := w.gatewayOn(redis, "one")
	g.holds("m", 1)
	w.ready(1)
	w.during(3*cooldown, 1, 1, "while somebody waits")

	redis.Kill(t)
	w.during(5*cooldown, 1, 1, "while Redis is gone")
	redis.Restart(t)
	w.during(5*cooldown, 1, 1, "while Redis is back and empty")
	redis.Pause(t)
	w.during(5*cooldown, 1, 1, "while Redis hangs")
	redis.Resume(t)
	w.during(3*cooldown, 1, 1, "while Redis goes on")

	redis.Pause(t)
	w.during(4*cooldown, 1, 1, "while Redis hangs again")
	if err := w.market.Reclaim(w.live()[0].ID); err != nil {
		t.Fatal(err)
	}
	w.failed(v1alpha1.ReasonInterrupted, v1alpha1.CulpritOffer)
	w.during(3*cooldown, 0, 1, "while Redis hangs and the node is lost")
	redis.Resume(t)
	w.ready(1)
	w.during(3*cooldown, 1, 2, "when somebody is known to wait again")

	g.holds("m", 0)
	w.eventually("it is given back", func() error {
		if live := w.live(); len(live) > 0 {
			return fmt.Errorf("%d live", len(live))
		}
		return nil
	})
	w.rentedAtMost(2)
}

// jumpy is a clock of the day that can be set.
type jumpy struct {
	clock.WithTicker
	ahead *atomic.Int64
}

// Now has no monotonic part, as a time that was set has none in common with the one before.
func (j jumpy) Now() time.Time {
	return j.WithTicker.Now().Add(time.Duration(j.ahead.Load())).Round(0)
}

func (j jumpy) Since(t time.Time) time.Duration { return j.Now().Sub(t) }

// TestANodeGoesToZeroInTimeAndNeverEarly: a node that boots for longer than its cooldown, whose clients gave up and whose
// Redis is lost for good, is judged by its agent's account alone. It has its whole cooldown, a stream that lasts longer
// than that keeps it, a clock that jumps shortens nothing, and after the last request it goes in time.
func TestANodeGoesToZeroInTimeAndNeverEarly(t *testing.T) {
	const cooldown = 3 * time.Second
	redis := redistest.Start(t)
	var ahead atomic.Int64
	w := start(t, offers(1), func(w *world, m *market.Config, _ *simOptions) {
		m.Body = virtual.New(virtual.Options{Env: map[string]string{"VLLM_SIM_LOAD_TIME": "5s", "VLLM_SIM_TTFT": "1ms"}})
		w.configure = func(c *operator.Config) {
			c.RedisURL, c.Clock = redis.URL(), jumpy{clock.RealClock{}, &ahead}
			c.Traffic = traffic.Settings{Hold: 100 * time.Millisecond}
		}
	})
	w.pool(lists("m"), slow, func(p *v1alpha1.GPUNodePool) { p.Spec.Scaling.CooldownPeriod.Duration = cooldown })
	g := w.gatewayOn(redis, "one")
	g.holds("m", 1)
	w.eventually("it is bought", func() error {
		if n := len(w.live()); n != 1 {
			return fmt.Errorf("%d live", n)
		}
		return nil
	})
	g.holds("m", 0)
	redis.Kill(t)
	w.ready(1)
	w.during(cooldown*2/3, 1, 1, "within the cooldown from Ready")

	caller := w.caller(w.claims()[0])
	answer := caller.stream("m", 120) // 6 s
	w.during(cooldown/2, 1, 1, "at the beginning of the stream")
	ahead.Store(int64(time.Hour))
	text := <-answer
	last := time.Now()
	if !strings.Contains(text, "[DONE]") {
		t.Fatalf("the stream ended with %q", text[max(0, len(text)-100):])
	}
	w.during(cooldown/3, 1, 1, "after the stream")
	ahead.Store(int64(3 * time.Hour))
	w.eventually("it is given back", func() error {
		if claims := w.claims(); len(claims) > 0 && claims[0].DeletionTimestamp == nil {
			return fmt.Errorf("it is still there")
		}
		return nil
	})
	took := time.Since(last)
	t.Logf("given back %s after the last request, with a cooldown of %s", took, cooldown)
	if took < cooldown-100*time.Millisecond {
		t.Errorf("that is before its cooldown was over")
	}
	// A busy machine makes everything late; the budget is 5 s.
	if took > cooldown+15*time.Second {
		t.Errorf("that is too late")
	}
	w.rentedAtMost(1)
}
