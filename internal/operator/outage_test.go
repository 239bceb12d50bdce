package operator_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"

	"github.com/munhq/gpuscale/api/v1alpha1"
	"github.com/munhq/gpuscale/internal/cloudsim/market"
	"github.com/munhq/gpuscale/internal/localkube/localkubetest"
	"github.com/munhq/gpuscale/internal/operator"
	"github.com/munhq/gpuscale/pkg/money"
)

// outage kills the API server once, at the moment that strikes, and starts it again later.
type outage struct {
	w    *world
	once sync.Once
	// over is closed when the API server answers again.
	over chan struct{}
	// lasts is for how long it stays away.
	lasts time.Duration
}

// strike returns once the API server is gone, and says whether this call was the one that killed it.
func (o *outage) strike() (struck bool) {
	o.once.Do(func() {
		struck = true
		o.w.requests.whileStarting(true)
		if err := o.w.cluster.KillAPIServer(); err != nil {
			o.w.t.Error(err)
		}
		go func() {
			defer close(o.over)
			time.Sleep(o.lasts)
			if err := o.w.cluster.RestartAPIServer(context.Background()); err != nil {
				o.w.t.Error(err)
			}
			o.w.requests.whileStarting(false)
		}()
	})
	return struck
}

// roundTripper is a function as an http.RoundTripper.
type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func isNewClaim(r *http.Request) bool {
	return r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/gpunodeclaims")
}

func beforeTheClaim(_ *world, c *operator.Config, o *outage) {
	c.Rest.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			if isNewClaim(r) {
				o.strike()
			}
			return next.RoundTrip(r)
		})
	})
}

func afterTheClaim(_ *world, c *operator.Config, o *outage) {
	c.Rest.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			resp, err := next.RoundTrip(r)
			if err != nil || !isNewClaim(r) || !o.strike() {
				return resp, err
			}
			return nil, errors.Join(errors.New("connection reset by peer"), resp.Body.Close())
		})
	})
}

// duringTheCreate kills it between the intent, which is written, and the provider's answer, which cannot be.
func duringTheCreate(w *world, _ *operator.Config, o *outage) {
	w.beforeCreate = func(*world) { o.strike() }
}

// duringTheCreateUnheard is the same with an answer that never comes, of a create that is carried out.
func duringTheCreateUnheard(w *world, c *operator.Config, o *outage) {
	duringTheCreate(w, c, o)
	w.market.LoseNextAnswer(market.OpCreate)
}

// TestTheAPIServerIsKilledAndComesBack kills it where the most is at stake. Each demand is bought once, served in the end,
// and never above the ceilings, which are just enough for both. Where the lease is lost there are two replicas, and what
// ends is started again.
func TestTheAPIServerIsKilledAndComesBack(t *testing.T) {
	cluster := localkubetest.Start(t, localkubetest.Private())
	const short, long = 2 * time.Second, 8 * time.Second
	for _, tc := range []struct {
		name      string
		lasts     time.Duration
		leaseLost bool
		at        func(*world, *operator.Config, *outage)
	}{
		{"reserved, no claim yet", short, false, beforeTheClaim},
		{"reserved, no claim yet, lease lost", long, true, beforeTheClaim},
		{"claim written, answer lost", short, false, afterTheClaim},
		{"create in the air", short, false, duringTheCreate},
		{"create in the air, lease lost", long, true, duringTheCreateUnheard},
	} {
		t.Run(tc.name, func(t *testing.T) {
			o := &outage{over: make(chan struct{}), lasts: tc.lasts}
			w := start(t, []market.Offer{offer("1001"), offer("1002"), offer("1003")}, func(w *world, _ *market.Config, _ *simOptions) {
				o.w, w.cluster, w.supervised = w, cluster, tc.leaseLost
				w.configure = func(c *operator.Config) {
					c.Rest, c.OrphanAge = rest.CopyConfig(c.Rest), 3*time.Second
					tc.at(w, c, o)
					if tc.leaseLost {
						c.LeaderElection = true
						c.Lease.Duration, c.Lease.Renew, c.Lease.Retry = 4*time.Second, 3*time.Second, 300*time.Millisecond
						beside(t, w, *c)
					}
				}
			})
			w.outlives(o)
			if ended := w.ended.Load(); (ended > 0) != tc.leaseLost {
				t.Errorf("controllers ended %d times by themselves, lease lost %t", ended, tc.leaseLost)
			}
		})
	}
}

// outlives serves two pods over an outage and asks the market's books.
func (w *world) outlives(o *outage) {
	w.t.Helper()
	pods := []*corev1.Pod{w.pod("acme/one"), w.pod("acme/two")} // before the pool, so that it alone begins it all
	ceiling := money.MustParse("0.45")
	w.pool(func(p *v1alpha1.GPUNodePool) {
		p.Spec.Scaling.MaxNodes, p.Spec.Limits.MaxCostPerHour = int32(len(pods)), ceiling
	})
	select {
	case <-o.over:
	case <-time.After(time.Minute):
		w.t.Fatalf("the moment to strike never came\n%s", w.dump())
	}
	for _, p := range pods {
		w.podSays(p, corev1.ConditionTrue, v1alpha1.PodReasonServed)
	}
	books := w.market.Books()
	if books.Rented != len(pods) {
		w.t.Errorf("%d instances were rented for %d pods\n%s", books.Rented, len(pods), w.dump())
	}
	if peak := books.Peak(); peak.Live > len(pods) || peak.CommittedPerHour > market.USD(0.45) {
		w.t.Errorf("%d instances at %s $/h at once, over the ceilings of %d and %s", peak.Live, peak.CommittedPerHour, len(pods), ceiling)
	}
}
