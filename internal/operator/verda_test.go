package operator_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/munhq/gpuscale/api/v1alpha1"
	"github.com/munhq/gpuscale/internal/cloudsim/market"
	simvast "github.com/munhq/gpuscale/internal/cloudsim/vastai"
	simverda "github.com/munhq/gpuscale/internal/cloudsim/verda"
	"github.com/munhq/gpuscale/pkg/money"
)

// TestAPodIsServedByAVirtualMachine: a provider of machines is bought from as one of containers is, the machine is told
// what it needs by its start-up script alone, and nothing outlives it.
func TestAPodIsServedByAVirtualMachine(t *testing.T) {
	var cloud *simverda.Server
	w := start(t, nil, func(w *world, c *market.Config, _ *simvast.Options) {
		habits := simverda.Config(1)
		c.Provider, c.Offers, c.StableOfferIDs, c.SpotPaysFloor = "verda", habits.Offers, true, true
		c.Reclaim, c.Afterlife, c.InstanceID = market.Reclaim{Destroys: true}, habits.Afterlife, habits.InstanceID
		w.api = func(m *market.Market) http.Handler {
			cloud = simverda.New(m, simverda.Options{Clients: simverda.Clients([]string{simKey})})
			return cloud
		}
	})
	w.pool(func(p *v1alpha1.GPUNodePool) {
		p.Spec.Providers[0].Name, p.Spec.Providers[0].MaxPrice = "verda", money.MustParse("1.00")
		p.Spec.Requirements = v1alpha1.Requirements{GPUTypes: []string{"L40S"}, MinDisk: 60}
	})
	pod := w.pod("acme/tiny")
	w.podSays(pod, corev1.ConditionTrue, v1alpha1.PodReasonServed, "acme/tiny")
	live := w.market.Books().Live()
	if len(live) != 1 || !live[0].Spot || !strings.HasPrefix(live[0].Label, "gs-") || len(live[0].Env) > 0 {
		t.Fatalf("%+v; want one machine, spot and tagged", live)
	}
	// Taken back, it is replaced, and what it leaves is removed.
	if err := w.market.Reclaim(live[0].ID); err != nil {
		t.Fatal(err)
	}
	w.eventually("another machine serves", func() error {
		now := w.market.Books().Live()
		if len(now) != 1 || now[0].ID == live[0].ID {
			return fmt.Errorf("%+v", now)
		}
		return nil
	})
	w.podSays(pod, corev1.ConditionTrue, v1alpha1.PodReasonServed, "acme/tiny")
	w.remove(pod)
	w.eventually("nothing is left", func() error {
		if n := len(w.claims()); n > 0 {
			return fmt.Errorf("%d claims", n)
		}
		if left := cloud.Leftovers(); len(left) > 0 {
			return fmt.Errorf("%q", left)
		}
		return nil
	})
}
