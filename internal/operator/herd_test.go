package operator_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/munhq/gpuscale/api/v1alpha1"
	"github.com/munhq/gpuscale/internal/cloudsim/market"
	"github.com/munhq/gpuscale/internal/operator"
	"github.com/munhq/gpuscale/pkg/money"
	"github.com/munhq/gpuscale/pkg/provider"
)

// TestAHerdStaysUnderTheCeilings has 500 pods of as many models ask at once for what the pool pays six of.
func TestAHerdStaysUnderTheCeilings(t *testing.T) {
	var offers []market.Offer
	for i := range 30 {
		o := offer(fmt.Sprint(2001 + i))
		o.MinBid = market.USD(0.30 + 0.005*float64(i%10))
		offers = append(offers, o)
	}
	w := start(t, offers)
	w.pool() // maxNodes 6, maxCostPerHour 3.00
	w.herd(500, "maxNodes 6: 6 reserved")
	w.never(6, market.USD(3))
	if peak := w.market.Books().Peak().Live; peak != 6 {
		t.Errorf("%d nodes at most, the pool pays six of", peak)
	}
}

// TestAHerdStaysUnderWhatItMayCost is the same with dear machines, of which the money buys fewer than the pool has nodes for.
func TestAHerdStaysUnderWhatItMayCost(t *testing.T) {
	var offers []market.Offer
	for i := range 20 {
		o := offer(fmt.Sprint(2001 + i))
		o.OnDemand, o.MinBid = market.USD(2), market.USD(0.55+0.013*float64(i%7)) // bid for with 0.63 to 0.72
		offers = append(offers, o)
	}
	w := start(t, offers)
	w.pool(func(p *v1alpha1.GPUNodePool) { p.Spec.Providers[0].MaxPrice = money.MustParse("1.00") })
	w.herd(60, "maxCostPerHour 3.00: ")
	w.never(6, market.USD(3))
	if peak := w.market.Books().Peak().Live; peak < 3 || peak > 4 {
		t.Errorf("%d nodes at most, the money is for three or four", peak)
	}
}

// herd has so many pods of as many models ask at once, and waits until every one of them is served or says which ceiling is
// in its way, with numbers.
func (w *world) herd(n int, ceiling string) {
	w.t.Helper()
	var wg sync.WaitGroup
	for i := range 10 {
		wg.Go(func() {
			for j := range n / 10 {
				w.pod(fmt.Sprintf("acme/m%d", i*n/10+j))
			}
		})
	}
	wg.Wait()
	// Writing to 500 pods takes the API server of a busy machine a while.
	w.within(4*time.Minute, "some are served, and every other pod says why not, with numbers", func() error {
		var pods corev1.PodList
		if err := w.client.List(w.ctx, &pods, client.InNamespace(w.ns)); err != nil {
			return err
		}
		said := map[string]int{}
		for _, p := range pods.Items {
			for _, c := range p.Status.Conditions {
				if c.Type == v1alpha1.PodConditionServed {
					if c.Reason == v1alpha1.PodReasonCeilingReached && (!strings.Contains(c.Message, ceiling) || !strings.Contains(c.Message, "reserved")) {
						return fmt.Errorf("%q is not in %q", ceiling, c.Message)
					}
					said[c.Reason]++
				}
			}
		}
		if said[v1alpha1.PodReasonServed] == 0 || said[v1alpha1.PodReasonServed]+said[v1alpha1.PodReasonCeilingReached] != n {
			return fmt.Errorf("pods say %v", said)
		}
		return nil
	})
}

// never insists that the market's books show no more than so much at any instant.
func (w *world) never(nodes int, perHour market.Nano) {
	w.t.Helper()
	books := w.market.Books()
	for _, s := range books.Series {
		if s.Live > nodes || s.CommittedPerHour > perHour {
			w.t.Errorf("at %s: %d nodes at %s $/h", s.At, s.Live, s.CommittedPerHour)
		}
	}
	w.t.Logf("peak %d nodes at %s $/h", books.Peak().Live, books.Peak().CommittedPerHour)
}

// within is eventually with a patience of its own.
func (w *world) within(patience time.Duration, what string, holds func() error) {
	w.t.Helper()
	err := errors.New("not looked at")
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(200 * time.Millisecond) {
		if err = holds(); err == nil {
			return
		}
	}
	w.t.Fatalf("%s: %v\n%s", what, err, w.dump())
}

// gated holds every search of the market until it is opened.
type gated struct {
	provider.Provider
	searched chan<- struct{}
	gate     func() <-chan struct{}
}

func (g gated) SearchOffers(ctx context.Context, q provider.OfferQuery) ([]provider.Offer, error) {
	g.searched <- struct{}{}
	select {
	case <-g.gate():
	case <-ctx.Done():
	}
	return g.Provider.SearchOffers(ctx, q)
}

// lateClaims holds the making of claims.
type lateClaims struct{ next http.RoundTripper }

func (l lateClaims) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/gpunodeclaims") {
		time.Sleep(1500 * time.Millisecond)
	}
	return l.next.RoundTrip(r)
}

// TestALoweredCeilingStopsBuyingAtOnce lowers it while claims with reservations are looking for their offers.
func TestALoweredCeilingStopsBuyingAtOnce(t *testing.T) {
	offers := []market.Offer{offer("1001"), offer("1002"), offer("1003"), offer("1004")}
	searched, open, first := make(chan struct{}, 100), make(chan struct{}), make(chan struct{})
	close(first)
	var planned sync.Once
	w := start(t, offers, func(w *world, _ *market.Config, _ *simOptions) {
		w.configure = func(c *operator.Config) {
			wrap := c.Wrap
			c.Wrap = func(p provider.Provider) provider.Provider {
				gate := func() <-chan struct{} {
					g := (<-chan struct{})(open)
					planned.Do(func() { g = first }) // the first search is the planner's
					return g
				}
				return gated{wrap(p), searched, gate}
			}
			// A claim that is made late finds the planner's offers too old and searches by itself.
			c.Rest = rest.CopyConfig(c.Rest)
			c.Rest.Wrap(func(next http.RoundTripper) http.RoundTripper { return lateClaims{next} })
		}
	})
	pool := w.pool()
	w.pod("acme/one")
	w.eventually("a claim looks for its offer", func() error {
		if len(searched) < 2 {
			return fmt.Errorf("%d searches", len(searched))
		}
		return nil
	})
	w.eventually("the ceiling is lowered", func() error {
		if err := w.client.Get(w.ctx, client.ObjectKeyFromObject(pool), pool); err != nil {
			return err
		}
		pool.Spec.Limits.MaxCostPerHour = money.MustParse("0.10")
		return w.client.Update(w.ctx, pool)
	})
	close(open)
	w.failed(v1alpha1.ReasonNotReserved, v1alpha1.CulpritNone)
	w.rentedAtMost(0)
}
