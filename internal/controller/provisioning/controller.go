// Package provisioning turns unmet demand into reservations and claims. It observes, asks the planner, and applies the
// plan in the one order that is safe: the reservation, in a single status update that carries the version of the pool
// the plan was made from, and then the claim.
//
// It decides nothing itself and buys nothing: buying is the claim controller's, under the reservation made here.
package provisioning

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/munhq/gpuscale/api/v1alpha1"
	"github.com/munhq/gpuscale/internal/account"
	"github.com/munhq/gpuscale/internal/demand"
	"github.com/munhq/gpuscale/internal/offers/rest"
	"github.com/munhq/gpuscale/internal/planner"
)

// Accounts gives the account that a pool entry's credentials open.
type Accounts interface {
	For(ctx context.Context, ref account.Ref) (*account.Account, error)
}

// Traffic gives the replicas that may be bought for the gateways' traffic, by model, and an event when they change.
type Traffic interface {
	Buying() map[string]int
	Changes() <-chan event.GenericEvent
}

// Reconciler is the provisioning controller. All demand is planned together, so there is one request and one worker.
// Its fields are set once, before SetupWithManager.
type Reconciler struct {
	Client client.Client
	// Reader reads past the cache.
	Reader   client.Reader
	Accounts Accounts
	Rests    *rest.Book
	Events   events.EventRecorder
	Clock    clock.Clock
	// Demand are the options of the demand rules (--all-gpu-pods).
	Demand demand.Options
	// Traffic is what gateways ask for.
	Traffic Traffic
	// Replan is how soon unmet demand is planned again when nothing else happens.
	Replan time.Duration
	// SearchTimeout bounds the wait for the slowest provider: the others' offers are not held up for longer, and one that
	// is known to take longer is not waited for.
	SearchTimeout time.Duration
	// OrphanAge is how long a reservation waits for its claim to be made.
	OrphanAge time.Duration
	// History tells what was bought within the last hour, and Recall fills Rests, by processes before this one.
	History History
	Recall  func(ctx context.Context) error

	state
}

// DefaultReplan and DefaultSearchTimeout are what production uses.
const (
	DefaultReplan        = 15 * time.Second
	DefaultSearchTimeout = 10 * time.Second
)

// state is what one worker remembers between requests.
type state struct {
	// windowSince is when the first unmet pod was seen; zero while no window is open.
	windowSince time.Time
	purchases   purchases
	written     map[types.UID]podNote
	// said are the remarks that were made about what still exists.
	said map[string]bool
	// placed are the generations of claims that replicas were placed on, until the cache shows them.
	placed map[types.UID]int64
}

// catchUp is how soon the cache is looked at again when it is behind what was just written.
const catchUp = 20 * time.Millisecond

var everything = reconcile.Request{NamespacedName: types.NamespacedName{Name: "everything"}}

// SetupWithManager registers the controller: any pod that may ask, any pool and any claim leads to the same request.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(mgr).Named("provisioning").
		Watches(&corev1.Pod{}, soon(0), podsThatAsk(r.Demand)).
		Watches(&v1alpha1.GPUNodePool{}, soon(gather)).
		Watches(&v1alpha1.GPUNodeClaim{}, soon(gather)).
		WatchesRawSource(source.Channel(r.Traffic.Changes(), soon(0))).
		WithOptions(controller.Options{MaxConcurrentReconciles: 1}).
		Complete(r)
}

// Reconcile plans all demand once.
func (r *Reconciler) Reconcile(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
	w, err := r.observe(ctx)
	if err != nil {
		return reconcile.Result{}, err
	}
	if r.behind(w) {
		return reconcile.Result{RequeueAfter: catchUp}, nil
	}
	if changed, err := r.tidy(ctx, w); err != nil || changed {
		return reconcile.Result{RequeueAfter: time.Millisecond}, client.IgnoreNotFound(err)
	}
	looked := r.Clock.Now()
	wait, plan, err := r.plan(ctx, w)
	if err != nil {
		return reconcile.Result{}, err
	}
	if err := r.tell(ctx, w, plan); err != nil {
		return reconcile.Result{}, err
	}
	if wait > 0 { // A window does not stay open for longer because many pods had to be told of it.
		wait = max(wait-r.Clock.Since(looked), time.Millisecond)
	}
	if due, ok := w.orphanDue(r.Clock.Now(), r.OrphanAge); ok && (wait == 0 || due < wait) {
		wait = due
	}
	return reconcile.Result{RequeueAfter: wait}, nil
}

// plan waits for the batch window, then searches, plans and applies. It returns when to look again (0: when something
// changes). What is urgent is planned at once and by itself: the others' window goes on.
func (r *Reconciler) plan(ctx context.Context, w *world) (time.Duration, planner.Plan, error) {
	now := r.Clock.Now()
	waiting, urgent := planner.Missing(w.snapshot(now, nil, r))
	left := r.window(w, now, len(waiting) > 0)
	switch {
	case len(waiting)+len(urgent) == 0:
		return 0, planner.Plan{}, nil
	case left > 0 && len(urgent) == 0:
		return left, planner.Plan{}, nil
	case left > 0:
		w = w.only(urgent)
	}
	markets := r.search(ctx, w)
	plan := planner.Make(w.snapshot(r.Clock.Now(), markets, r))
	applied, stale, err := r.apply(ctx, w, plan)
	if err != nil {
		return 0, plan, err
	}
	if stale && len(urgent) > 0 {
		return catchUp, plan, nil // somebody waits for an answer
	}
	// After the reservations: this write would change the version that they are made against.
	r.noteAvailability(ctx, w, markets)
	again := r.again(plan, now)
	if left > 0 {
		return sooner(again, left), plan, nil
	}
	if applied {
		r.windowSince = time.Time{}
	}
	return again, plan, nil
}

// window is how long the batch window is still open. Unmet demand that waits for it opens it.
func (r *Reconciler) window(w *world, now time.Time, unmet bool) time.Duration {
	if !unmet {
		r.windowSince = time.Time{}
		return 0
	}
	if r.windowSince.IsZero() {
		r.windowSince = now
	}
	return w.batchWindow() - now.Sub(r.windowSince)
}

// sooner is the shorter of two waits, of which 0 is none.
func sooner(a, b time.Duration) time.Duration {
	if a == 0 {
		return b
	}
	return min(a, b)
}

// again is when a plan with unmet demand is worth another try.
func (r *Reconciler) again(p planner.Plan, now time.Time) time.Duration {
	if len(p.Unmet) == 0 {
		return 0
	}
	wait := r.Replan
	for _, u := range p.Unmet {
		if left := u.RetryAt.Sub(now); !u.RetryAt.IsZero() && left > 0 && left < wait {
			wait = left
		}
	}
	return wait
}
