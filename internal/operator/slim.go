package operator

import (
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
)

// slim takes out of an object what no controller reads, before it is cached: every pod and ReplicaSet of the cluster is
// there, most of which ask for nothing. Writes are patches of what a controller itself changes, so that nothing of it is
// missed.
func slim(obj any) (any, error) {
	if o, err := meta.Accessor(obj); err == nil {
		o.SetManagedFields(nil)
	}
	switch o := obj.(type) {
	case *corev1.Pod:
		o.Spec = corev1.PodSpec{NodeName: o.Spec.NodeName, SchedulingGates: o.Spec.SchedulingGates, Containers: slimContainers(o.Spec.Containers)}
		o.Status = corev1.PodStatus{Phase: o.Status.Phase, Conditions: o.Status.Conditions}
	case *appsv1.ReplicaSet:
		o.Spec, o.Status = appsv1.ReplicaSetSpec{}, appsv1.ReplicaSetStatus{}
	}
	return obj, nil
}

// slimContainers keep what is known of an engine: which image it is, its command line, and what it asks for.
func slimContainers(containers []corev1.Container) []corev1.Container {
	out := make([]corev1.Container, len(containers))
	for i, c := range containers {
		out[i] = corev1.Container{Name: c.Name, Image: c.Image, Command: c.Command, Args: c.Args, Env: c.Env, Resources: c.Resources}
	}
	return out
}
