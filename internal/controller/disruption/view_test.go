package disruption

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"
	testclock "k8s.io/utils/clock/testing"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/munhq/gpuscale/api/v1alpha1"
	"github.com/munhq/gpuscale/internal/demand"
)

// TestAnEndOfDemandIsSeenWithinAViewsAge: a pod goes just after its claim was looked at, and nothing else happens. The
// claim has bought nothing yet and must not.
func TestAnEndOfDemandIsSeenWithinAViewsAge(t *testing.T) {
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{scheme.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(s); err != nil {
			t.Fatal(err)
		}
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "asks", Annotations: map[string]string{v1alpha1.AnnotationModel: "acme/m"}},
		Spec: corev1.PodSpec{SchedulingGates: []corev1.PodSchedulingGate{{Name: v1alpha1.SchedulingGateCapacity}}}}
	claim := &v1alpha1.GPUNodeClaim{ObjectMeta: metav1.ObjectMeta{Name: "c"},
		Spec: v1alpha1.GPUNodeClaimSpec{Pool: "p", Placements: []v1alpha1.Placement{{Workload: "acme/m"}}}}
	c := fake.NewClientBuilder().WithScheme(s).WithObjects(pod, claim, &v1alpha1.GPUNodePool{ObjectMeta: metav1.ObjectMeta{Name: "p"}}).Build()
	clock := testclock.NewFakeClock(time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC))
	r := &Reconciler{Client: c, Clock: clock, Events: events.NewFakeRecorder(10), Traffic: noTraffic{}, Demand: demand.Options{}}
	look := func() time.Duration {
		t.Helper()
		res, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(claim)})
		if err != nil {
			t.Fatal(err)
		}
		return res.RequeueAfter
	}
	if wait := look(); wait != 0 {
		t.Fatalf("looked at again after %s, though nothing changed", wait)
	}
	clock.Step(viewAge / 2)
	if err := c.Delete(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	r.changed()
	wait := look()
	if wait <= 0 || wait > viewAge {
		t.Fatalf("looked at again after %s", wait)
	}
	clock.Step(wait)
	look()
	if err := c.Get(t.Context(), client.ObjectKeyFromObject(claim), claim); !apierrors.IsNotFound(err) {
		t.Errorf("the claim is there (%v)", err)
	}
}

type noTraffic struct{}

func (noTraffic) Keeping() (map[string]int, bool)    { return nil, true }
func (noTraffic) Changes() <-chan event.GenericEvent { return nil }
