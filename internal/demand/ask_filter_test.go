package demand

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/munhq/gpuscale/api/v1alpha1"
)

func TestChangesDemand(t *testing.T) {
	asks := func(edit func(*corev1.Pod)) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "a", ResourceVersion: "1",
			Annotations: map[string]string{v1alpha1.AnnotationModel: "acme/tiny"}}}
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable}}
		edit(p)
		return p
	}
	before := asks(func(*corev1.Pod) {})
	for name, c := range map[string]struct {
		edit func(*corev1.Pod)
		want bool
	}{
		"nothing": {func(*corev1.Pod) {}, false},
		"told": {func(p *corev1.Pod) {
			p.ResourceVersion = "2"
			p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: v1alpha1.PodConditionServed, Reason: "Planned"})
		}, false},
		"scheduled":    {func(p *corev1.Pod) { p.Status.Conditions[0].Status = corev1.ConditionTrue }, true},
		"bound":        {func(p *corev1.Pod) { p.Spec.NodeName = "n" }, true},
		"ends":         {func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{} }, true},
		"asks else":    {func(p *corev1.Pod) { p.Annotations[v1alpha1.AnnotationModel] = "acme/other" }, true},
		"asks no more": {func(p *corev1.Pod) { p.Annotations = nil }, true},
	} {
		if got := ChangesDemand(before, asks(c.edit), Options{}); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
	if len(before.Status.Conditions) != 1 {
		t.Error("the pod itself was changed")
	}
	silent := asks(func(p *corev1.Pod) { p.Annotations = nil })
	if ChangesDemand(silent, asks(func(p *corev1.Pod) { p.Annotations, p.Spec.NodeName = nil, "n" }), Options{}) {
		t.Error("a pod that asks for nothing changes demand")
	}
}
