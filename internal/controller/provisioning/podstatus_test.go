package provisioning

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/munhq/gpuscale/api/v1alpha1"
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
