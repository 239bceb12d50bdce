package operator_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/munhq/gpuscale/api/v1alpha1"
	"github.com/munhq/gpuscale/internal/cloudsim/market"
)

// TestAModelThatCanNeverLoadStopsAfterTwoMachines crashes wherever it is started: two machines are tried, and then the
// model rests with its engine's last words on the pod, while a good model is served.
func TestAModelThatCanNeverLoadStopsAfterTwoMachines(t *testing.T) {
	w := start(t, []market.Offer{offer("1001"), offer("1002"), offer("1003"), offer("1004")})
	w.pool()
	bad := w.pod("sim/load-error")
	w.podSays(bad, corev1.ConditionFalse, v1alpha1.PodReasonResting, "rests until")
	if n := len(w.rented()); n < 1 || n > 2 {
		t.Errorf("%d machines were tried, want one or two", n)
	}
	before := len(w.rented())
	w.podSays(w.pod("acme/tiny"), corev1.ConditionTrue, v1alpha1.PodReasonServed)
	w.rentedAtMost(before + 1)
}
