package provisioning

import (
	"context"
	"errors"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/munhq/gpuscale/api/v1alpha1"
	"github.com/munhq/gpuscale/internal/placement"
	"github.com/munhq/gpuscale/internal/planner"
	"github.com/munhq/gpuscale/internal/reserve"
)

// apply places what needs no purchase, and then makes the plan's reservations, pool by pool, and their claims. A claim
// that changed since it was planned from discards the whole plan: demand that it meets by now would be bought for again.
// A pool that promised something new, or that is told otherwise, discards that pool's part of the plan: it is planned again
// from what is there now. It reports whether anything was reserved or placed, and whether something was discarded.
func (r *Reconciler) apply(ctx context.Context, w *world, plan planner.Plan) (applied, stale bool, err error) {
	byPool := map[string][]planner.Purchase{}
	for _, p := range plan.Purchases {
		byPool[p.Pool] = append(byPool[p.Pool], p)
	}
	applied = len(plan.Bindings) > 0
	if stale, err := r.place(ctx, plan.Bindings); stale || err != nil {
		return false, stale, err
	}
	for _, pool := range w.pools {
		purchases := byPool[pool.Name]
		if len(purchases) == 0 {
			continue
		}
		ok, err := r.reserve(ctx, pool, purchases)
		if err != nil {
			return applied, stale, err
		}
		if !ok {
			stale = true
			continue
		}
		applied = true
		if err := r.createClaims(ctx, purchases); err != nil {
			return applied, stale, err
		}
	}
	return applied, stale, nil
}

// makers is how many claims are made at once, so that the last of a herd is not bought as many round trips later.
const makers = 16

// createClaims makes what was reserved. One that fails keeps none of the others: their reservations are made.
func (r *Reconciler) createClaims(ctx context.Context, purchases []planner.Purchase) error {
	errs := make([]error, len(purchases))
	var wg sync.WaitGroup
	slots := make(chan struct{}, makers)
	for i, p := range purchases {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			errs[i] = r.createClaim(ctx, p)
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// place writes the plan's bindings and remembers what the cache has to show before anything is planned again.
func (r *Reconciler) place(ctx context.Context, bindings []planner.Binding) (stale bool, err error) {
	written, stale, err := placement.Applier{Client: r.Client, Reader: r.Reader}.Apply(ctx, bindings)
	for _, c := range written {
		if r.placed == nil {
			r.placed = map[types.UID]int64{}
		}
		r.placed[c.UID] = c.Generation
		for _, b := range bindings {
			if b.Claim == c.Name {
				r.Events.Eventf(c, nil, corev1.EventTypeNormal, v1alpha1.ReasonPlanned, "Place", "%s: %s", b.Placement.Workload, b.Reason)
			}
		}
	}
	if stale && err == nil {
		log.FromContext(ctx).Info("a claim changed since it was planned from; planning again")
	}
	return stale, err
}

// behind reports whether the cache does not show yet what was placed: demand that is met would look unmet.
func (r *Reconciler) behind(w *world) bool {
	seen := map[types.UID]int64{}
	for _, c := range w.claims {
		seen[c.UID] = c.Generation
	}
	for uid, generation := range r.placed {
		if g, ok := seen[uid]; ok && g < generation {
			return true
		}
		delete(r.placed, uid) // shown, or gone
	}
	return false
}

// tries is how often reservations are written before the plan counts as old: others write the pool for each claim that
// starts or ends.
const tries = 10

// reserve writes all of one pool's reservations in one update, under the version of a pool for which the plan holds.
func (r *Reconciler) reserve(ctx context.Context, planned *v1alpha1.GPUNodePool, purchases []planner.Purchase) (bool, error) {
	pool := planned.DeepCopy()
	for try := 1; ; try++ {
		for _, p := range purchases {
			if err := reserve.Add(pool, p.Reservation); err != nil {
				// The planner and this check disagree: nothing is bought on a plan that breaks a ceiling.
				log.FromContext(ctx).Error(err, "plan discarded", "pool", pool.Name, "claim", p.ClaimName)
				return false, nil
			}
		}
		err := r.Client.Status().Update(ctx, pool)
		if err == nil {
			break
		}
		if !apierrors.IsConflict(err) || try == tries {
			return false, ignoreConflict(client.IgnoreNotFound(err))
		}
		pool = &v1alpha1.GPUNodePool{}
		if err := r.Reader.Get(ctx, client.ObjectKeyFromObject(planned), pool); err != nil {
			return false, client.IgnoreNotFound(err)
		}
		if !reserve.PromisesNothingNew(planned, pool) {
			log.FromContext(ctx).Info("pool changed since it was planned from; planning again", "pool", pool.Name)
			return false, nil
		}
	}
	for _, p := range purchases {
		r.Events.Eventf(pool, nil, corev1.EventTypeNormal, v1alpha1.ReasonReserved, "Reserve",
			"%s $/h and %d×GPU for claim %s: %s", p.Reservation.DollarsPerHour, p.Reservation.GPUs, p.ClaimName, p.Reason)
	}
	return true, nil
}

func (r *Reconciler) createClaim(ctx context.Context, p planner.Purchase) error {
	claim := &v1alpha1.GPUNodeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: p.ClaimName, Labels: map[string]string{v1alpha1.LabelPool: p.Pool},
			Finalizers: []string{v1alpha1.Finalizer}},
		Spec: p.Spec,
	}
	err := r.Client.Create(ctx, claim)
	if apierrors.IsAlreadyExists(err) {
		return nil // another planner saw the same demand
	}
	if err != nil {
		return err // the reservation is dropped after a minute if the claim never comes
	}
	r.Events.Eventf(claim, nil, corev1.EventTypeNormal, v1alpha1.ReasonPlanned, "Plan", "%s", p.Reason)
	return nil
}
