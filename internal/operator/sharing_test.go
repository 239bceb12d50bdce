package operator_test

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/munhq/gpuscale/api/v1alpha1"
	"github.com/munhq/gpuscale/internal/cloudsim/market"
)

// TestPodsShareAnInstanceOfSeveralGPUsWhereThatIsCheaper: three models, one of them small, are put on the one
// machine with three GPUs, and not on machines of their own that come to more. Each is served, and answers.
func TestPodsShareAnInstanceOfSeveralGPUsWhereThatIsCheaper(t *testing.T) {
	offers := offers(4) // at 0.15 each
	big := offer("2001")
	big.GPUs, big.MachineGPUs, big.MinBid, big.OnDemand = 3, 3, market.USD(0.25), market.USD(0.40)
	w := start(t, append(offers, big))
	w.pool(func(p *v1alpha1.GPUNodePool) { p.Spec.Scaling.BatchWindow.Duration = 2 * time.Second })
	pods := map[string]*corev1.Pod{"acme/a": w.pod("acme/a"), "acme/b": w.pod("acme/b"),
		"acme/small": w.pod("acme/small", v1alpha1.AnnotationGPUVRAM, "8")}
	for model, pod := range pods {
		w.podSays(pod, corev1.ConditionTrue, v1alpha1.PodReasonServed, model)
	}
	w.rentedAtMost(1)
	w.machines("2001")
	claim := w.claims()[0]
	if n := len(claim.Spec.Placements); n != len(pods) {
		t.Errorf("%d placements", n)
	}
	caller := w.caller(claim)
	for model := range pods {
		if text := <-caller.stream(model, 2); !strings.Contains(text, "[DONE]") {
			t.Errorf("%s answers %q", model, text)
		}
	}
	if peak := w.market.Books().Peak().CommittedPerHour; peak > market.USD(0.45) { // three of their own come to more
		t.Errorf("%s $/h", peak)
	}
}
