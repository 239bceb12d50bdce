package provisioning

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/munhq/gpuscale/internal/demand"
)

// gather is how long changes of claims and pools are gathered before everything is looked at again. Each look is as long
// as there are pods and claims, and a herd of claims changes hundreds of times a second; nobody waits for a purchase
// meanwhile, since demand wakes the controller at once and the batch window by its own timer.
const gather = 200 * time.Millisecond

// soon leads any event to the one request.
func soon(after time.Duration) handler.EventHandler {
	type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]
	return handler.Funcs{
		CreateFunc:  func(_ context.Context, _ event.CreateEvent, q queue) { q.AddAfter(everything, after) },
		UpdateFunc:  func(_ context.Context, _ event.UpdateEvent, q queue) { q.AddAfter(everything, after) },
		DeleteFunc:  func(_ context.Context, _ event.DeleteEvent, q queue) { q.AddAfter(everything, after) },
		GenericFunc: func(_ context.Context, _ event.GenericEvent, q queue) { q.AddAfter(everything, after) },
	}
}

// podsThatAsk leaves out the pods of everyone else, which are most of them, and changes that are our own words to pods.
func podsThatAsk(o demand.Options) builder.WatchesOption {
	asks := func(obj client.Object) bool {
		pod, ok := obj.(*corev1.Pod)
		return ok && demand.MayAsk(pod, o)
	}
	return builder.WithPredicates(predicate.Funcs{
		CreateFunc: func(e event.CreateEvent) bool { return asks(e.Object) },
		DeleteFunc: func(e event.DeleteEvent) bool { return asks(e.Object) },
		UpdateFunc: func(e event.UpdateEvent) bool {
			before, ok := e.ObjectOld.(*corev1.Pod)
			after, also := e.ObjectNew.(*corev1.Pod)
			return ok && also && demand.ChangesDemand(before, after, o)
		},
	})
}
