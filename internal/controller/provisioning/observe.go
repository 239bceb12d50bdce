package provisioning

import (
	"context"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/munhq/gpuscale/api/v1alpha1"
	"github.com/munhq/gpuscale/internal/account"
	"github.com/munhq/gpuscale/internal/demand"
	"github.com/munhq/gpuscale/internal/offers"
	"github.com/munhq/gpuscale/internal/planner"
	"github.com/munhq/gpuscale/internal/reserve"
	"github.com/munhq/gpuscale/internal/search"
	"github.com/munhq/gpuscale/pkg/provider"
)

// world is everything that is observed for one plan.
type world struct {
	pools  []*v1alpha1.GPUNodePool
	claims []*v1alpha1.GPUNodeClaim
	pods   []*corev1.Pod
	demand demand.Result
}

func (r *Reconciler) observe(ctx context.Context) (*world, error) {
	var (
		pods   corev1.PodList
		sets   appsv1.ReplicaSetList
		pools  v1alpha1.GPUNodePoolList
		claims v1alpha1.GPUNodeClaimList
	)
	for _, list := range []client.ObjectList{&pods, &sets, &pools, &claims} {
		// They are the cache's own, since copies of thousands would be most of what a plan costs. What is written is a copy.
		if err := r.Client.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
			return nil, err
		}
	}
	w := &world{pools: pointers(pools.Items), claims: pointers(claims.Items)}
	for i := range pods.Items {
		if demand.MayAsk(&pods.Items[i], r.Demand) {
			w.pods = append(w.pods, &pods.Items[i])
		}
	}
	for _, recall := range []func() error{
		func() error { return r.purchases.recall(ctx, r.History, r.Clock.Now().Add(-time.Hour)) },
		func() error { return r.Recall(ctx) },
	} {
		if err := recall(); err != nil {
			log.FromContext(ctx).Error(err, "what was bought and failed before is not known")
		}
	}
	r.purchases.see(w.pools, w.claims)
	w.demand = demand.Workloads(demand.Input{Pods: w.pods, ReplicaSets: pointers(sets.Items), Pools: w.pools,
		GatewayWish: r.Traffic.Buying(), Options: r.Demand})
	return w, nil
}

func pointers[T any](items []T) []*T {
	out := make([]*T, len(items))
	for i := range items {
		out[i] = &items[i]
	}
	return out
}

func (w *world) snapshot(now time.Time, markets []planner.Market, r *Reconciler) planner.Snapshot {
	return planner.Snapshot{Now: now, Pools: w.pools, Claims: w.claims, Workloads: w.demand.Workloads, Markets: markets,
		Rests: r.Rests.View(now), Purchases: r.purchases.since(now.Add(-time.Hour))}
}

// only is the world with no demand but that for some workloads.
func (w *world) only(keys []string) *world {
	some := *w
	some.demand.Workloads = nil
	for _, wl := range w.demand.Workloads {
		if slices.Contains(keys, wl.Key) {
			some.demand.Workloads = append(some.demand.Workloads, wl)
		}
	}
	return &some
}

// batchWindow is the shortest window of the pools: one window is open at a time, and nobody should wait for longer than
// the pool that will serve them says.
func (w *world) batchWindow() time.Duration {
	const byDefault = 10 * time.Second
	shortest := time.Duration(-1)
	for _, p := range w.pools {
		if d := p.Spec.Scaling.BatchWindow.Or(byDefault); shortest < 0 || d < shortest {
			shortest = d
		}
	}
	return max(shortest, 0)
}

// tidy keeps the account of promises true before anything is planned on it: entries whose claim never came are dropped
// after a minute, and those that a lost status forgot are put back. It reports whether it wrote anything.
func (r *Reconciler) tidy(ctx context.Context, w *world) (bool, error) {
	now, seen := r.Clock.Now(), w.names()
	for _, cached := range w.pools {
		pool := cached.DeepCopy()
		missing, err := r.stillHeld(ctx, pool, w.claims)
		if err != nil {
			return false, err
		}
		reserve.Restore(pool, missing)
		dropped := reserve.DropOrphans(pool, now, r.OrphanAge, func(name string) bool {
			if seen[name] {
				return true
			}
			err := r.Reader.Get(ctx, client.ObjectKey{Name: name}, &v1alpha1.GPUNodeClaim{})
			return !apierrors.IsNotFound(err)
		})
		if len(missing) == 0 && len(dropped) == 0 {
			continue
		}
		if err := r.Client.Status().Update(ctx, pool); err != nil {
			return false, ignoreConflict(err)
		}
		for _, name := range dropped {
			r.Events.Eventf(pool, nil, corev1.EventTypeWarning, v1alpha1.ReasonReservationExpiry, "Reserve",
				"the claim %s of a reservation never came; the reservation is dropped", name)
		}
		return true, nil
	}
	return false, nil
}

// names are those of the claims.
func (w *world) names() map[string]bool {
	names := make(map[string]bool, len(w.claims))
	for _, c := range w.claims {
		names[c.Name] = true
	}
	return names
}

// stillHeld are the reservations that are missing by the cached claims and by the claims as they are now. A claim's end
// releases its reservation and then lets the claim go; a cache that has seen only the first would bring it back.
func (r *Reconciler) stillHeld(ctx context.Context, pool *v1alpha1.GPUNodePool, claims []*v1alpha1.GPUNodeClaim) ([]v1alpha1.Reservation, error) {
	var fresh []*v1alpha1.GPUNodeClaim
	for _, m := range reserve.Missing(pool, claims) {
		c := &v1alpha1.GPUNodeClaim{}
		if err := r.Reader.Get(ctx, client.ObjectKey{Name: m.Claim}, c); apierrors.IsNotFound(err) {
			continue
		} else if err != nil {
			return nil, err
		}
		fresh = append(fresh, c)
	}
	return reserve.Missing(pool, fresh), nil
}

// orphanDue is how long until the first reservation without a claim may be dropped, and whether there is one: nothing
// else would lead back here for it.
func (w *world) orphanDue(now time.Time, age time.Duration) (time.Duration, bool) {
	claims := w.names()
	due, found := time.Duration(0), false
	for _, p := range w.pools {
		for _, r := range p.Status.Reservations {
			// A second more than needed: times in the API are whole seconds.
			left := max(r.Since.Add(age).Sub(now), 0) + time.Second
			if _, _, surplus := reserve.SurplusOf(r); surplus {
				continue
			}
			if !claims[r.Claim] && (!found || left < due) {
				due, found = left, true
			}
		}
	}
	return due, found
}

func ignoreConflict(err error) error {
	if apierrors.IsConflict(err) {
		return nil
	}
	return err
}

// search asks every entry of every live pool at once. What a failed search says of an account rests.
func (r *Reconciler) search(ctx context.Context, w *world) []planner.Market {
	return search.Searcher{Accounts: r.Accounts, Patience: r.SearchTimeout, Failed: func(acct *account.Account, err error) {
		act := offers.ActionFor(err, offers.Call{Op: offers.OpRead, Provider: acct.Provider, Account: acct.Fingerprint})
		for _, k := range act.Rest {
			r.Rests.FailFor(k, act.RestAtLeast, string(provider.KindOf(err)), err.Error(), r.Clock.Now())
		}
	}}.Markets(ctx, w.pools)
}
