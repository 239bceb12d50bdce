package provisioning

import (
	"context"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/munhq/gpuscale/api/v1alpha1"
	"github.com/munhq/gpuscale/internal/offers"
	"github.com/munhq/gpuscale/internal/planner"
)

// noteAvailability says on each pool whether its last search found anything that the pool itself allows, apart from
// what any workload asks. It is written when the answer turns, not when the numbers do.
func (r *Reconciler) noteAvailability(ctx context.Context, w *world, markets []planner.Market) {
	for _, cached := range w.pools {
		if !cached.DeletionTimestamp.IsZero() {
			continue
		}
		c := r.availability(cached, markets)
		old := meta.FindStatusCondition(cached.Status.Conditions, c.Type)
		if old != nil && old.Status == c.Status && old.Reason == c.Reason && sameTroubles(old.Message, c.Message) {
			continue
		}
		if err := r.writeCondition(ctx, cached.Name, c); err != nil {
			// A word for people; the next search says it again.
			log.FromContext(ctx).V(1).Info("availability not written", "pool", cached.Name, "error", err.Error())
		}
	}
}

// writeCondition reads the pool past the cache: reservations made a moment ago have changed its version, and the claims
// that they are for change it meanwhile.
func (r *Reconciler) writeCondition(ctx context.Context, name string, c metav1.Condition) error {
	return retry.RetryOnConflict(retry.DefaultRetry, func() error {
		pool := &v1alpha1.GPUNodePool{}
		if err := r.Reader.Get(ctx, client.ObjectKey{Name: name}, pool); err != nil {
			return client.IgnoreNotFound(err)
		}
		before := pool.DeepCopy()
		meta.SetStatusCondition(&pool.Status.Conditions, c)
		return r.Client.Status().Patch(ctx, pool, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
	})
}

func (r *Reconciler) availability(pool *v1alpha1.GPUNodePool, markets []planner.Market) metav1.Condition {
	var (
		why             offers.Explanation
		troubles, names []string
		now             = r.Clock.Now()
		rests           = r.Rests.View(now)
	)
	for _, m := range markets {
		if m.Pool != pool.Name {
			continue
		}
		entry := pool.Spec.Providers[m.Entry]
		if m.Err != "" {
			troubles, names = append(troubles, m.Err), append(names, entry.Name+" "+entry.CapacityType)
			continue
		}
		need, err := offers.NeedOf(entry, pool.Spec.Requirements, m.Account)
		if err != nil {
			troubles = append(troubles, err.Error())
			continue
		}
		_, e := offers.Select(m.Offers, need, rests, now)
		why = why.Merge(e)
	}
	c := metav1.Condition{Type: v1alpha1.ConditionOffersAvailable, ObservedGeneration: pool.Generation,
		Message: strings.Join(append([]string{why.String()}, troubles...), "; ")}
	switch {
	case why.Kept() > 0 && len(names) > 0:
		c.Status, c.Reason = metav1.ConditionTrue, v1alpha1.ReasonSomeOffersFound
		c.Message = fmt.Sprintf("%s%s%s; %s", strings.Join(names, ", "), noAnswer, strings.Join(troubles, "; "), why)
	case why.Kept() > 0:
		c.Status, c.Reason = metav1.ConditionTrue, v1alpha1.ReasonOffersFound
	case len(troubles) > 0:
		c.Status, c.Reason = metav1.ConditionUnknown, v1alpha1.ReasonSearchFailed
		c.Message = strings.Join(troubles, "; ")
	default:
		c.Status, c.Reason = metav1.ConditionFalse, v1alpha1.ReasonNoOffers
		c.Message = fmt.Sprintf("nothing that the pool allows: %s", why)
	}
	return c
}

// noAnswer ends the list of those that gave none.
const noAnswer = " gave no offers: "

// sameTroubles reports whether two messages name the same entries that gave no offers.
func sameTroubles(old, fresh string) bool {
	a, _, foundA := strings.Cut(old, noAnswer)
	b, _, foundB := strings.Cut(fresh, noAnswer)
	return foundA == foundB && (!foundA || a == b)
}
