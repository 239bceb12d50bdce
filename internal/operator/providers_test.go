package operator_test

import (
	"errors"
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/munhq/gpuscale/api/v1alpha1"
	"github.com/munhq/gpuscale/internal/cloudsim/clouds"
	"github.com/munhq/gpuscale/internal/cloudsim/market"
	"github.com/munhq/gpuscale/internal/operator"
	"github.com/munhq/gpuscale/pkg/money"
	"github.com/munhq/gpuscale/pkg/provider"
)

// patience is how long these tests wait for a slow provider.
const patience = 3 * time.Second

// severalClouds opens every simulated cloud beside the world's own Vast.ai, with machines that boot as fast, and insists
// that all are empty in the end.
func severalClouds(t *testing.T, markets map[string]*market.Market) option {
	return func(w *world, own *market.Config, _ *simOptions) {
		urls := map[provider.Name]string{}
		for _, c := range clouds.All() {
			if c.Provider == string(provider.VastAI) {
				continue
			}
			cfg := c.Calm(1)
			cfg.Body, cfg.Boot, cfg.ListLag, cfg.DestroyLag = own.Body, own.Boot, 0, 0
			m := market.New(cfg)
			api := httptest.NewServer(c.API(m, clouds.Access{Keys: []string{simKey}, Unlimited: true}))
			t.Cleanup(func() {
				if live := m.Books().Live(); len(live) > 0 {
					t.Errorf("%s still has %d instances", c.Provider, len(live))
				}
				api.Close()
				m.Close()
			})
			markets[c.Provider], urls[provider.Name(c.Provider)] = m, api.URL
		}
		w.configure = func(cfg *operator.Config) {
			for name, url := range urls {
				cfg.BaseURLs[name] = url
			}
			cfg.SearchPatience = patience
		}
	}
}

// allKeys puts the keys of all simulated accounts into the provider's Secret.
func (w *world) allKeys() {
	w.t.Helper()
	s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: secretNS, Name: secretRef}, StringData: map[string]string{}}
	for _, c := range clouds.All() {
		for name, value := range c.Credentials(simKey) {
			s.StringData[name] = value
		}
	}
	if err := w.client.Update(w.ctx, s); err != nil {
		w.t.Fatal(err)
	}
}

// everywhere is a pool that buys RTX 4090 from any provider.
func (w *world) everywhere() *v1alpha1.GPUNodePool {
	w.t.Helper()
	return w.pool(func(p *v1alpha1.GPUNodePool) {
		for _, c := range clouds.All() {
			if c.Provider != string(provider.VastAI) {
				p.Spec.Providers = append(p.Spec.Providers, v1alpha1.ProviderSpec{Name: c.Provider, CapacityType: "on-demand",
					MaxPrice: money.MustParse("1.00"), APIKeySecret: p.Spec.Providers[0].APIKeySecret})
			}
		}
		p.Spec.Limits.MaxCostPerHour = money.MustParse("9.00")
	})
}

// bought waits for the claim of a model and what its event says of the choice.
func (w *world) bought(model string) (claim v1alpha1.GPUNodeClaim, why string) {
	w.t.Helper()
	w.eventually("a claim and why it was bought, for "+model, func() error {
		for _, c := range w.claims() {
			if len(c.Spec.Placements) == 0 || c.Spec.Placements[0].Workload != model {
				continue
			}
			var list eventsv1.EventList
			if err := w.client.List(w.ctx, &list); err != nil {
				return err
			}
			for _, e := range list.Items {
				if e.Regarding.UID == c.UID && e.Reason == v1alpha1.ReasonPlanned {
					claim, why = c, e.Note
					return nil
				}
			}
		}
		return errors.New("none")
	})
	return claim, why
}

// served waits for a pod to be served and returns where its machine is.
func (w *world) servedFrom(pod *corev1.Pod) string {
	w.t.Helper()
	w.podSays(pod, corev1.ConditionTrue, v1alpha1.PodReasonServed)
	claim, _ := w.bought(pod.Annotations[v1alpha1.AnnotationModel])
	return claim.Status.Provider
}

// TestAProviderThatFailsIsPassedOverAndComesBack: the cheapest provider does not answer, so the next is bought from, and
// claim and pool say whom there was no choice of. When it answers again the cheapest wins.
func TestAProviderThatFailsIsPassedOverAndComesBack(t *testing.T) {
	markets := map[string]*market.Market{}
	w := start(t, market4(), severalClouds(t, markets))
	w.allKeys()
	for range 100 {
		w.market.FailNext(market.OpSearch, market.ServerError)
	}
	pool := w.everywhere()
	if from := w.servedFrom(w.pod("acme/first")); from == string(provider.VastAI) || markets[from].Books().Rented != 1 {
		t.Fatalf("bought from %q; Vast.ai does not answer", from)
	}
	if _, why := w.bought("acme/first"); !strings.Contains(why, "; without vast.ai spot (pool "+pool.Name+"): search: Unavailable") {
		t.Errorf("the claim does not say what there was no choice of: %s", why)
	}
	w.poolSays(pool, v1alpha1.ConditionOffersAvailable, "True", v1alpha1.ReasonSomeOffersFound, "vast.ai spot gave no offers: ")

	w.market.ClearFaults()
	// No other is as cheap, so it waits for Vast.ai.
	if from := w.servedFrom(w.pod("acme/second", v1alpha1.AnnotationMaxPrice, "0.20")); from != string(provider.VastAI) {
		t.Fatalf("bought from %q", from)
	}
	// Any would do.
	if from := w.servedFrom(w.pod("acme/third")); from != string(provider.VastAI) {
		t.Fatalf("bought from %q; Vast.ai's 0.15 $/h is the cheapest", from)
	}
	if _, why := w.bought("acme/third"); strings.Contains(why, "without") {
		t.Errorf("all providers gave offers: %s", why)
	}
	w.poolSays(pool, v1alpha1.ConditionOffersAvailable, "True", v1alpha1.ReasonOffersFound)
}

// TestAProviderThatIsSlowDelaysNobody: it is waited for once, for as long as the patience, and not again.
func TestAProviderThatIsSlowDelaysNobody(t *testing.T) {
	markets := map[string]*market.Market{}
	w := start(t, market4(), severalClouds(t, markets))
	w.allKeys()
	slow := markets[string(provider.RunPod)]
	slow.SetFaultRates(market.FaultRates{Delay: time.Minute})
	for range 100 {
		slow.FailNext(market.OpSearch, market.Slow)
	}
	w.everywhere()
	first := w.pod("acme/first")
	if _, why := w.bought("acme/first"); !strings.Contains(why, fmt.Sprintf("without runpod on-demand (pool pool-%s): search: Unavailable: no answer within %s", w.ns, patience)) {
		t.Errorf("the claim does not say who was not waited for: %s", why)
	}
	began := time.Now()
	second := w.pod("acme/second")
	w.bought("acme/second")
	if took := time.Since(began); took >= patience {
		t.Errorf("the slow provider delayed the next purchase by %s", took)
	}
	for _, pod := range []*corev1.Pod{first, second} {
		if from := w.servedFrom(pod); from != string(provider.VastAI) {
			t.Errorf("bought from %q", from)
		}
	}
	slow.ClearFaults()
}

// TestTheOnlyProviderMayBeSlow: with no other to buy from, an answer that comes late is bought from all the same.
func TestTheOnlyProviderMayBeSlow(t *testing.T) {
	w := start(t, market4(), func(w *world, _ *market.Config, _ *simOptions) {
		w.configure = func(cfg *operator.Config) { cfg.SearchPatience = time.Second }
	})
	w.market.SetFaultRates(market.FaultRates{Delay: 3 * time.Second})
	for range 100 {
		w.market.FailNext(market.OpSearch, market.Slow)
	}
	w.pool()
	pod := w.pod("acme/patient")
	w.podSays(pod, corev1.ConditionFalse, v1alpha1.PodReasonNoOffers, "no answer within 1s: its offers count when they come")
	w.podSays(pod, corev1.ConditionTrue, v1alpha1.PodReasonServed)
	w.rentedAtMost(1)
}
