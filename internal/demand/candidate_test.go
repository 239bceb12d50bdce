package demand

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestIsCandidate(t *testing.T) {
	annotatedPod := func() podWrapper { return makePod("a").note("model", "m") }
	for name, c := range map[string]struct {
		pod  podWrapper
		all  bool
		want bool
	}{
		"annotated and unschedulable":     {pod: annotatedPod(), want: true},
		"a misspelt annotation counts":    {pod: makePod("a").note("gpu-vran", "24"), want: true},
		"GPU alone spends nothing":        {pod: makePod("a")},
		"GPU alone with the opt-in":       {pod: makePod("a"), all: true, want: true},
		"no GPU with the opt-in":          {pod: makePod("a").noGPU(), all: true},
		"annotated without a GPU limit":   {pod: annotatedPod().noGPU(), want: true},
		"our own annotation is no demand": {pod: makePod("a").note("drain", "x")},
		"bound":                           {pod: annotatedPod().but(func(p *corev1.Pod) { p.Spec.NodeName = "n" })},
		"being deleted":                   {pod: annotatedPod().but(func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{} })},
		"finished":                        {pod: annotatedPod().but(func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded })},
		"failed":                          {pod: annotatedPod().but(func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed })},
		"not looked at yet":               {pod: annotatedPod().but(func(p *corev1.Pod) { p.Status.Conditions = nil })},
		"at our gate": {pod: annotatedPod().but(func(p *corev1.Pod) {
			p.Status.Conditions = nil
			p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "gpuscale.io/capacity"}}
		}), want: true},
		"at another gate": {pod: annotatedPod().but(func(p *corev1.Pod) {
			p.Status.Conditions[0].Reason = corev1.PodReasonSchedulingGated
			p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "kueue.x-k8s.io/admission"}}
		})},
	} {
		if got := IsCandidate(c.pod.Pod, Options{AllGPUPods: c.all}); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}
