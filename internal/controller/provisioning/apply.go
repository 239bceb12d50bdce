package provisioning

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/munhq/gpuscale/api/v1alpha1"
	"github.com/munhq/gpuscale/internal/planner"
	"github.com/munhq/gpuscale/internal/reserve"
)

// apply makes the plan's reservations, pool by pool, and then their claims. A pool that changed since it was planned
// from discards that pool's part of the plan: it is planned again from what is there now. It reports whether anything
// was reserved.
func (r *Reconciler) apply(ctx context.Context, plan planner.Plan) (bool, error) {
	byPool := map[string][]planner.Purchase{}
	for _, p := range plan.Purchases {
		byPool[p.Pool] = append(byPool[p.Pool], p)
	}
	applied := false
	for name, purchases := range byPool {
		ok, err := r.reserve(ctx, name, purchases)
		if err != nil {
			return applied, err
		}
		if !ok {
			continue
		}
		applied = true
		for _, p := range purchases {
			if err := r.createClaim(ctx, p); err != nil {
				return applied, err
			}
		}
	}
	return applied, nil
}

// reserve writes all of one pool's reservations in one update under the version that was planned from.
func (r *Reconciler) reserve(ctx context.Context, name string, purchases []planner.Purchase) (bool, error) {
	pool := &v1alpha1.GPUNodePool{}
	if err := r.Reader.Get(ctx, client.ObjectKey{Name: name}, pool); err != nil {
		return false, client.IgnoreNotFound(err)
	}
	if pool.ResourceVersion != purchases[0].PoolVersion {
		log.FromContext(ctx).Info("pool changed since it was planned from; planning again", "pool", name)
		return false, nil
	}
	for _, p := range purchases {
		if err := reserve.Add(pool, p.Reservation); err != nil {
			// The planner and this check disagree: nothing is bought on a plan that breaks a ceiling.
			log.FromContext(ctx).Error(err, "plan discarded", "pool", name, "claim", p.ClaimName)
			return false, nil
		}
	}
	if err := r.Client.Status().Update(ctx, pool); err != nil {
		return false, ignoreConflict(err)
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
