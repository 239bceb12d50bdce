package demand

import (
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/munhq/gpuscale/api/v1alpha1"
)

var epoch = time.Date(2026, 5, 1, 10, 0, 0, 0, time.UTC)

// podWrapper builds a pod that is demand as it stands: unschedulable, with one container that asks for one GPU.
type podWrapper struct{ *corev1.Pod }

func makePod(name string) podWrapper {
	p := podWrapper{&corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: name, UID: types.UID(name),
			CreationTimestamp: metav1.NewTime(epoch), Annotations: map[string]string{}},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "vllm/vllm-openai:latest"}}},
		Status: corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{{
			Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable}}},
	}}
	return p.gpus("1")
}

func (p podWrapper) gpus(n string) podWrapper {
	p.Spec.Containers[0].Resources.Limits = corev1.ResourceList{ResourceGPU: resource.MustParse(n)}
	return p
}

func (p podWrapper) noGPU() podWrapper {
	p.Spec.Containers[0].Resources.Limits = nil
	return p
}

func (p podWrapper) note(name, value string) podWrapper {
	p.Annotations["gpuscale.io/"+name] = value
	return p
}

func (p podWrapper) command(words ...string) podWrapper {
	p.Spec.Containers[0].Command = words
	return p
}

func (p podWrapper) args(words ...string) podWrapper {
	p.Spec.Containers[0].Args = words
	return p
}

func (p podWrapper) env(name, value string) podWrapper {
	p.Spec.Containers[0].Env = append(p.Spec.Containers[0].Env, corev1.EnvVar{Name: name, Value: value})
	return p
}

func (p podWrapper) secretEnv(name string) podWrapper {
	p.Spec.Containers[0].Env = append(p.Spec.Containers[0].Env, corev1.EnvVar{Name: name, ValueFrom: &corev1.EnvVarSource{}})
	return p
}

func (p podWrapper) image(image string) podWrapper {
	p.Spec.Containers[0].Image = image
	return p
}

func (p podWrapper) in(namespace string) podWrapper { p.Namespace = namespace; return p }

func (p podWrapper) age(after time.Duration) podWrapper {
	p.CreationTimestamp = metav1.NewTime(epoch.Add(after))
	return p
}

func (p podWrapper) ownedBy(set, hash string) podWrapper {
	yes := true
	p.OwnerReferences = []metav1.OwnerReference{{Kind: "ReplicaSet", Name: set, UID: types.UID(set), Controller: &yes}}
	p.Labels = map[string]string{appsv1.DefaultDeploymentUniqueLabelKey: hash}
	return p
}

// but applies a change in place, for what has no method.
func (p podWrapper) but(f func(*corev1.Pod)) podWrapper { f(p.Pod); return p }

func replicaSet(name, deployment, revision string) *appsv1.ReplicaSet {
	yes := true
	return &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: name, UID: types.UID(name),
		Annotations:     map[string]string{revisionAnnotation: revision},
		OwnerReferences: []metav1.OwnerReference{{Kind: "Deployment", Name: deployment, Controller: &yes}}}}
}

func makePool(name string, models ...v1alpha1.PoolModel) *v1alpha1.GPUNodePool {
	return &v1alpha1.GPUNodePool{
		ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(epoch)},
		Spec:       v1alpha1.GPUNodePoolSpec{Models: models},
	}
}

func unwrap(pods ...podWrapper) []*corev1.Pod {
	out := make([]*corev1.Pod, len(pods))
	for i, p := range pods {
		out[i] = p.Pod
	}
	return out
}
