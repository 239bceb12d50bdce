package demand

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"

	"github.com/munhq/gpuscale/api/v1alpha1"
)

// MayAsk reports whether a pod could ever be a candidate, whatever its state: for watches that leave out the pods of
// everyone else. A pod that stops being a candidate still may ask, so its end is seen.
func MayAsk(pod *corev1.Pod, o Options) bool {
	return annotated(pod) || o.AllGPUPods && gpuLimit(pod) > 0
}

// ChangesDemand reports whether an update of a pod may change what is asked for: it asked or asks now, and differs in more
// than what gpuscale tells it. For watches: a herd that is told something must not have everything looked at once more for
// every pod in it.
func ChangesDemand(before, after *corev1.Pod, o Options) bool {
	if !MayAsk(before, o) && !MayAsk(after, o) {
		return false
	}
	return !apiequality.Semantic.DeepEqual(untold(before), untold(after))
}

// untold is a pod without what changes when gpuscale writes its condition.
func untold(pod *corev1.Pod) corev1.Pod {
	p := *pod
	p.ResourceVersion, p.ManagedFields = "", nil
	p.Status.Conditions = slices.DeleteFunc(slices.Clone(p.Status.Conditions), func(c corev1.PodCondition) bool {
		return c.Type == v1alpha1.PodConditionServed
	})
	return p
}
