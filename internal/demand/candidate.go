package demand

import (
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/munhq/gpuscale/api/v1alpha1"
)

// ResourceGPU is the extended resource by which a container asks for whole GPUs.
const ResourceGPU corev1.ResourceName = "nvidia.com/gpu"

// Options say what counts as demand.
type Options struct {
	// AllGPUPods lets pods that ask for nvidia.com/gpu and carry no annotation of ours spend money.
	AllGPUPods bool
}

// IsCandidate reports whether a pod asks for capacity: it is unbound, stays, says that it is ours, and cannot be
// scheduled or waits at our gate. A candidate can still turn out to be a Problem.
func IsCandidate(pod *corev1.Pod, o Options) bool {
	if pod.Spec.NodeName != "" || pod.DeletionTimestamp != nil {
		return false
	}
	if pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
		return false
	}
	if !MayAsk(pod, o) {
		return false
	}
	return gated(pod) || unschedulable(pod)
}

// annotated counts unknown names under our prefix too: a pod whose only annotation is misspelt must hear of it.
func annotated(pod *corev1.Pod) bool {
	for name := range pod.Annotations {
		if strings.HasPrefix(name, v1alpha1.AnnotationPrefix) && !ownAnnotations[name] {
			return true
		}
	}
	return false
}

func gated(pod *corev1.Pod) bool {
	for _, g := range pod.Spec.SchedulingGates {
		if g.Name == v1alpha1.SchedulingGateCapacity {
			return true
		}
	}
	return false
}

func unschedulable(pod *corev1.Pod) bool {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled {
			return c.Status == corev1.ConditionFalse && c.Reason == corev1.PodReasonUnschedulable
		}
	}
	return false
}

// gpuLimit is the most GPUs that one container of the pod asks for.
func gpuLimit(pod *corev1.Pod) int {
	most := 0
	for i := range pod.Spec.Containers {
		most = max(most, containerGPUs(&pod.Spec.Containers[i]))
	}
	return most
}

func containerGPUs(c *corev1.Container) int {
	if q, ok := c.Resources.Limits[ResourceGPU]; ok {
		return int(q.Value())
	}
	q := c.Resources.Requests[ResourceGPU]
	return int(q.Value())
}
