package operator_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/munhq/gpuscale/api/v1alpha1"
	"github.com/munhq/gpuscale/internal/cloudsim/market"
)

// TestAModelWhoseDemandEndedLeavesAnInstanceThatOthersKeep: two models share the one instance that there is, one's demand
// ends, its engine goes a cooldown later, the other serves on undisturbed, and a third has the room.
func TestAModelWhoseDemandEndedLeavesAnInstanceThatOthersKeep(t *testing.T) {
	w := start(t, []market.Offer{offer("1001")})
	w.pool(func(p *v1alpha1.GPUNodePool) { p.Spec.Scaling.BatchWindow.Duration = time.Second })
	stays := w.pod("acme/stays", v1alpha1.AnnotationGPUVRAM, "8")
	goes := w.pod("acme/goes", v1alpha1.AnnotationGPUVRAM, "8")
	w.podSays(stays, corev1.ConditionTrue, v1alpha1.PodReasonServed)
	w.podSays(goes, corev1.ConditionTrue, v1alpha1.PodReasonServed)
	third := w.pod("acme/third", v1alpha1.AnnotationGPUVRAM, "8")
	w.podSays(third, corev1.ConditionFalse, v1alpha1.PodReasonNoOffers)

	before := w.claims()[0]
	state := func(c v1alpha1.GPUNodeClaim, model string) *v1alpha1.ModelStatus {
		i := slices.IndexFunc(c.Status.Models, func(m v1alpha1.ModelStatus) bool { return m.Name == model })
		if i < 0 {
			return nil
		}
		return &c.Status.Models[i]
	}
	ended := time.Now()
	w.remove(goes)
	w.eventually("its engine is gone", func() error {
		c := w.claims()[0]
		if m := state(c, "acme/goes"); m != nil {
			return fmt.Errorf("%+v, unwanted %+v", m, c.Status.Unwanted)
		}
		return nil
	})
	if took := time.Since(ended); took < 2*time.Second {
		t.Errorf("it went after %s, before its cooldown of 2s", took)
	}
	w.event("GPUNodeClaim", v1alpha1.ReasonDemandEnded)
	w.podSays(third, corev1.ConditionTrue, v1alpha1.PodReasonServed)

	after := w.claims()[0]
	if after.UID != before.UID || len(w.rented()) != 1 {
		t.Errorf("another claim, or %d rented", len(w.rented()))
	}
	if was, is := state(before, "acme/stays"), state(after, "acme/stays"); is == nil || is.State != v1alpha1.ModelReady || !was.Since.Equal(is.Since) {
		t.Errorf("the other one was %+v and is %+v", was, is)
	}
	was, is := meta.FindStatusCondition(before.Status.Conditions, v1alpha1.ConditionReady), meta.FindStatusCondition(after.Status.Conditions, v1alpha1.ConditionReady)
	if is == nil || !was.LastTransitionTime.Equal(&is.LastTransitionTime) {
		t.Errorf("Ready was %+v and is %+v", was, is)
	}
	w.neverSaid(stays, v1alpha1.PodReasonLost, v1alpha1.PodReasonResting)
}

// TestAModelThatNobodyDeclaresEndsUnderTraffic: requests that never stop keep no node whose model no pod and no pool
// declares any more. It has one cooldown, then drains, then ends.
func TestAModelThatNobodyDeclaresEndsUnderTraffic(t *testing.T) {
	w := start(t, []market.Offer{offer("1001")})
	w.pool(slow)
	pod := w.pod("acme/tiny")
	w.podSays(pod, corev1.ConditionTrue, v1alpha1.PodReasonServed)
	answer := w.caller(w.claims()[0]).stream("acme/tiny", 1000) // 50 s
	ended := time.Now()
	w.remove(pod)
	w.eventually("it ends", func() error {
		if c := w.claims(); len(c) > 0 && c[0].DeletionTimestamp == nil {
			return fmt.Errorf("it serves on")
		}
		return nil
	})
	if took := time.Since(ended); took < 2*time.Second {
		t.Errorf("it began to end after %s, before its cooldown of 2s", took)
	}
	select {
	case <-answer:
		t.Error("the stream was over before the node began to end")
	default:
	}
	w.eventually("it is given back", func() error {
		if n := len(w.live()); n > 0 {
			return fmt.Errorf("%d live", n)
		}
		return nil
	})
	w.event("GPUNodeClaim", v1alpha1.ReasonDrainTimeout)
	<-answer
}
