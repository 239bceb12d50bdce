package operator_test

import (
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/munhq/gpuscale/api/v1alpha1"
	"github.com/munhq/gpuscale/internal/cloudsim/market"
)

// TestAPodBuysServesAndGivesBack walks the whole life of one claim, up and down.
func TestAPodBuysServesAndGivesBack(t *testing.T) {
	w := start(t, []market.Offer{offer("1001"), offer("1002")})
	pool := w.pool()
	pod := w.pod("acme/tiny")
	w.podSays(pod, corev1.ConditionTrue, v1alpha1.PodReasonServed, "acme/tiny")

	live := w.market.Books().Live()
	if len(live) != 1 || !live[0].Spot {
		t.Fatalf("%d live instances, want one, spot", len(live))
	}
	w.eventually("the reservation falls to the rate that is paid", func() error {
		if err := w.client.Get(w.ctx, client.ObjectKeyFromObject(pool), pool); err != nil {
			return err
		}
		claims := w.claims()
		if len(claims) != 1 || len(pool.Status.Reservations) != 1 || pool.Status.ReadyNodes != 1 {
			return fmt.Errorf("%d claims, %d reservations, %d ready", len(claims), len(pool.Status.Reservations), pool.Status.ReadyNodes)
		}
		if rate := claims[0].Status.DollarsPerHour; pool.Status.DollarsPerHour != *rate {
			return fmt.Errorf("pool has %s, the claim pays %s", pool.Status.DollarsPerHour, rate)
		}
		return nil
	})
	name := w.claims()[0].Name

	w.remove(pod)
	w.eventually("the claim is gone", func() error {
		if n := len(w.claims()); n > 0 {
			return fmt.Errorf("%d claims", n)
		}
		return nil
	})
	want := []v1alpha1.Phase{v1alpha1.PhasePending, v1alpha1.PhaseProvisioning, v1alpha1.PhaseBootstrapping, v1alpha1.PhaseReady,
		v1alpha1.PhaseDraining, v1alpha1.PhaseTerminated}
	if got := w.watch.PhasesOf(name); !slices.Equal(got, want) {
		t.Errorf("phases %v, want %v", got, want)
	}
	end := w.watch.Ended()[0]
	if !meta.IsStatusConditionTrue(end.Status.Conditions, v1alpha1.ConditionDrained) || !end.Status.DollarsPerHour.IsZero() {
		t.Errorf("ended with %+v", end.Status)
	}
	w.eventually("the pool owes nothing", func() error {
		if err := w.client.Get(w.ctx, client.ObjectKeyFromObject(pool), pool); err != nil {
			return err
		}
		if len(pool.Status.Reservations) > 0 || !pool.Status.DollarsPerHour.IsZero() {
			return fmt.Errorf("%+v", pool.Status.Reservations)
		}
		return nil
	})
	if b := w.market.Books(); b.Rented != 1 || len(b.Live()) != 0 || b.Spent == 0 {
		t.Errorf("the market rented %d, has %d live, charged %s", b.Rented, len(b.Live()), b.Spent)
	}
	for _, r := range []string{v1alpha1.ReasonPlanned, v1alpha1.ReasonInstanceCreated, v1alpha1.ReasonServing, v1alpha1.ReasonIdle, v1alpha1.ReasonDrained, v1alpha1.ReasonGone} {
		w.event("GPUNodeClaim", r)
	}
}

// TestEachFailureEndsInItsPlace drives every way in which a purchase or a boot can fail.
func TestEachFailureEndsInItsPlace(t *testing.T) {
	t.Run("no offers", func(t *testing.T) {
		dear := offer("1001")
		dear.MinBid = market.USD(2)
		w := start(t, []market.Offer{dear})
		pool := w.pool()
		pod := w.pod("acme/tiny")
		w.podSays(pod, corev1.ConditionFalse, v1alpha1.PodReasonNoOffers, "1 over $0.50")
		w.poolSays(pool, v1alpha1.ConditionOffersAvailable, "False", v1alpha1.ReasonNoOffers, "1 over $0.50")
		w.rentedAtMost(0)
	})
	t.Run("offer gone", func(t *testing.T) {
		w := start(t, []market.Offer{offer("1001"), offer("1002")}, soldOnce)
		w.pool()
		pod := w.pod("acme/tiny")
		w.podSays(pod, corev1.ConditionTrue, v1alpha1.PodReasonServed)
		w.event("GPUNodeClaim", v1alpha1.ReasonOfferGone)
		w.rentedAtMost(1)
	})
	t.Run("create unclear", func(t *testing.T) {
		w := start(t, []market.Offer{offer("1001"), offer("1002")})
		w.pool()
		w.market.LoseNextAnswer("create")
		pod := w.pod("acme/tiny")
		w.podSays(pod, corev1.ConditionTrue, v1alpha1.PodReasonServed)
		w.event("GPUNodeClaim", v1alpha1.ReasonCreateUnclear)
		w.rentedAtMost(1)
	})
	t.Run("create failed, nothing rented", func(t *testing.T) {
		w := start(t, []market.Offer{offer("1001"), offer("1002")})
		w.pool()
		w.market.FailNext("create", market.ServerError)
		pod := w.pod("acme/tiny")
		w.event("GPUNodeClaim", v1alpha1.ReasonCreateUnclear)
		w.podSays(pod, corev1.ConditionTrue, v1alpha1.PodReasonServed)
		w.rentedAtMost(1)
	})
	for _, broken := range []struct {
		how    market.Breakage
		reason string
	}{
		{market.DiesBooting, v1alpha1.ReasonDiedWhileBooting},
		{market.StuckLoading, v1alpha1.ReasonBootTimeout},
		{market.NoAddress, v1alpha1.ReasonBootTimeout},
		{market.Unreachable, v1alpha1.ReasonAgentUnreachable},
		{market.WrongGPU, v1alpha1.ReasonGPUMismatch},
	} {
		t.Run(string(broken.how), func(t *testing.T) {
			bad := offer("1001")
			bad.Broken, bad.MinBid = broken.how, market.USD(0.10)
			w := start(t, []market.Offer{bad, offer("1002")})
			w.pool(func(p *v1alpha1.GPUNodePool) { p.Spec.Scaling.BootstrapTimeout.Duration = bootFor(broken.reason) })
			pod := w.pod("acme/tiny")
			w.podSays(pod, corev1.ConditionTrue, v1alpha1.PodReasonServed)
			w.failed(broken.reason, v1alpha1.CulpritOffer)
			w.event("GPUNodeClaim", broken.reason)
			w.machines("1001", "1002") // the culprit rests, so the second purchase is elsewhere
		})
	}
	for model, exit := range map[string]string{"sim/oom": "OutOfMemory", "sim/not-found": "WeightsNotFound"} {
		t.Run(model, func(t *testing.T) {
			w := start(t, []market.Offer{offer("1001"), offer("1002"), offer("1003")})
			w.pool()
			pod := w.pod(model)
			w.podSays(pod, corev1.ConditionFalse, v1alpha1.PodReasonResting, exit)
			w.failed(v1alpha1.ReasonModelFailed, v1alpha1.CulpritWorkload)
			w.rentedAtMost(1)
		})
	}
	t.Run("destroy fails", func(t *testing.T) {
		w := start(t, []market.Offer{offer("1001")})
		w.pool()
		pod := w.pod("acme/tiny")
		w.podSays(pod, corev1.ConditionTrue, v1alpha1.PodReasonServed)
		w.market.DestroyRefused(4)
		w.remove(pod)
		w.event("GPUNodeClaim", v1alpha1.ReasonDestroyFailed)
		w.eventually("the instance ends all the same", func() error {
			if n := len(w.market.Books().Live()); n > 0 {
				return fmt.Errorf("%d live", n)
			}
			return nil
		})
	})
	t.Run("interrupted while serving", func(t *testing.T) {
		w := start(t, []market.Offer{offer("1001"), offer("1002")})
		w.pool()
		pod := w.pod("acme/tiny")
		w.podSays(pod, corev1.ConditionTrue, v1alpha1.PodReasonServed)
		if err := w.market.Reclaim(w.market.Books().Live()[0].ID); err != nil {
			t.Fatal(err)
		}
		w.failed(v1alpha1.ReasonInterrupted, v1alpha1.CulpritOffer)
		w.podSays(pod, corev1.ConditionTrue, v1alpha1.PodReasonServed)
		w.rentedAtMost(2)
	})
}
