package operator_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/munhq/gpuscale/api/v1alpha1"
	"github.com/munhq/gpuscale/internal/agentapi"
	"github.com/munhq/gpuscale/internal/cloudsim/body/virtual"
	"github.com/munhq/gpuscale/internal/cloudsim/market"
	"github.com/munhq/gpuscale/internal/controller/claim"
	"github.com/munhq/gpuscale/internal/operator"
	"github.com/munhq/gpuscale/internal/wish/redistest"
	"github.com/munhq/gpuscale/internal/workerclient"
)

// cutOff keeps the agents from answering the controllers for as long as it is set.
type cutOff struct {
	claim.Workers
	is *atomic.Bool
}

func (c cutOff) Status(ctx context.Context, endpoint, uid string) (agentapi.Status, error) {
	if c.is.Load() {
		return agentapi.Status{}, &workerclient.UnreachableError{Endpoint: endpoint, Err: errors.New("no route to host")}
	}
	return c.Workers.Status(ctx, endpoint, uid)
}

// TestAgentsThatCannotBeReachedEndNothing: of two nodes that nobody asks for any more, one always active, the agents do not
// answer for many cooldowns. Both stay, and none is bought in their place. When they answer again the one that is not
// wanted goes, a cooldown later; the other stays without a request, and is replaced when its machine is taken.
func TestAgentsThatCannotBeReachedEndNothing(t *testing.T) {
	const period = time.Second
	redis := redistest.Start(t)
	var silent atomic.Bool
	w := start(t, offers(4), withRedis(redis), func(w *world, _ *market.Config, _ *simOptions) {
		before := w.configure
		w.configure = func(c *operator.Config) {
			before(c)
			c.WrapWorkers = func(w claim.Workers) claim.Workers { return cutOff{w, &silent} }
		}
	})
	w.pool(lists("m", "always"), cooldown(period), func(p *v1alpha1.GPUNodePool) { p.Spec.Models[1].AlwaysActive = true })
	g := w.gatewayOn(redis, "one")
	g.holds("m", 1)
	w.ready(2)

	silent.Store(true)
	g.holds("m", 0)
	w.event("GPUNodeClaim", v1alpha1.ReasonAgentUnreachable)
	w.during(6*period, 2, 2, "while no agent answers")
	silent.Store(false)
	answered := time.Now()
	w.eventually("the one that nobody wants is given back", func() error {
		if n := len(w.live()); n != 1 {
			return fmt.Errorf("%d live", n)
		}
		return nil
	})
	if took := time.Since(answered); took < period-100*time.Millisecond {
		t.Errorf("it went %s after its agent answered again, its cooldown is %s", took, period)
	}
	w.ready(1)
	if c := w.claims()[0]; c.Spec.Placements[0].Workload != "always" {
		t.Fatalf("%s was ended\n%s", "always", w.dump())
	}
	w.during(4*period, 1, 2, "without a request")

	taken := w.live()[0].ID
	if err := w.market.Reclaim(taken); err != nil {
		t.Fatal(err)
	}
	w.eventually("it is replaced", func() error {
		if live := w.live(); len(live) != 1 || live[0].ID == taken {
			return fmt.Errorf("%d live", len(live))
		}
		return nil
	})
	w.ready(1)
	w.during(4*period, 1, 3, "on its new machine, without a request")
}

// givesUp asks and leaves after a while, answered or not.
func (f *front) givesUp(model string, after time.Duration) {
	f.t.Helper()
	ctx, leave := context.WithTimeout(f.t.Context(), after)
	defer leave()
	body := fmt.Sprintf(`{"model":%q,"stream":true,"messages":[{"role":"user","content":"hello"}]}`, model)
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, f.url+"/v1/chat/completions", strings.NewReader(body))
	if err != nil {
		f.t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	if response, err := f.client.Do(r); err == nil { // It cannot be ready this early, but that is not the point.
		_ = response.Body.Close()
	}
}

// TestClientsThatGiveUpWhileAModelBootsBuyItOnce: each comes back and leaves again, before and after the machine is bought,
// and for a while there is nobody at all. It boots for longer than its cooldown, and who has the patience is answered by it.
func TestClientsThatGiveUpWhileAModelBootsBuyItOnce(t *testing.T) {
	const period, load = 2 * time.Second, 8 * time.Second
	redis := redistest.Start(t)
	w := start(t, offers(5), withRedis(redis), func(_ *world, m *market.Config, _ *simOptions) {
		m.Body = virtual.New(virtual.Options{Env: map[string]string{"VLLM_SIM_LOAD_TIME": load.String(), "VLLM_SIM_TTFT": "1ms"}})
	})
	w.pool(lists("m"), cooldown(period))
	f := w.front(redis)
	for i := 0; len(w.live()) == 0; i++ { // Whoever leaves before it is bought may take the wish with him.
		f.givesUp("m", time.Duration(50+i*50)*time.Millisecond)
	}
	for range 8 {
		f.givesUp("m", 150*time.Millisecond)
	}
	w.during(period+time.Second, 1, 1, "while it boots and nobody waits")
	for range 4 {
		f.givesUp("m", 150*time.Millisecond)
	}
	w.ready(1)
	if err := f.ask("m", true, 3); err != nil {
		t.Error(err)
	}
	w.rentedAtMost(1)
	w.zero(period + 20*time.Second)
	w.rentedAtMost(1)
}

// TestZeroIsReachedWithinItsBudget with production's intervals: the market's books say when the machine was given back, and
// the last answer when it could be. A busy machine makes a try late, never early, so that the best of a few counts; the first
// is late anyhow, since controllers that have just started do not believe yet that what Redis lacks is nothing.
func TestZeroIsReachedWithinItsBudget(t *testing.T) {
	const period, budget, tries = 3 * time.Second, 5 * time.Second, 4
	redis := redistest.Start(t)
	w := start(t, offers(tries), withRedis(redis), func(w *world, _ *market.Config, _ *simOptions) {
		before := w.configure
		w.configure = func(c *operator.Config) { before(c); c.Timing = claim.DefaultTiming() }
	})
	w.pool(lists("m"), cooldown(period))
	f := w.front(redis)
	for n := 1; ; n++ {
		if err := f.ask("m", false, 3); err != nil {
			t.Fatal(err)
		}
		last := time.Now()
		w.zero(time.Minute)
		all := w.rented()
		took := all[len(all)-1].GoneAt.Sub(last)
		t.Logf("given back %s after the last request, with a cooldown of %s", took.Round(time.Millisecond), period)
		if len(all) != n || took < period-100*time.Millisecond {
			t.Fatalf("%d were rented in %d tries, the last one given back after %s", len(all), n, took)
		}
		if took <= period+budget {
			return
		}
		if n == tries {
			t.Fatalf("never within %s of its cooldown", budget)
		}
	}
}
