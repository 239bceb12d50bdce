package demand

import corev1 "k8s.io/api/core/v1"

// MayAsk reports whether a pod could ever be a candidate, whatever its state: for watches that leave out the pods of
// everyone else. A pod that stops being a candidate still may ask, so its end is seen.
func MayAsk(pod *corev1.Pod, o Options) bool {
	return annotated(pod) || o.AllGPUPods && gpuLimit(pod) > 0
}
