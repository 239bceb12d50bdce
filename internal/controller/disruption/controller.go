// Package disruption ends nodes that nobody needs. Each method (a file) is asked in turn whether it ends a claim; the
// decisions themselves are the planner's. It only ever marks a claim and deletes it: draining and destroying are the
// claim controller's.
package disruption

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/munhq/gpuscale/api/v1alpha1"
	"github.com/munhq/gpuscale/internal/agentapi"
	"github.com/munhq/gpuscale/internal/demand"
)

// Workers asks agents for their account of requests.
type Workers interface {
	Status(ctx context.Context, endpoint, claimUID string) (agentapi.Status, error)
}

// Traffic gives the replicas that the gateways' traffic keeps, by model, whether a model that is not among them is known
// to have none, and an event when that changes.
type Traffic interface {
	Keeping() (replicas map[string]int, known bool)
	Changes() <-chan event.GenericEvent
}

// Reconciler is the disruption controller. Its fields are set once, before SetupWithManager.
type Reconciler struct {
	Client client.Client
	// Reader reads past the cache.
	Reader  client.Reader
	Workers Workers
	Events  events.EventRecorder
	Clock   clock.Clock
	// Demand are the options of the demand rules, the same as provisioning's.
	Demand demand.Options
	// Traffic is what gateways ask for.
	Traffic Traffic
	// Uptime is how long this process has run, by a clock that never jumps.
	Uptime func() time.Duration
	// AgentTimeout bounds one call to an agent.
	AgentTimeout time.Duration

	shared   shared
	patience patience
}

// SetupWithManager registers the controller: a change of demand anywhere looks at every claim again. What changes no
// demand, as the pods of everyone else and what pods and pools are told, does not: with a thousand claims each such look
// is a thousand.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager) error {
	all := handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, o client.Object) []reconcile.Request {
		r.changed()
		return r.everyClaim(ctx, o)
	})
	return ctrl.NewControllerManagedBy(mgr).Named("disruption").
		For(&v1alpha1.GPUNodeClaim{}).
		Watches(&corev1.Pod{}, all, builder.WithPredicates(r.demandChanges())).
		Watches(&v1alpha1.GPUNodePool{}, all, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		WatchesRawSource(source.Channel(r.Traffic.Changes(), handler.EnqueueRequestsFromMapFunc(
			func(ctx context.Context, o client.Object) []reconcile.Request {
				r.outdated()
				return r.everyClaim(ctx, o)
			}))).
		WithOptions(controller.Options{MaxConcurrentReconciles: 8}).
		Complete(r)
}

func (r *Reconciler) demandChanges() predicate.Predicate {
	asks := func(o client.Object) bool {
		pod, ok := o.(*corev1.Pod)
		return ok && demand.MayAsk(pod, r.Demand)
	}
	return predicate.Funcs{
		CreateFunc: func(e event.CreateEvent) bool { return asks(e.Object) },
		DeleteFunc: func(e event.DeleteEvent) bool { return asks(e.Object) },
		UpdateFunc: func(e event.UpdateEvent) bool {
			before, ok := e.ObjectOld.(*corev1.Pod)
			after, also := e.ObjectNew.(*corev1.Pod)
			return ok && also && demand.ChangesDemand(before, after, r.Demand)
		},
	}
}

func (r *Reconciler) everyClaim(ctx context.Context, _ client.Object) []reconcile.Request {
	var claims v1alpha1.GPUNodeClaimList
	if err := r.Client.List(ctx, &claims); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "claims not listed")
		return nil
	}
	out := make([]reconcile.Request, len(claims.Items))
	for i, c := range claims.Items {
		out[i].Name = c.Name
	}
	return out
}

// Reconcile asks the methods in turn.
func (r *Reconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	claim := &v1alpha1.GPUNodeClaim{}
	if err := r.Client.Get(ctx, req.NamespacedName, claim); err != nil {
		r.patience.forget(req.Name)
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if !claim.DeletionTimestamp.IsZero() || claim.Status.Failure != nil {
		return reconcile.Result{}, nil
	}
	return r.emptiness(ctx, claim)
}
