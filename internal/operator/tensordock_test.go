package operator_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/munhq/gpuscale/api/v1alpha1"
	"github.com/munhq/gpuscale/internal/cloudsim/market"
	simtd "github.com/munhq/gpuscale/internal/cloudsim/tensordock"
	simvast "github.com/munhq/gpuscale/internal/cloudsim/vastai"
	"github.com/munhq/gpuscale/pkg/money"
)

// TestAVMThatStopsIsEndedAndReplaced: at a provider where a stopped machine is billed on, one whose GPU was given to
// another and one that turned itself off are both destroyed, and another serves.
func TestAVMThatStopsIsEndedAndReplaced(t *testing.T) {
	var cloud *simtd.Server
	w := start(t, []market.Offer{offer("1"), offer("2"), offer("3")}, func(w *world, c *market.Config, _ *simvast.Options) {
		c.Provider, c.InstanceID = "tensordock", simtd.InstanceID
		w.api = func(m *market.Market) http.Handler {
			cloud = simtd.New(m, simtd.Options{Tokens: []string{simKey}, LimitScale: -1, NoPublicIPs: true, PortsAfter: 100 * time.Millisecond})
			return cloud
		}
	})
	w.pool(func(p *v1alpha1.GPUNodePool) {
		p.Spec.Providers[0].Name, p.Spec.Providers[0].CapacityType = "tensordock", "on-demand"
		p.Spec.Providers[0].MaxPrice = money.MustParse("1.00")
	})
	pod := w.pod("acme/tiny")
	w.podSays(pod, corev1.ConditionTrue, v1alpha1.PodReasonServed, "acme/tiny")
	for what, happens := range map[string]func(id string) error{
		"its GPU was given to another": func(id string) error { return w.market.Reclaim(id) },
		"it stopped":                   func(id string) error { return cloud.StopInstance(id) },
	} {
		live := w.market.Books().Live()
		if len(live) != 1 || live[0].Spot || !strings.HasPrefix(live[0].Label, "gs-") || len(live[0].Env) > 0 {
			t.Fatalf("%+v; want one machine, on demand and tagged", live)
		}
		if err := happens(live[0].ID); err != nil {
			t.Fatal(err)
		}
		w.eventually("another machine serves once "+what, func() error {
			now := w.market.Books().Live()
			if len(now) != 1 || now[0].ID == live[0].ID {
				return fmt.Errorf("%+v", now)
			}
			return nil
		})
		w.podSays(pod, corev1.ConditionTrue, v1alpha1.PodReasonServed, "acme/tiny")
	}
	w.remove(pod)
	w.eventually("nothing is left", func() error {
		if n := len(w.claims()); n > 0 {
			return fmt.Errorf("%d claims", n)
		}
		return nil
	})
}
