package operator

import (
	"reflect"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	toolscache "k8s.io/client-go/tools/cache"

	"github.com/munhq/gpuscale/api/v1alpha1"
	"github.com/munhq/gpuscale/internal/demand"
)

// owned is metadata with an owner above it.
func owned(name, kind, above string) metav1.ObjectMeta {
	yes := true
	return metav1.ObjectMeta{Namespace: "ns", Name: name, UID: "uid-of-x", ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "m"}},
		Labels: map[string]string{"pod-template-hash": "abc"}, CreationTimestamp: metav1.NewTime(time.Unix(1e9, 0)),
		OwnerReferences: []metav1.OwnerReference{{Kind: kind, Name: above, UID: "uid-of-x", Controller: &yes}}}
}

// whole are a pod that asks for all that demand reads, and its ReplicaSet.
func whole() (*corev1.Pod, *appsv1.ReplicaSet) {
	pod := &corev1.Pod{ObjectMeta: owned("d-abc-1", "ReplicaSet", "d-abc")}
	pod.Annotations = map[string]string{v1alpha1.AnnotationGPUVRAM: "24", "other": "kept"}
	engine := corev1.Container{Name: "engine", Image: "vllm/vllm-openai:v1", Command: []string{"vllm", "serve", "$(MODEL)"},
		Args: []string{"--tensor-parallel-size", "2"}, Env: []corev1.EnvVar{{Name: "MODEL", Value: "acme/m"}},
		Resources:    corev1.ResourceRequirements{Limits: corev1.ResourceList{demand.ResourceGPU: resource.MustParse("2")}},
		VolumeMounts: []corev1.VolumeMount{{Name: "v"}}, Ports: []corev1.ContainerPort{{ContainerPort: 8000}}}
	pod.Spec = corev1.PodSpec{SchedulingGates: []corev1.PodSchedulingGate{{Name: v1alpha1.SchedulingGateCapacity}},
		Containers: []corev1.Container{{Name: "sidecar", Image: "proxy"}, engine},
		Volumes:    []corev1.Volume{{Name: "v"}}, Tolerations: []corev1.Toleration{{Key: "k"}}}
	pod.Status = corev1.PodStatus{Phase: corev1.PodPending, PodIP: "1.2.3.4",
		Conditions: []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: "SchedulingGated"}}}
	set := &appsv1.ReplicaSet{ObjectMeta: owned("d-abc", "Deployment", "d")}
	set.Annotations = map[string]string{"deployment.kubernetes.io/revision": "7"}
	set.Spec.Template.Spec = pod.Spec
	return pod, set
}

func TestWhatIsNotCachedChangesNoDemand(t *testing.T) {
	pool := &v1alpha1.GPUNodePool{ObjectMeta: metav1.ObjectMeta{Name: "p"}}
	read := func(p *corev1.Pod, s *appsv1.ReplicaSet) demand.Result {
		return demand.Workloads(demand.Input{Pods: []*corev1.Pod{p}, ReplicaSets: []*appsv1.ReplicaSet{s}, Pools: []*v1alpha1.GPUNodePool{pool}})
	}
	want := read(whole())
	if len(want.Workloads) != 1 || want.Workloads[0].Key != "acme/m" {
		t.Fatalf("the whole pod asks for %+v", want)
	}
	pod, set := whole()
	for _, o := range []any{pod, set} {
		if got, err := slim(o); err != nil || got != o {
			t.Fatal(err)
		}
	}
	if got := read(pod, set); !reflect.DeepEqual(got, want) {
		t.Errorf("slim: %+v\nwhole: %+v", got, want)
	}
	if pod.Spec.Volumes != nil || pod.Spec.Containers[1].Ports != nil || pod.Status.PodIP != "" || pod.ManagedFields != nil || set.Spec.Template.Spec.Containers != nil {
		t.Errorf("kept: %+v %+v", pod, set)
	}
	gone := toolscache.DeletedFinalStateUnknown{Key: "k"}
	if got, err := slim(gone); err != nil || got != gone {
		t.Errorf("%v %v", got, err)
	}
}
