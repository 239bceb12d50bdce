package operator_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/munhq/gpuscale/api/v1alpha1"
	"github.com/munhq/gpuscale/internal/cloudsim/market"
	simvast "github.com/munhq/gpuscale/internal/cloudsim/vastai"
)

// announced gives notice before a machine is taken.
func announced(notice time.Duration) option {
	return func(_ *world, m *market.Config, _ *simvast.Options) { m.Reclaim.Notice = notice }
}

// TestAnAnnouncedInterruption: the claim says so at once, a replacement is bought, and the request that runs is answered to
// its end before the machine goes.
func TestAnAnnouncedInterruption(t *testing.T) {
	w := start(t, []market.Offer{offer("1001"), offer("1002")}, announced(20*time.Second))
	w.pool(slow, func(p *v1alpha1.GPUNodePool) { p.Spec.Scaling.DrainTimeout.Duration = time.Minute })
	pod := w.pod("acme/tiny")
	w.podSays(pod, corev1.ConditionTrue, v1alpha1.PodReasonServed)
	claim := w.claims()[0]
	answer := w.caller(claim).stream("acme/tiny", 60)

	if err := w.market.Reclaim(w.live()[0].ID); err != nil {
		t.Fatal(err)
	}
	takenAt := w.live()[0].ReclaimAt
	w.event("GPUNodeClaim", v1alpha1.ReasonInterruptionNotice)
	w.eventually("a replacement is bought", func() error {
		if n := len(w.rented()); n != 2 {
			return fmt.Errorf("%d rented", n)
		}
		return nil
	})
	if time.Now().After(takenAt) {
		t.Error("the replacement was bought after the machine was taken")
	}
	if text := <-answer; !strings.Contains(text, "[DONE]") {
		t.Errorf("the request that ran was lost: %q", text[max(0, len(text)-100):])
	}
	w.failed(v1alpha1.ReasonInterruptionNotice, v1alpha1.CulpritOffer)
	w.podSays(pod, corev1.ConditionTrue, v1alpha1.PodReasonServed)
	w.rentedAtMost(2)
	w.machines("1001", "1002")
	end := w.watch.Ended()[0]
	for condition, reason := range map[string]string{v1alpha1.ConditionInterrupted: v1alpha1.ReasonInterruptionNotice,
		v1alpha1.ConditionDrained: v1alpha1.ReasonDrained, v1alpha1.ConditionInstanceGone: v1alpha1.ReasonGone} {
		if got := meta.FindStatusCondition(end.Status.Conditions, condition); got == nil || got.Reason != reason || got.Status != "True" {
			t.Errorf("%s is %+v, want %s", condition, got, reason)
		}
	}
	if at := end.Status.ReclaimAt; at == nil || takenAt.Sub(at.Time).Abs() > time.Second {
		t.Errorf("taken at %s, the claim says %v", takenAt, at)
	}
}

// TestAHostThatLeaves: the end of what it promised is no surprise. Its instance is drained before, and replaced.
func TestAHostThatLeaves(t *testing.T) {
	w := start(t, []market.Offer{offer("1001"), offer("1002")})
	w.pool(slow, func(p *v1alpha1.GPUNodePool) { p.Spec.Scaling.DrainTimeout.Duration = 20 * time.Second })
	pod := w.pod("acme/tiny")
	w.podSays(pod, corev1.ConditionTrue, v1alpha1.PodReasonServed)
	claim := w.claims()[0]
	answer := w.caller(claim).stream("acme/tiny", 60)

	leaves := time.Now().Add(20 * time.Second)
	if err := w.market.HostLeaves(w.live()[0].ID, leaves); err != nil {
		t.Fatal(err)
	}
	w.event("GPUNodeClaim", v1alpha1.ReasonInterruptionNotice)
	w.eventually("a replacement is bought", func() error {
		if n := len(w.rented()); n != 2 {
			return fmt.Errorf("%d rented", n)
		}
		return nil
	})
	if text := <-answer; !strings.Contains(text, "[DONE]") {
		t.Errorf("the request that ran was lost: %q", text[max(0, len(text)-100):])
	}
	w.failed(v1alpha1.ReasonInterruptionNotice, v1alpha1.CulpritOffer)
	w.podSays(pod, corev1.ConditionTrue, v1alpha1.PodReasonServed)
	w.rentedAtMost(2)
	w.machines("1001", "1002")
	if at := w.watch.Ended()[0].Status.ReclaimAt; at == nil || leaves.Sub(at.Time).Abs() > time.Second {
		t.Errorf("the host leaves at %s, the claim says %v", leaves, at)
	}
}

// TestAnInterruptionAtTheCeiling: the replacement waits until the machine is gone, and the pod says for which. The drain
// ends when the machine goes, whatever time the pool would give.
func TestAnInterruptionAtTheCeiling(t *testing.T) {
	w := start(t, []market.Offer{offer("1001"), offer("1002")}, announced(4*time.Second))
	w.pool(slow, func(p *v1alpha1.GPUNodePool) {
		p.Spec.Scaling.MaxNodes = 1
		p.Spec.Scaling.DrainTimeout.Duration = 10 * time.Minute
	})
	pod := w.pod("acme/tiny")
	w.podSays(pod, corev1.ConditionTrue, v1alpha1.PodReasonServed)
	claim := w.claims()[0]
	answer := w.caller(claim).stream("acme/tiny", 1000) // longer than the machine has

	if err := w.market.Reclaim(w.live()[0].ID); err != nil {
		t.Fatal(err)
	}
	w.podSays(pod, corev1.ConditionFalse, v1alpha1.PodReasonCeilingReached, "maxNodes 1", "until "+claim.Name, "interrupted")
	w.rentedAtMost(1)
	w.podSays(pod, corev1.ConditionTrue, v1alpha1.PodReasonServed)
	w.rentedAtMost(2)
	for _, in := range w.rented() {
		if in.ID == claim.Status.InstanceID && in.GoneAt.IsZero() {
			t.Errorf("the replacement serves and the interrupted instance is %s", in.State)
		}
	}
	if text := <-answer; strings.Contains(text, "[DONE]") {
		t.Error("a stream of 50 s ended within 4 s, which proves nothing")
	}
}
