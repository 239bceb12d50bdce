package provisioning

import (
	"context"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/munhq/gpuscale/api/v1alpha1"
	"github.com/munhq/gpuscale/internal/demand"
	"github.com/munhq/gpuscale/internal/planner"
)

// TestAConditionIsWrittenWhole: another replica, or an older self, wrote a condition that the cache does not show yet.
func TestAConditionIsWrittenWhole(t *testing.T) {
	ctx := context.Background()
	with := func(status corev1.ConditionStatus, reason string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p", UID: "1"},
			Status: corev1.PodStatus{Conditions: []corev1.PodCondition{
				{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable},
				{Type: v1alpha1.PodConditionServed, Status: status, Reason: reason, Message: reason}}}}
	}
	c := fake.NewClientBuilder().WithStatusSubresource(&corev1.Pod{}).WithObjects(with(corev1.ConditionTrue, v1alpha1.PodReasonServed)).Build()
	r := &Reconciler{Client: c, Clock: clocktesting.NewFakeClock(time.Unix(1e9, 0)), Events: events.NewFakeRecorder(10)}
	stale := with(corev1.ConditionFalse, v1alpha1.PodReasonPlanned)
	if _, err := r.tellPod(ctx, stale, verdict{reason: v1alpha1.PodReasonBooting, message: "loading"}); err != nil {
		t.Fatal(err)
	}
	got := &corev1.Pod{}
	if err := c.Get(ctx, client.ObjectKeyFromObject(stale), got); err != nil {
		t.Fatal(err)
	}
	if o := condition(got); o.Status != corev1.ConditionFalse || o.Reason != v1alpha1.PodReasonBooting || o.Message != "loading" {
		t.Errorf("written over another's: %+v", o)
	}
	if len(got.Status.Conditions) != 2 {
		t.Errorf("conditions of others are touched: %+v", got.Status.Conditions)
	}
}

// TestAReservationWithoutItsClaimIsNamed: a process that died between the two leaves a pod that nothing is bought for until
// the reservation is dropped.
func TestAReservationWithoutItsClaimIsNamed(t *testing.T) {
	pool := &v1alpha1.GPUNodePool{}
	pool.Status.Reservations = []v1alpha1.Reservation{{Claim: "c-0", Workloads: []string{"acme/tiny"}}}
	w := &world{pools: []*v1alpha1.GPUNodePool{pool}}
	says := func(key string) string {
		return w.withoutClaim(demand.Workload{Key: key}, planner.Plan{}).message
	}
	if got := says("acme/tiny"); !strings.Contains(got, "claim c-0 has a reservation and is not there") {
		t.Errorf("it is told %q", got)
	}
	if got := says("acme/other"); got != waitingForWindow {
		t.Errorf("another is told %q", got)
	}
	w.claims = []*v1alpha1.GPUNodeClaim{{ObjectMeta: metav1.ObjectMeta{Name: "c-0"}}}
	if got := says("acme/tiny"); got != waitingForWindow {
		t.Errorf("with its claim there it is told %q", got)
	}
}
