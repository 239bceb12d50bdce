// Package pool keeps a GPUNodePool's conditions true and holds it until its last claim is gone: what was bought with a
// pool's credentials can only be given back with them.
package pool

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/munhq/gpuscale/api/v1alpha1"
	"github.com/munhq/gpuscale/internal/account"
	"github.com/munhq/gpuscale/internal/offers/rest"
	"github.com/munhq/gpuscale/internal/reserve"
	"github.com/munhq/gpuscale/pkg/gpu"
	"github.com/munhq/gpuscale/pkg/provider"
)

// Accounts gives the account that a pool entry's credentials open, as its Secret is now: what is said of a key that was
// replaced a moment ago would stand until the next Recheck.
type Accounts interface {
	For(ctx context.Context, ref account.Ref) (*account.Account, error)
}

// Reconciler is the pool controller. Its fields are set once, before SetupWithManager.
type Reconciler struct {
	Client client.Client
	// Reader reads past the cache: a pool is not let go on the word of a cache that has not seen its newest claim.
	Reader   client.Reader
	Accounts Accounts
	// Rests forgives what was repaired: an account whose credentials work again, a pool that was changed.
	Rests  *rest.Book
	Events events.EventRecorder
	Clock  clock.Clock
	// Recheck is how often credentials are tried again.
	Recheck time.Duration
}

// DefaultRecheck is what production uses.
const DefaultRecheck = time.Minute

// gather is how long changes of a pool's status and of its claims are gathered before its counts are written again: each
// write is as large as the pool has claims.
const gather = 500 * time.Millisecond

// SetupWithManager registers the controller: a pool is looked at at once when a person changes it, soon after it or one of
// its claims changed otherwise, and every Recheck, which is also how a Secret that appears later is found.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(mgr).Named("pool").
		For(&v1alpha1.GPUNodePool{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&v1alpha1.GPUNodePool{}, gathered()).
		Watches(&v1alpha1.GPUNodeClaim{}, gathered()).
		Complete(r)
}

// gathered leads to the pool that an object is, or is of.
func gathered() handler.EventHandler {
	type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]
	add := func(o client.Object, q queue) {
		name := o.GetName()
		if claim, ok := o.(*v1alpha1.GPUNodeClaim); ok {
			name = claim.Spec.Pool
		}
		q.AddAfter(reconcile.Request{NamespacedName: client.ObjectKey{Name: name}}, gather)
	}
	return handler.Funcs{
		CreateFunc:  func(_ context.Context, e event.CreateEvent, q queue) { add(e.Object, q) },
		UpdateFunc:  func(_ context.Context, e event.UpdateEvent, q queue) { add(e.ObjectNew, q) },
		DeleteFunc:  func(_ context.Context, e event.DeleteEvent, q queue) { add(e.Object, q) },
		GenericFunc: func(_ context.Context, e event.GenericEvent, q queue) { add(e.Object, q) },
	}
}

// Reconcile brings one pool's finalizer and conditions up to date.
func (r *Reconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	pool := &v1alpha1.GPUNodePool{}
	if err := r.Client.Get(ctx, req.NamespacedName, pool); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	claims, err := r.claims(ctx, pool.Name)
	if err != nil {
		return reconcile.Result{}, err
	}
	if !pool.DeletionTimestamp.IsZero() {
		return r.finish(ctx, pool, claims)
	}
	if !controllerutil.ContainsFinalizer(pool, v1alpha1.Finalizer) {
		before := pool.DeepCopy()
		controllerutil.AddFinalizer(pool, v1alpha1.Finalizer)
		if err := r.Client.Patch(ctx, pool, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})); err != nil {
			return reconcile.Result{}, client.IgnoreNotFound(err)
		}
	}
	before := pool.DeepCopy()
	r.assess(ctx, pool, claims)
	if v1alpha1.Equal(before.Status, pool.Status) {
		return reconcile.Result{RequeueAfter: r.Recheck}, nil
	}
	// An update, whose version is checked: a reservation made meanwhile must not be overwritten by an older list. Not a
	// patch, which would leave out the zeros that a new pool's columns show.
	if err := r.Client.Status().Update(ctx, pool); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	r.announce(before, pool)
	return reconcile.Result{RequeueAfter: r.Recheck}, nil
}

// claims are the cache's own and only read.
func (r *Reconciler) claims(ctx context.Context, pool string) ([]*v1alpha1.GPUNodeClaim, error) {
	var list v1alpha1.GPUNodeClaimList
	if err := r.Client.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		return nil, err
	}
	var own []*v1alpha1.GPUNodeClaim
	for i := range list.Items {
		if c := &list.Items[i]; c.Spec.Pool == pool {
			own = append(own, c)
		}
	}
	return own, nil
}

// finish ends the claims of a deleted pool and lets the pool go after the last of them.
func (r *Reconciler) finish(ctx context.Context, pool *v1alpha1.GPUNodePool, claims []*v1alpha1.GPUNodeClaim) (reconcile.Result, error) {
	for _, c := range claims {
		if c.DeletionTimestamp.IsZero() {
			if err := client.IgnoreNotFound(r.Client.Delete(ctx, c.DeepCopy())); err != nil {
				return reconcile.Result{}, err
			}
		}
	}
	if len(claims) > 0 {
		return reconcile.Result{}, nil // each claim's end leads back here
	}
	held, err := r.held(ctx, pool)
	if err != nil || held {
		return reconcile.Result{RequeueAfter: heldRecheck}, err
	}
	before := pool.DeepCopy()
	if !controllerutil.RemoveFinalizer(pool, v1alpha1.Finalizer) {
		return reconcile.Result{}, nil
	}
	return reconcile.Result{}, client.IgnoreNotFound(
		r.Client.Patch(ctx, pool, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})))
}

// heldRecheck is how soon a deleted pool is looked at again that only the cache lets go.
const heldRecheck = time.Second

// held reports whether something still needs the pool's credentials: a claim that the cache has not seen, or an instance
// that no claim accounts for and that the sweep is ending.
func (r *Reconciler) held(ctx context.Context, pool *v1alpha1.GPUNodePool) (bool, error) {
	if reserve.HasSurplus(pool) {
		return true, nil
	}
	var list v1alpha1.GPUNodeClaimList
	err := r.Reader.List(ctx, &list)
	if apierrors.IsNotFound(err) || meta.IsNoMatchError(err) {
		return false, nil // where there is no such kind there is no claim
	}
	return slices.ContainsFunc(list.Items, func(c v1alpha1.GPUNodeClaim) bool { return c.Spec.Pool == pool.Name }), err
}

// assess derives the conditions.
func (r *Reconciler) assess(ctx context.Context, pool *v1alpha1.GPUNodePool, claims []*v1alpha1.GPUNodeClaim) {
	if pool.Status.ObservedGeneration != pool.Generation {
		r.Rests.Forgive(rest.PoolKey(pool.Name))
	}
	pool.Status.ObservedGeneration = pool.Generation
	pool.Status.ReadyNodes = 0
	for _, c := range claims {
		if c.DeletionTimestamp.IsZero() && meta.IsStatusConditionTrue(c.Status.Conditions, v1alpha1.ConditionReady) {
			pool.Status.ReadyNodes++
		}
	}
	creds, usable := r.credentials(ctx, pool)
	set(pool, v1alpha1.ConditionCredentialsValid, creds)
	set(pool, v1alpha1.ConditionLimitsReached, limits(pool))
	ready := finding{metav1.ConditionTrue, v1alpha1.ReasonPoolReady, "at least one provider can be bought from"}
	if usable == 0 {
		ready = finding{metav1.ConditionFalse, v1alpha1.ReasonPoolNotReady, creds.message}
	} else if odd := unknownGPUs(pool); odd != "" {
		ready = finding{metav1.ConditionFalse, v1alpha1.ReasonUnknownGPUType, odd}
	}
	set(pool, v1alpha1.ConditionReady, ready)
}

type finding struct {
	status  metav1.ConditionStatus
	reason  string
	message string
}

func set(pool *v1alpha1.GPUNodePool, condition string, f finding) {
	meta.SetStatusCondition(&pool.Status.Conditions, metav1.Condition{Type: condition, Status: f.status, Reason: f.reason,
		Message: f.message, ObservedGeneration: pool.Generation})
}

// credentials tries every entry and counts those that work. The condition is False when any of them is bad, and names
// it: an entry that silently buys nothing is found on the bill of a dearer one.
func (r *Reconciler) credentials(ctx context.Context, pool *v1alpha1.GPUNodePool) (all finding, usable int) {
	var bad []string
	worst := ""
	for i, entry := range pool.Spec.Providers {
		acct, err := r.Accounts.For(ctx, account.RefOf(entry))
		if err == nil {
			err = acct.Check(ctx)
		}
		reason := reasonOf(err)
		if reason == "" {
			r.Rests.Forgive(rest.AccountKey(acct.Provider, acct.Fingerprint))
			usable++
			continue
		}
		bad = append(bad, fmt.Sprintf("spec.providers[%d] (%s): %v", i, entry.Name, err))
		if worst == "" || worst == v1alpha1.ReasonNotChecked {
			worst = reason
		}
	}
	switch worst {
	case "":
		return finding{metav1.ConditionTrue, v1alpha1.ReasonCredentialsGood, "every provider accepts its credentials"}, usable
	case v1alpha1.ReasonNotChecked:
		return finding{metav1.ConditionUnknown, worst, strings.Join(bad, "; ")}, usable
	}
	return finding{metav1.ConditionFalse, worst, strings.Join(bad, "; ")}, usable
}

// reasonOf maps what went wrong with an account to a condition's reason; empty for an account that works.
func reasonOf(err error) string {
	var (
		secret  *account.SecretMissingError
		key     *account.KeyMissingError
		unknown *account.UnsupportedError
	)
	switch {
	case err == nil:
		return ""
	case errors.As(err, &secret):
		return v1alpha1.ReasonSecretMissing
	case errors.As(err, &key):
		return v1alpha1.ReasonKeyMissing
	case errors.As(err, &unknown):
		return v1alpha1.ReasonUnsupported
	case provider.KindOf(err) == provider.Unauthorized:
		return v1alpha1.ReasonCredentialsBad
	case provider.KindOf(err) == provider.NoBalance:
		return v1alpha1.ReasonNoBalance
	}
	return v1alpha1.ReasonNotChecked
}

// limits says which ceiling leaves no room for anything more.
func limits(pool *v1alpha1.GPUNodePool) finding {
	s, l, max := pool.Status, pool.Spec.Limits, pool.Spec.Scaling.MaxNodes
	switch {
	case s.Nodes >= max:
		return finding{metav1.ConditionTrue, v1alpha1.ReasonMaxNodesReached, fmt.Sprintf("%d of %d nodes reserved", s.Nodes, max)}
	case l.MaxGPUs != nil && s.GPUs >= *l.MaxGPUs:
		return finding{metav1.ConditionTrue, v1alpha1.ReasonMaxGPUsReached, fmt.Sprintf("%d of %d GPUs reserved", s.GPUs, *l.MaxGPUs)}
	case !s.DollarsPerHour.Less(l.MaxCostPerHour):
		return finding{metav1.ConditionTrue, v1alpha1.ReasonMaxCostReached,
			fmt.Sprintf("%s of %s $/h reserved", s.DollarsPerHour, l.MaxCostPerHour)}
	}
	return finding{metav1.ConditionFalse, v1alpha1.ReasonWithinLimits, fmt.Sprintf("%s of %s $/h reserved",
		s.DollarsPerHour, l.MaxCostPerHour)}
}

// unknownGPUs names entries of gpuTypes that match no GPU there is, which are typing errors.
func unknownGPUs(pool *v1alpha1.GPUNodePool) string {
	var odd []string
	for i, e := range pool.Spec.Requirements.GPUTypes {
		if len(gpu.Expand(e)) == 0 {
			odd = append(odd, fmt.Sprintf("spec.requirements.gpuTypes[%d]: %q is no GPU known here", i, e))
		}
	}
	if len(odd) == 0 {
		return ""
	}
	return strings.Join(odd, "; ") + "; names look like \"RTX 4090\", \"A100\" or \"H100-SXM\""
}

// announce makes an event of every condition that turned.
func (r *Reconciler) announce(before, after *v1alpha1.GPUNodePool) {
	for _, c := range after.Status.Conditions {
		old := meta.FindStatusCondition(before.Status.Conditions, c.Type)
		if old != nil && old.Status == c.Status && old.Reason == c.Reason {
			continue
		}
		kind := corev1.EventTypeNormal
		if (c.Status == metav1.ConditionFalse) != (c.Type == v1alpha1.ConditionLimitsReached) {
			kind = corev1.EventTypeWarning
		}
		r.Events.Eventf(after, nil, kind, c.Reason, "Check", "%s: %s", c.Type, c.Message)
	}
}
